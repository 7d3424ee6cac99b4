"""Properties of agreement: the score against the oracle, and against labelled cases."""

from collections.abc import Iterator

from tinyzero_sdk.testing import strategies
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.properties.messages import describe
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox_child import Outcome
from tinyzero_sdk.testing.strategies import st
from tinyzero_sdk.testing.task_under_test import TaskUnderTest


def _too_kind(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.oracle_raised:
        return Failure(f"the oracle raised {outcome.oracle_raised}", "its result")
    if outcome.exit_status in ("hung in oracle", "died in oracle"):
        return Failure(describe(outcome), "its result")
    return _wrong_is_rewarded(subject, sample, outcome)


def _wrong_is_rewarded(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.correct and outcome.oracle is False:
        return Failure(describe(outcome), "not correct, according to the oracle")
    return None


def _too_strict(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.oracle and not outcome.correct and not outcome.exit_status:
        return Failure(describe(outcome), "correct, according to the oracle")
    return None


def _answers(subject: TaskUnderTest) -> "st.SearchStrategy[TestCompletion]":
    golds = subject.presentations
    kinds = [strategies.near_miss(golds), strategies.malformed(golds), strategies.hostile(golds)]
    if subject.task.grammar(golds[0].item) is not None:
        kinds = [strategies.grammatical(subject.task, golds), *kinds]
    return st.one_of(*kinds)


def _search_in_bulk_too(subject: TaskUnderTest, prop: Property) -> Failure | None:
    """What hypothesis finds, else what the bulk search does: it is blind but a hundred times as fast."""
    failure = subject.search(prop)
    if failure is not None:
        return failure
    tried, samples = subject.bulk_differences
    subject.tried += tried
    assert prop.test is not None
    failing = [sample for sample in samples if prop.test(subject, sample, subject.observe(sample, oracle=True))]
    return subject.reduced(prop, min(failing, key=lambda sample: len(sample.completion))) if failing else None


CORRECT_MEANS_RIGHT: Property = Property(
    name="correct-means-right",
    text="What the scorer calls correct, the oracle calls right: near gold, by the grammar, and on hostile text.",
    reason="A model finds every wrong answer that is rewarded, and learns it instead of the task. Two methods that"
    " agree on a hundred thousand answers are unlikely to share a fault.",
    needs=("oracle",),
    test=_too_kind,
    strategy=_answers,
    examine=lambda subject: _search_in_bulk_too(subject, CORRECT_MEANS_RIGHT),
    with_oracle=True,
    any_text=True,
)

RIGHT_MEANS_CORRECT: Property = Property(
    name="right-means-correct",
    text="What the oracle calls right, the scorer calls correct.",
    reason="A right answer that is rejected for its notation teaches notation instead of the task.",
    needs=("oracle",),
    test=_too_strict,
    strategy=_answers,
    examine=lambda subject: _search_in_bulk_too(subject, RIGHT_MEANS_CORRECT),
    with_oracle=True,
    any_text=True,
)

ONE_EDIT_LOSES = Property(
    name="one-edit-loses",
    text="Gold with one character of its answer changed is not correct, unless the oracle says it is still right.",
    reason="Scorers are careless closest to the right answer: an extra digit, a dropped fraction, a sign that looks"
    " like another.",
    needs=("solve", "oracle"),
    test=_wrong_is_rewarded,
    strategy=lambda subject: strategies.one_edit(subject.full_presentations),
    with_oracle=True,
)


def _cases(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    if not subject.cases:
        raise NotChecked("no cases are known (docs/tasks/conformance.md)")
    for case in subject.cases:
        label = f"labelled {'right' if case.correct else 'wrong'}" + (f": {case.note}" if case.note else "")
        yield TestCompletion(case.completion, case.ground_truth, label, right=case.correct)


def _contradicts_label(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.exit_status or outcome.raised or outcome.refused or outcome.correct != sample.right:
        return Failure(describe(outcome), "correct" if sample.right else "not correct")
    return None


LABELLED_CASES = Property(
    name="labelled-cases",
    text="Every labelled completion is scored as its label says, without an error.",
    reason="A mistake that was found is kept as a case, so that it cannot come back unnoticed.",
    test=_contradicts_label,
    needs_label=True,
    completions=_cases,
)
