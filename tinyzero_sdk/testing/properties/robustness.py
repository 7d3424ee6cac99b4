"""Properties of how a scorer behaves, whatever text it gets."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from tinyzero_sdk.testing import completions, sampling
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.neighbours import change_numbers
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.sandbox import TIMEOUT, Sandbox
from tinyzero_sdk.testing.sandbox_child import Outcome, short
from tinyzero_sdk.testing.task_under_test import TaskUnderTest

MEMORY_LIMIT = 256 * 2**20  # bytes that a scorer may take for a completion of up to a megabyte


def _any_text(subject: TaskUnderTest) -> sampling.Draw:
    kinds = (sampling.gold, sampling.near_miss, sampling.malformed, sampling.hostile, sampling.hostile)
    return sampling.one_of(*[kind(subject.presentations) for kind in kinds])


def _heavy_text(subject: TaskUnderTest) -> sampling.Draw:
    golds = subject.presentations[:4]
    return sampling.one_of(sampling.hostile(golds), sampling.hostile(golds, huge=True))


def _pieces(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    gold = subject.presentations[0]
    yield gold.sample(gold.completion)
    yield from map(gold.sample, completions.every_piece(gold, (1, 25, 400)))


def _heavy_pieces(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    gold = subject.presentations[0]
    yield from map(gold.sample, completions.every_piece(gold, (1, 25, 400, completions.MEGABYTE)))


def _runs(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    """A run of one thing and then a misfit: a pattern such as `(\\d+,?)+` tries every way to divide the run."""
    gold = subject.presentations[0]
    units = dict.fromkeys(["1", "a", " ", "a ", "1,", "1 ", "1+", gold.answer[:1], gold.answer[-1:], gold.answer])
    for unit, start, end, times in itertools.product(units, ("", "The answer is "), ("!", "x", "\n", ")"), (30, 5000)):
        text = start + unit * times + end
        if unit:
            yield gold.sample(gold.with_answer(text))
            yield gold.sample(text)


_of_any_text = partial(Property, completions=_pieces, draw=_any_text, any_text=True)


def _takes_too_long(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    """Slower than the limit in each of three attempts: another process may have been in the way of one."""
    for _ in range(2):
        if outcome.exit_status != "hung" and outcome.seconds <= TIMEOUT:
            return None
        [outcome] = subject.observe_anew([sample])
    seconds = f"{outcome.seconds:.1f} s for {len(sample.completion):,} characters"
    return Failure(outcome.describe() if outcome.exit_status else seconds, f"a score within {TIMEOUT:g} s")


BOUNDED_TIME = Property(
    name="bounded-time",
    watches_calls=True,
    text=f"No text of up to a megabyte takes the scorer more than {TIMEOUT:g} s.",
    reason="One `9**9**9`, or a pattern that backtracks, stalls a training run: the step waits for the slowest answer.",
    test=_takes_too_long,
    completions=lambda subject: itertools.chain(_runs(subject), _heavy_pieces(subject)),
    draw=_heavy_text,
    with_memory=True,  # not read here, but the same completions are scored once for this property and the next
)


def _takes_too_much(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    expected = f"at most {MEMORY_LIMIT >> 20} MiB"
    if outcome.out_of_memory:
        return Failure(outcome.describe(), expected)
    return Failure(f"{outcome.memory >> 20:,} MiB", expected) if outcome.memory > MEMORY_LIMIT else None


_LEAK_CALLS = 500
_LEAK_LIMIT = 8 * 2**20


def _leak(subject: TaskUnderTest) -> Failure | None:
    """Whether the scorer's process grows over a thousand equal calls, in the second half as in the first."""
    gold = subject.presentations[0]
    sizes = []
    for _ in range(3):
        outcomes = subject.sandbox.observe([gold.sample(gold.completion)] * _LEAK_CALLS, most_kills=1)
        subject.tried += len(outcomes)
        if any(outcome.exit_status or outcome.raised for outcome in outcomes):
            return None  # other properties report it
        try:
            pages = Path(f"/proc/{subject.sandbox.pid}/statm").read_bytes().split()[1]
        except OSError:  # not on Linux
            return None
        sizes.append(int(pages) * os.sysconf("SC_PAGESIZE"))
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    if min(first, second) <= _LEAK_LIMIT:
        return None
    got = f"{_LEAK_CALLS} equal calls left {first >> 20:,} MiB behind, and {_LEAK_CALLS} more {second >> 20:,} MiB"
    return Failure(got, "no memory kept for each call")


BOUNDED_MEMORY: Property = Property(
    name="bounded-memory",
    watches_calls=True,
    text=f"No text of up to a megabyte takes the scorer more than {MEMORY_LIMIT >> 20} MiB, and no call leaks memory.",
    reason="A number with a billion digits takes ten characters to write; the machine that scores has other work too.",
    test=_takes_too_much,
    completions=_heavy_pieces,
    draw=_heavy_text,
    examine=lambda subject: subject.search(BOUNDED_MEMORY) or _leak(subject),
    with_memory=True,
)


def _raises(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.exit_status == "died" or (outcome.raised and not outcome.out_of_memory):
        return Failure(outcome.describe(), "a score")
    return None


NEVER_RAISES = _of_any_text(
    name="never-raises",
    text="No text makes `extract_answer` or `score` raise, or ends their process.",
    reason="A completion that raises scores 0 and is counted as an error, so a fault of the scorer looks like one of"
    " the model; recursion and numbers of 5,000 digits are the usual causes.",
    test=_raises,
)


def _all_outcomes(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> list[Outcome]:
    """Those of every time that this check scored a completion: some things happen only once."""
    return [outcome, *subject.noticed.get(sample.key, (sample, []))[1]]


def _noticed_first(subject: TaskUnderTest, has_done: Callable[[Outcome], object]) -> Iterator[TestCompletion]:
    """Completions that did something when another property had them scored; then the usual ones."""
    for sample, outcomes in list(subject.noticed.values()):
        if any(map(has_done, outcomes)):
            yield sample
    yield from _pieces(subject)


def _prints(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    printed = next((seen.printed for seen in _all_outcomes(subject, sample, outcome) if seen.printed), "")
    return Failure(f"it printed {short(printed)}", "nothing on stdout or stderr") if printed else None


NEVER_PRINTS = _of_any_text(
    name="never-prints",
    text="Scoring writes nothing to stdout or stderr.",
    reason="A line for every 64th completion fills the log of a run, and a lone surrogate in it raises an error where"
    " the completion is fine.",
    test=_prints,
    completions=lambda subject: _noticed_first(subject, lambda outcome: outcome.printed),
)


def _acts(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    actions = next((seen.actions for seen in _all_outcomes(subject, sample, outcome) if seen.actions), ())
    if not actions:
        return None
    return Failure(f"it did: {', '.join(actions)}", "nothing run, imported, opened, started or connected to")


RUNS_NO_CODE = _of_any_text(
    name="runs-no-code",
    watches_calls=True,
    text="Scoring compiles, runs and imports no code, opens no file, and starts or connects to nothing (after a first"
    " call to warm up).",
    reason="Model text that is evaluated can do anything: one completion can forge every later reward of its process.",
    test=_acts,
    completions=lambda subject: _noticed_first(subject, lambda outcome: outcome.actions),
)


def _changes_truth(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    return Failure("the ground truth was changed", "the ground truth as it was") if outcome.changed_truth else None


KEEPS_GROUND_TRUTH = _of_any_text(
    name="keeps-ground-truth",
    watches_calls=True,
    text="Scoring does not change the ground truth.",
    reason="The SDK does not copy it: the next completion of the same prompt would be scored against what is left.",
    test=_changes_truth,
)


def _scores_differ(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    reads = dict.fromkeys(read for seen in _all_outcomes(subject, sample, outcome) for read in seen.reads)
    if reads and not subject.task.is_async:  # whose client reads its key
        return Failure(f"it read {', '.join(reads)}", "a score from the answer and the ground truth alone")
    sandboxes = 2 * (subject.sandbox, subject.other_sandbox)
    repeats = [sandbox.observe([sample])[0] for sandbox in sandboxes if not outcome.exit_status]
    if any(repeat.exit_status for repeat in repeats):
        return None  # other properties report it
    scores = {seen.score: seen.describe() for seen in [outcome, *repeats]}
    return Failure(" / ".join(sorted(scores.values())), "always the same") if len(scores) > 1 else None


_MANY_CALLS = 6000
_MANY_SECONDS = 3.0


def _varies(subject: TaskUnderTest) -> Failure | None:
    """Whether a score depends on what was scored before, on the process or on the time: gold, the answers of other
    items and what is close to gold, over and over in other orders, in two processes."""
    golds, choose = subject.presentations, Random(subject.seed).randrange
    samples = [gold.sample(gold.completion) for gold in golds]
    samples += [other.sample(other.with_answer(gold.answer)) for gold, other in itertools.pairwise(golds)]
    for gold in golds if not subject.task.is_async else ():  # whose calls may cost money
        near = [answer for _, answer in itertools.islice(change_numbers(gold.answer, ()), 2)]
        near.append(completions.near_miss(gold.answer, (), choose))
        samples += [gold.sample(gold.with_answer(answer)) for answer in near]
    first = {sample.key: outcome for sample, outcome in zip(samples, subject.sandbox.observe(samples), strict=True)}
    until = time.monotonic() + _MANY_SECONDS

    def call_often(sandbox: Sandbox, most: int, way: str) -> Failure | None:
        shuffled, calls = Random(most).sample, 0
        while calls < most and time.monotonic() < until:
            batch = shuffled(samples, len(samples))
            calls += len(batch)
            subject.tried += len(batch)
            for sample, new in zip(batch, sandbox.observe(batch, most_kills=1), strict=False):
                old = first[sample.key]
                if old.exit_status or new.exit_status:
                    return None  # other properties report it
                if old.score != new.score:
                    got = f"{old.describe()}, and {way} {new.describe()}: completion {short(sample.completion, 200)}"
                    return Failure(f"{got}, ground truth {sample.key[1]}", "always the same")
        return None

    with ThreadPoolExecutor(2) as threads:
        ways = (f"after up to {_MANY_CALLS:,} calls", "in another process at another time")
        sandboxes, most = (subject.sandbox, subject.other_sandbox), (_MANY_CALLS, _MANY_CALLS // 2)
        return next(filter(None, threads.map(call_often, sandboxes, most, ways)), None)


DETERMINISTIC: Property = _of_any_text(
    name="deterministic",
    text="A completion gets the same score each time: in another process with another PYTHONHASHSEED and time zone, at"
    " another time, in another order, and after thousands of others. The scorer reads no environment variable, no"
    " locale, no state of a file, and nothing about its process.",
    reason="A random reward cannot be reproduced, and a lucky wrong answer is learned like a right one.",
    test=_scores_differ,
    completions=lambda subject: _noticed_first(subject, lambda outcome: outcome.reads),
    examine=lambda subject: subject.search(DETERMINISTIC) or _varies(subject),
)


def _is_invalid(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    low, high = subject.task.info.score_range
    return Failure(outcome.refused, f"a finite score from {low:g} to {high:g}") if outcome.refused else None


SCORE_IS_VALID = _of_any_text(
    name="score-is-valid",
    text="Every text gets a finite score within the range that `info` states, and an answer that is text.",
    reason="One NaN or infinity in a group of completions makes the advantages of all of them NaN.",
    test=_is_invalid,
)


def _reward_misleads(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.exit_status or outcome.raised or outcome.refused:
        return None
    high = subject.task.info.score_range[1]
    if outcome.correct and outcome.value <= 0:
        return Failure(outcome.describe(), "more for a correct answer than for none, which scores 0")
    if not outcome.correct and outcome.value >= high:
        return Failure(outcome.describe(), f"less than {high:g} for what is not correct")
    return None


WRONG_PAYS_LESS = _of_any_text(
    name="wrong-pays-less",
    text="An incorrect answer scores less than the greatest reward, and a correct one more than no answer.",
    reason="Accuracy counts `correct` and training uses the value: if they disagree, the curve that rises is not what"
    " is being learned.",
    test=_reward_misleads,
)
