"""Properties of agreement: the score against the oracle, and against labelled cases."""

from collections.abc import Iterator
from functools import partial

from tinyzero_sdk.testing import sampling
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox_child import Outcome
from tinyzero_sdk.testing.task_under_test import TaskUnderTest


def _too_kind(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.oracle_raised:
        return Failure(f"the oracle raised {outcome.oracle_raised}", "its result")
    if outcome.exit_status in ("hung in oracle", "died in oracle"):
        return Failure(outcome.describe(), "its result")
    if outcome.correct and outcome.oracle is False:
        return Failure(outcome.describe(), "not correct, according to the oracle")
    return None


def _too_strict(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.oracle and not outcome.correct and not outcome.exit_status:
        return Failure(outcome.describe(), "correct, according to the oracle")
    return None


def _answers(subject: TaskUnderTest) -> sampling.Draw:
    golds = subject.presentations
    kinds = [sampling.near_miss(golds), sampling.malformed(golds), sampling.hostile(golds)]
    if subject.task.grammar(golds[0].item) is not None:
        kinds.insert(0, sampling.grammatical(subject.task, golds))
    return sampling.one_of(*kinds)


def _disagreements(subject: TaskUnderTest) -> list[TestCompletion]:
    return [] if subject.task.is_async else subject.disagreements


_agreement = partial(Property, needs=("oracle",), draw=_answers, more=_disagreements, with_oracle=True, any_text=True)
CORRECT_MEANS_RIGHT = _agreement(
    name="correct-means-right",
    text="What the scorer calls correct, the oracle calls right: near gold, by the grammar, and on hostile text.",
    reason="A model finds every wrong answer that is rewarded, and learns it instead of the task. Two methods that"
    " agree on a hundred thousand answers are unlikely to share a fault.",
    test=_too_kind,
)

RIGHT_MEANS_CORRECT = _agreement(
    name="right-means-correct",
    text="What the oracle calls right, the scorer calls correct.",
    reason="A right answer that is rejected for its notation teaches notation instead of the task.",
    test=_too_strict,
)


def _cases(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    if not subject.cases:
        raise NotChecked("no cases are known (docs/tasks/conformance.md)")
    for case in subject.cases:
        label = f"labelled {'right' if case.correct else 'wrong'}" + (f": {case.note}" if case.note else "")
        yield TestCompletion(case.completion, case.ground_truth, label, right=case.correct)


def _contradicts_label(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.exit_status or outcome.raised or outcome.refused or outcome.correct != sample.right:
        return Failure(outcome.describe(), "correct" if sample.right else "not correct")
    return None


LABELLED_CASES = Property(
    name="labelled-cases",
    text="Every labelled completion is scored as its label says, without an error.",
    reason="A mistake that was found is kept as a case, so that it cannot come back unnoticed.",
    test=_contradicts_label,
    needs_label=True,
    completions=_cases,
)
