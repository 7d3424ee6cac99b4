"""The guard of a task that compares the completions of a problem: `score` first, then `score_group`, then the wrappers.

What `score` says of right and wrong stays: a comparison changes the reward alone. If it fails, the whole group has the
reason `error`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import TASK_PART, Completion, Json, Score
from tinyzero_sdk.tasks.score_guard import ScoreGuard


class GroupGuard(ScoreGuard):
    """A score guard that also compares the answers of a group; a completion by itself is a group of one."""

    def __init__(self, *settings: Any, score_group: Callable[[list[str], Json, list[Score]], Any]) -> None:
        super().__init__(*settings)
        self._score_group = score_group
        self._shaped: Callable[[Completion | str, Json], Score] | None = None
        self._compared: Score | None = None  # what wrappers get to see

    @hookimpl
    def score_completion(self, completion: Completion | str, ground_truth: Json) -> Score:
        """What wrappers wrap: the score after the comparison."""
        assert self._compared is not None
        return replace(self._compared, parts={**self._compared.parts, TASK_PART: self._compared.value})

    def score_alone(self, completion: Completion | str, ground_truth: Json) -> Score:
        """What `score` gives, before the comparison and the wrappers."""
        return super().score_completion(completion, ground_truth)

    def around(self, shaped: Callable[[Completion, Json], Any]) -> Callable[[Completion | str, Json], Score]:
        self._shaped = super().around(shaped)
        self._is_wrapped = False  # `score_alone` is not
        return self._shaped

    def compare(
        self, completions: Sequence[Completion | str], ground_truth: Json, scores: Sequence[Score]
    ) -> list[Score]:
        """The scores of a problem's completions, given what `score_alone` gave; never raises because of a task."""
        answered = [score for score in scores if score.answer is not None]
        try:
            compared = iter(self.compare_answers(ground_truth, answered) if answered else [])
        except BaseException as error:  # as in `_judge`
            failure = self._failure(error)
            self.error_count += sum(score.reason != "error" for score in scores) - 1  # others are counted already
            return [failure] * len(scores)
        own = [score if score.answer is None else next(compared) for score in scores]
        if self._shaped is None:
            return own
        shaped = []
        for completion, self._compared in zip(completions, own, strict=True):
            shaped.append(self._shaped(completion, ground_truth))
        return shaped

    def compare_answers(self, ground_truth: Json, scores: Sequence[Score]) -> list[Score]:
        """The scores of answers after `score_group`.

        Raises:
            BrokenTaskError: it returned something else than a valid reward for each, or parts where the task has some.
        """
        truth = self.read_truth(ground_truth)
        results = self._score_group([str(score.answer) for score in scores], truth, list(scores))
        self._hook = "score_group"
        try:
            rewards = list(results) if hasattr(results, "__iter__") else [results]
            if len(rewards) != len(scores):
                raise self._refusal("", results, f"a list of {len(scores)} rewards, one for each answer in their order")
            return [self._changed(score, reward) for score, reward in zip(scores, rewards, strict=True)]
        finally:
            self._hook = "score"

    def _changed(self, score: Score, reward: Any) -> Score:
        if not self._parts:
            return replace(score, value=self._check_value(reward, self._range))
        if not isinstance(reward, Mapping):
            raise self._refusal(
                "", reward, f"for each answer a mapping with some of the parts {', '.join(self._parts)}"
            )
        changed = Score.of_parts({**score.parts, **reward}, correct=score.correct, reason=score.reason)
        return replace(self._add_up(changed), answer=score.answer, masked=score.masked)
