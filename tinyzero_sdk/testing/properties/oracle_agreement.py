"""Laws about who is right: the verdict against the oracle's, and against labelled cases."""

from collections.abc import Iterator

from tinyzero_sdk.testing import strategies
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.properties.messages import tell
from tinyzero_sdk.testing.property import Failure, Law, NotChecked, Problem
from tinyzero_sdk.testing.strategies import st
from tinyzero_sdk.testing.task_under_test import Bench


def _too_kind(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample, oracle=True)
    if seen.oracle_raised or seen.fate in ("hung in oracle", "died in oracle"):
        return Problem(f"the oracle raised {seen.oracle_raised}" if seen.oracle_raised else tell(seen), "its verdict")
    if seen.correct and seen.oracle is False:
        return Problem(tell(seen), "not correct, says the oracle")
    return None


def _too_strict(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample, oracle=True)
    if seen.oracle and not seen.correct and not seen.fate:
        return Problem(tell(seen), "correct, says the oracle")
    return None


def _answers(bench: Bench) -> "st.SearchStrategy[Sample]":
    frames = bench.frames
    kinds = [strategies.near_miss(frames), strategies.malformed(frames), strategies.hostile(frames)]
    if bench.task.grammar(frames[0].item) is not None:
        kinds = [strategies.grammatical(bench.task, frames), *kinds]
    return st.one_of(*kinds)


def _look_everywhere(bench: Bench, law: Law) -> Failure | None:
    """What hypothesis finds, else what the bulk search does: it is blind but a hundred times as fast."""
    failure = bench.search(law)
    if failure is not None:
        return failure
    tried, samples = bench.hunted
    bench.tried += tried
    assert law.problem is not None
    broken = [sample for sample in samples if law.problem(bench, sample) is not None]
    if not broken:
        return None
    return bench.reduced(law, min(broken, key=lambda sample: len(sample.completion)))


CORRECT_MEANS_RIGHT: Law = Law(
    name="correct-means-right",
    text="What the scorer calls correct, the oracle calls right: near gold, by the grammar, and on hostile text.",
    reason="A model finds every wrong answer that is paid, and learns it instead of the task. Two methods that agree on"
    " a hundred thousand answers are not wrong in the same way by accident.",
    needs=("oracle",),
    problem=_too_kind,
    drawn=_answers,
    examine=lambda bench: _look_everywhere(bench, CORRECT_MEANS_RIGHT),
    any_text=True,
)

RIGHT_MEANS_CORRECT: Law = Law(
    name="right-means-correct",
    text="What the oracle calls right, the scorer calls correct.",
    reason="A right answer that is refused for the way it is written teaches a way of writing instead of the task.",
    needs=("oracle",),
    problem=_too_strict,
    drawn=_answers,
    examine=lambda bench: _look_everywhere(bench, RIGHT_MEANS_CORRECT),
    any_text=True,
)


def _edits(bench: Bench) -> "st.SearchStrategy[Sample]":
    return strategies.one_edit(bench.needed_frames)


def _edit_is_paid(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample, oracle=True)
    if seen.correct and seen.oracle is False:
        return Problem(tell(seen), "not correct, says the oracle")
    return None


ONE_EDIT_LOSES = Law(
    name="one-edit-loses",
    text="Gold with one character of its answer changed is not correct, unless the oracle says it still is right.",
    reason="Closest to the right answer is where scorers are careless: a digit more, a fraction cut off, a sign that"
    " looks like another.",
    needs=("solve", "oracle"),
    problem=_edit_is_paid,
    drawn=_edits,
)


def _cases(bench: Bench) -> Iterator[Sample]:
    if not bench.cases:
        raise NotChecked("no cases are known (docs/conformance.md)")
    for case in bench.cases:
        label = f"labelled {'right' if case.correct else 'wrong'}" + (f": {case.note}" if case.note else "")
        yield Sample(case.completion, case.ground_truth, label, right=case.correct)


def _misjudged(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    if seen.fate or seen.raised or seen.refused or seen.correct != sample.right:
        return Problem(tell(seen), "correct" if sample.right else "not correct")
    return None


LABELLED_CASES = Law(
    name="labelled-cases",
    text="Every labelled completion gets the verdict of its label, without a fault.",
    reason="What was wrong once is kept as a case, so that it cannot come back unseen.",
    problem=_misjudged,
    needs_label=True,
    listed=_cases,
)
