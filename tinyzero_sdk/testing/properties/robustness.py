"""Laws about how a scorer behaves, whatever text it is given."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from weakref import WeakKeyDictionary

from tinyzero_sdk.testing import completions as samples
from tinyzero_sdk.testing import strategies
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.properties.messages import short, tell
from tinyzero_sdk.testing.property import Failure, Law, Problem
from tinyzero_sdk.testing.sandbox import TIME_LIMIT, ObservedProcess
from tinyzero_sdk.testing.sandbox_child import Observation
from tinyzero_sdk.testing.strategies import st
from tinyzero_sdk.testing.task_under_test import Bench

MEMORY_LIMIT = 256 * 2**20
"""Bytes that a scorer may take for a completion of up to a megabyte."""


def any_text(bench: Bench) -> "st.SearchStrategy[Sample]":
    """Gold, near misses, malformed and hostile completions."""
    frames = bench.frames
    kinds = (strategies.gold, strategies.near_miss, strategies.malformed, strategies.hostile, strategies.hostile)
    return st.one_of(*[kind(frames) for kind in kinds])


def _pieces(bench: Bench) -> Iterator[Sample]:
    frame = bench.frames[0]
    yield Sample(frame.completion, frame.item.ground_truth)
    for text in samples.every_piece(frame, (1, 25, 400)):
        yield Sample(text, frame.item.ground_truth)


def _heavy_pieces(bench: Bench) -> Iterator[Sample]:
    frame = bench.frames[0]
    for text in samples.every_piece(frame, (1, 25, 400, samples.MEGABYTE)):
        yield Sample(text, frame.item.ground_truth)


def _runs(bench: Bench) -> Iterator[Sample]:
    """A run of one thing and then what does not fit: a pattern such as `(\\d+,?)+` tries every way to divide it."""
    frame = bench.frames[0]
    units = dict.fromkeys(["1", "a", " ", "a ", "1,", "1 ", "1+", frame.answer[:1], frame.answer[-1:], frame.answer])
    for unit, start, end, times in itertools.product(units, ("", "The answer is "), ("!", "x", "\n", ")"), (30, 5000)):
        text = start + unit * times + end
        if unit:
            yield Sample(frame.with_answer(text), frame.item.ground_truth)
            yield Sample(text, frame.item.ground_truth)


def _slow_pieces(bench: Bench) -> Iterator[Sample]:
    yield from _runs(bench)
    yield from _heavy_pieces(bench)


def _heavy_text(bench: Bench) -> "st.SearchStrategy[Sample]":
    frames = bench.frames[:4]
    return st.one_of(strategies.hostile(frames), strategies.hostile(frames, huge=True))


def _takes_too_long(bench: Bench, sample: Sample) -> Problem | None:
    """Slower than the limit in each of three attempts: another process may have been in the way of one."""
    seen = bench.observe(sample)
    for _ in range(2):
        if seen.fate != "hung" and seen.seconds <= TIME_LIMIT:
            return None
        seen = bench.observe_anew(sample)
    got = tell(seen) if seen.fate else f"{seen.seconds:.1f} s for {len(sample.completion):,} characters"
    return Problem(got, f"a verdict within {TIME_LIMIT:g} s")


BOUNDED_TIME = Law(
    name="bounded-time",
    text=f"No text of up to a megabyte takes the scorer more than {TIME_LIMIT:g} s.",
    reason="One `9**9**9`, or a pattern that backtracks, stops a training run: the others wait for the slowest answer.",
    problem=_takes_too_long,
    listed=_slow_pieces,
    drawn=_heavy_text,
)


def _takes_too_much(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample, weigh=True)
    if seen.out_of_memory:
        return Problem(tell(seen), f"at most {MEMORY_LIMIT >> 20} MiB")
    if seen.memory > MEMORY_LIMIT:
        return Problem(f"{seen.memory >> 20:,} MiB", f"at most {MEMORY_LIMIT >> 20} MiB")
    return None


_LEAK_CALLS = 500
_LEAK_LIMIT = 8 * 2**20


def _memory_or_leak(bench: Bench) -> Failure | None:
    return bench.search(BOUNDED_MEMORY) or _leak(bench)


def _leak(bench: Bench) -> Failure | None:
    """Whether the scorer's process grows with each of a thousand equal calls, in the second half as in the first."""
    frame = bench.frames[0]
    sizes = []
    for _ in range(3):
        for _ in range(_LEAK_CALLS):
            seen = bench.judge.observe(frame.completion, frame.item.ground_truth)
            bench.tried += 1
            if seen.fate or seen.raised:
                return None  # for other laws to tell
        sizes.append(_size_of(bench.judge))
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    if min(first, second) <= _LEAK_LIMIT:
        return None
    got = f"{_LEAK_CALLS} equal calls left {first >> 20:,} MiB behind, and {_LEAK_CALLS} more {second >> 20:,} MiB"
    return Failure(got, "no memory kept for each call")


def _size_of(judge: ObservedProcess) -> int:
    """Bytes of memory in use by the process of a judge; 0 where the system does not tell."""
    worker = judge._worker
    try:
        assert worker is not None
        pages = Path(f"/proc/{worker._process.pid}/statm").read_bytes().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")


BOUNDED_MEMORY: Law = Law(
    name="bounded-memory",
    text=f"No text of up to a megabyte takes the scorer more than {MEMORY_LIMIT >> 20} MiB, and no call leaves memory"
    " behind.",
    reason="A number with a billion digits is ten characters long; the machine that scores has other work too.",
    problem=_takes_too_much,
    listed=_heavy_pieces,
    drawn=_heavy_text,
    examine=_memory_or_leak,
)


def _raises(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    if seen.fate == "died" or (seen.raised and not seen.out_of_memory):
        return Problem(tell(seen), "a score")
    return None


NEVER_RAISES = Law(
    name="never-raises",
    text="No text makes `extract_answer` or `score` raise, or ends their process.",
    reason="A completion that raises scores 0 and is counted as an error, so a fault of the scorer looks like one of"
    " the model; recursion and numbers of 5,000 digits are the usual ones.",
    problem=_raises,
    listed=_pieces,
    drawn=any_text,
    any_text=True,
)


def _all_seen(bench: Bench, sample: Sample) -> list[Observation]:
    """What came of a completion whenever it was scored in this check: some things happen once only."""
    seen = bench.observe(sample)
    truth = json.dumps(sample.ground_truth, sort_keys=True)
    flags = itertools.product((False, True), (False, True))
    known = [bench._seen.get((sample.completion, truth, oracle, weigh)) for oracle, weigh in flags]
    return [seen, *(other for other in known if other is not None and other is not seen)]


def _known(bench: Bench, has_done: Callable[[Observation], object]) -> Iterator[Sample]:
    """Completions that other laws had scored, and that did something then; then the usual ones."""
    for (text, truth, _, _), seen in list(bench._seen.items()):
        if has_done(seen):
            yield Sample(text, json.loads(truth))
    yield from _pieces(bench)


def _prints(bench: Bench, sample: Sample) -> Problem | None:
    printed = next((seen.printed for seen in _all_seen(bench, sample) if seen.printed), "")
    return Problem(f"it printed {short(printed)}", "nothing on stdout or stderr") if printed else None


NEVER_PRINTS = Law(
    name="never-prints",
    text="Scoring writes nothing to stdout or stderr.",
    reason="What is printed for one completion in 64 fills a log with a run's length, and a lone surrogate in it raises"
    " where the completion is fine.",
    problem=_prints,
    listed=lambda bench: _known(bench, lambda seen: seen.printed),
    drawn=any_text,
    any_text=True,
)


def _acts(bench: Bench, sample: Sample) -> Problem | None:
    actions = next((seen.actions for seen in _all_seen(bench, sample) if seen.actions), ())
    if not actions:
        return None
    return Problem(f"it did: {', '.join(actions)}", "nothing run, imported, opened, started or connected to")


RUNS_NO_CODE = Law(
    name="runs-no-code",
    text="Scoring compiles, runs, imports, opens, starts and connects to nothing (after a first call to warm up).",
    reason="Text of a model that is evaluated is text that can do anything: one sample can forge every later reward"
    " of its process.",
    problem=_acts,
    listed=lambda bench: _known(bench, lambda seen: seen.actions),
    drawn=any_text,
    any_text=True,
)


def _changes_truth(bench: Bench, sample: Sample) -> Problem | None:
    if not bench.observe(sample).changed_truth:
        return None
    return Problem("the ground truth was another one afterwards", "the ground truth as it was")


KEEPS_GROUND_TRUTH = Law(
    name="keeps-ground-truth",
    text="Scoring does not change the ground truth.",
    reason="The host does not copy it: the next completion of the same prompt would be judged by what is left.",
    problem=_changes_truth,
    listed=_pieces,
    drawn=any_text,
    any_text=True,
)


_WAVERED: WeakKeyDictionary[Bench, dict[tuple[str, str], Problem]] = WeakKeyDictionary()


def _wavers(bench: Bench, sample: Sample) -> Problem | None:
    """Whether its verdicts differ; what was seen to waver once stays so, though it may not do so again."""
    known = _WAVERED.setdefault(bench, {})
    key = (sample.completion, json.dumps(sample.ground_truth, sort_keys=True))
    if key not in known and (problem := _waver_now(bench, sample)) is not None:
        known[key] = problem
    return known.get(key)


def _waver_now(bench: Bench, sample: Sample) -> Problem | None:
    verdicts = {bench.observe(sample).verdict}
    if bench.observe(sample).fate:
        return None  # for other laws to tell
    for judge in (bench.judge, bench.other_judge):
        for _ in range(2):
            seen = judge.observe(sample.completion, sample.ground_truth)
            if seen.fate:
                return None
            verdicts.add(seen.verdict)
    if len(verdicts) == 1:
        return None
    return Problem(" / ".join(_tell_verdict(*verdict) for verdict in sorted(verdicts, key=repr)), "always the same")


def _tell_verdict(value: float, correct: bool, reason: str, answer: str | None) -> str:
    return f"{value:g} ({'correct' if correct else reason}, answer {'none' if answer is None else short(answer, 40)})"


_MANY_CALLS = 6000
_MANY_SECONDS = 3.0


def _wavers_or_remembers(bench: Bench) -> Failure | None:
    return bench.search(DETERMINISTIC) or _remembers(bench)


def _remembers(bench: Bench) -> Failure | None:
    """Whether a verdict depends on what was scored before: one order against another one in another process."""
    pairs = [Sample(frame.completion, frame.item.ground_truth) for frame in bench.frames]
    for frame, other in itertools.pairwise(bench.frames):
        pairs.append(Sample(other.with_answer(frame.answer), other.item.ground_truth))
    # Each gold is followed by the next item with the same answer: what is remembered of one item is paid in the next.
    pairs = [sample for both in itertools.zip_longest(*_halves(pairs)) for sample in both if sample is not None]
    first = [bench.judge.observe(sample.completion, sample.ground_truth) for sample in pairs]
    order = list(range(len(pairs)))
    Random(bench.seed).shuffle(order)
    shuffled = {i: bench.other_judge.observe(pairs[i].completion, pairs[i].ground_truth) for i in order}
    _call_often(bench, pairs)
    late = [bench.judge.observe(sample.completion, sample.ground_truth) for sample in pairs]
    bench.tried += 3 * len(pairs)
    ways = [(shuffled, "in another order in another process"), (late, f"after {_MANY_CALLS:,} calls")]
    for place, sample in enumerate(pairs):
        for others, way in ways:
            old, new = first[place], others[place]  # type: ignore[index]
            if not old.fate and not new.fate and old.verdict != new.verdict:
                got = f"{tell(old)}, and {way} {tell(new)}: completion {short(sample.completion, 200)}"
                return Failure(f"{got}, ground truth {json.dumps(sample.ground_truth)}", "always the same")
    return None


def _halves(pairs: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    middle = (len(pairs) + 1) // 2
    return pairs[:middle], pairs[middle:]


def _call_often(bench: Bench, samples: Sequence[Sample]) -> None:
    """Score them over and over, in the process of `bench.judge`, until it has done so many times, or for so long."""
    until = time.monotonic() + _MANY_SECONDS
    for _, sample in zip(range(_MANY_CALLS), itertools.cycle(samples), strict=False):
        seen = bench.judge.observe(sample.completion, sample.ground_truth)
        bench.tried += 1
        if seen.fate or time.monotonic() > until:
            break


DETERMINISTIC: Law = Law(
    name="deterministic",
    text="A completion gets the same verdict each time, also in another process with another PYTHONHASHSEED, in another"
    " order, and after thousands of others.",
    reason="A reward with chance in it cannot be reproduced, and a lucky wrong answer is learnt like a right one.",
    problem=_wavers,
    listed=_pieces,
    drawn=any_text,
    examine=_wavers_or_remembers,
    any_text=True,
)


def _is_invalid(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    low, high = bench.task.info.score_range
    return Problem(seen.refused, f"a finite score from {low:g} to {high:g}") if seen.refused else None


SCORE_IS_VALID = Law(
    name="score-is-valid",
    text="Every text gets a finite score within the range that `info` states, and an answer that is text.",
    reason="One NaN or infinity in a group of completions makes the advantages of all of them NaN.",
    problem=_is_invalid,
    listed=_pieces,
    drawn=any_text,
    any_text=True,
)


def _pays_too_well(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    if seen.fate or seen.raised or seen.refused:
        return None
    high = bench.task.info.score_range[1]
    if seen.correct and seen.value <= 0:
        return Problem(tell(seen), "a correct answer that pays more than none, which scores 0")
    if not seen.correct and seen.value >= high:
        return Problem(tell(seen), f"less than {high:g} for what is not correct")
    return None


WRONG_PAYS_LESS = Law(
    name="wrong-pays-less",
    text="What is not correct pays less than the greatest reward, and what is correct pays more than no answer.",
    reason="Accuracy is counted by `correct` and training goes by the value: if they disagree, the curve that rises is"
    " not what is being learnt.",
    problem=_pays_too_well,
    listed=_pieces,
    drawn=any_text,
    any_text=True,
)
