"""Laws about how a scorer behaves, whatever text it is given."""

from collections.abc import Iterator

from tinyzero_sdk.testing import samples, strategies
from tinyzero_sdk.testing.bench import Bench
from tinyzero_sdk.testing.judge import TIME_LIMIT
from tinyzero_sdk.testing.law import Law, Problem
from tinyzero_sdk.testing.laws.telling import short, tell
from tinyzero_sdk.testing.samples import Sample
from tinyzero_sdk.testing.strategies import st

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
    listed=_heavy_pieces,
    drawn=_heavy_text,
)


def _takes_too_much(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample, weigh=True)
    if seen.out_of_memory:
        return Problem(tell(seen), f"at most {MEMORY_LIMIT >> 20} MiB")
    if seen.memory > MEMORY_LIMIT:
        return Problem(f"{seen.memory >> 20:,} MiB", f"at most {MEMORY_LIMIT >> 20} MiB")
    return None


BOUNDED_MEMORY = Law(
    name="bounded-memory",
    text=f"No text of up to a megabyte takes the scorer more than {MEMORY_LIMIT >> 20} MiB.",
    reason="A number with a billion digits is ten characters long; the machine that scores has other work too.",
    problem=_takes_too_much,
    listed=_heavy_pieces,
    drawn=_heavy_text,
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


def _prints(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    return Problem(f"it printed {short(seen.printed)}", "nothing on stdout or stderr") if seen.printed else None


NEVER_PRINTS = Law(
    name="never-prints",
    text="Scoring writes nothing to stdout or stderr.",
    reason="What is printed for one completion in 64 fills a log with a run's length, and a lone surrogate in it raises"
    " where the completion is fine.",
    problem=_prints,
    listed=_pieces,
    drawn=any_text,
    any_text=True,
)


def _acts(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    if not seen.actions:
        return None
    return Problem(f"it did: {', '.join(seen.actions)}", "nothing run, imported, opened, started or connected to")


RUNS_NO_CODE = Law(
    name="runs-no-code",
    text="Scoring compiles, runs, imports, opens, starts and connects to nothing (after a first call to warm up).",
    reason="Text of a model that is evaluated is text that can do anything: one sample can forge every later reward"
    " of its process.",
    problem=_acts,
    listed=_pieces,
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


def _wavers(bench: Bench, sample: Sample) -> Problem | None:
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


DETERMINISTIC = Law(
    name="deterministic",
    text="A completion gets the same verdict each time, also in another process with another PYTHONHASHSEED.",
    reason="A reward with chance in it cannot be reproduced, and a lucky wrong answer is learnt like a right one.",
    problem=_wavers,
    listed=_pieces,
    drawn=any_text,
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
