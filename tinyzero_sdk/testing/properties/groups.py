"""Properties of a task that compares the completions of a problem; groups are scored in a worker process."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from tinyzero_sdk.records import SCORER_FAILURES, Completion, Score
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.testing import sampling
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.sandbox_child import short
from tinyzero_sdk.testing.task_under_test import SEARCH_SECONDS, TaskUnderTest

_property = partial(Property, needs=("score_group",), about_needs=True)


def _search(
    test: Callable[[TaskUnderTest, Sequence[TestCompletion]], Failure | None],
) -> Callable[[TaskUnderTest], Failure | None]:
    """Looks for a group of completions of one problem on which the test fails, and leaves out what it can."""

    def examine(subject: TaskUnderTest) -> Failure | None:
        choose, until = Random(subject.seed).randrange, time.monotonic() + SEARCH_SECONDS
        for _ in range(subject.examples):
            group = sampling.group(subject.presentations, choose)
            subject.tried += len(group)
            if (failure := test(subject, group)) is not None:
                break
            if time.monotonic() > until:
                return None
        else:
            return None
        place = 0
        while place < len(group) > 1:
            smaller = group[:place] + group[place + 1 :]
            if (still := test(subject, smaller)) is not None:
                group, failure = smaller, still
            else:
                place += 1
        texts = ", ".join(short(sample.completion) for sample in group)
        return replace(failure, got=f"{failure.got}: completions {texts}, ground truth {group[0].key[1]}")

    return examine


def _score(pool: ScoringPool, samples: Sequence[TestCompletion], *, alone: bool = False) -> list[Score]:
    completions = [Completion(sample.completion) for sample in samples]
    groups = [1] * len(samples) if alone else [len(samples)]
    return pool.score(completions, [sample.ground_truth for sample in samples], groups)


def _cannot_be_compared(subject: TaskUnderTest, group: Sequence[TestCompletion]) -> Failure | None:
    scores = _score(subject.group_pool, group, alone=True)
    golds = {gold.completion for gold in subject.golds}
    able = [sample for sample, score in zip(group, scores, strict=True) if score.reason not in SCORER_FAILURES]
    failing = [[sample] for sample in group if sample not in able and sample.completion in golds]
    if able and any(score.reason in SCORER_FAILURES for score in _score(subject.group_pool, able)):
        failing.append(able)
    if not failing:  # what fails alone, and is not gold, fails other checks
        return None
    with ScoringPool(subject.task) as pool:  # whose first error is this one
        reason = _score(pool, failing[0])[0].reason
        cause = f": {pool.first_error.splitlines()[-1]}" if pool.first_error else ""
    return Failure(f"{reason} for a group of {len(failing[0])}{cause}", "a score for each completion")


GROUPS_ARE_SCORED = _property(
    name="groups-are-scored",
    text="`score_group` compares any answers that `score` accepts: one alone, many, equal ones, all of them wrong.",
    reason="A ranking of one, or a deviation of equal rewards, divides by zero, and then the whole group is an error.",
    examine=_search(_cannot_be_compared),
)


def _depends_on_order(subject: TaskUnderTest, group: Sequence[TestCompletion]) -> Failure | None:
    order = list(range(len(group)))
    first = _score(subject.group_pool, group)
    for places in (order, order[::-1], Random(subject.seed).sample(order, len(order))):
        again = _score(subject.group_pool, [group[place] for place in places])
        for place, new in zip(places, again, strict=True):
            if not _is_same(first[place], new):
                got = f"{first[place].value:g} and in another order {new.value:g} for {short(group[place].completion)}"
                return Failure(got, "the same score in any order")
    return None


ORDER_IS_FREE = _property(
    name="order-of-group-is-free",
    text="The scores of a group are the same in any order of its completions, and each time; so equal answers get equal"
    " scores.",
    reason="The order of completions is chance; a ranking that breaks ties by place pays for noise in every advantage.",
    examine=_search(_depends_on_order),
)


def _is_same(first: Score, second: Score) -> bool:
    """Up to rounding, as sums in another order differ."""
    return math.isclose(first.value, second.value, rel_tol=1e-6, abs_tol=1e-9) or (
        first.reason in SCORER_FAILURES or second.reason in SCORER_FAILURES
    )
