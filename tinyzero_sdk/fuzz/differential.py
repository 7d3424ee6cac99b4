"""Differential testing: the task's score of a completion against its oracle.

Runs in the child process. Its timer shows the parent which attempt is being scored, so that a hang can be attributed.
"""

import traceback
from pathlib import Path
from typing import Literal, NamedTuple

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.fuzz.presentations import Attempt
from tinyzero_sdk.records import Json, Score
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import SharedTimer

Kind = Literal["wrong_rewarded", "right_unrewarded", "error", "oracle_error", "timeout", "died"]
"""Types of faults; `findings.DESCRIPTIONS` has a description of each."""

PREPARING = 2**40
"""The timer's index while problems are generated and no completion is scored. Otherwise it is twice the attempt's index
in its batch, plus 1 while the oracle runs."""


class ScoringFault(NamedTuple):
    """What is wrong with a score."""

    kind: Kind
    score: Score
    right: bool | None
    """The oracle's result for the answer that counts."""

    answer: str | None
    note: str = ""
    """The exception, if one was raised."""


class DifferentialOracle:
    """Scores attempts and compares the scores with the oracle."""

    def __init__(self, task: Task, timer: SharedTimer) -> None:
        self.task = task
        self.has_oracle = bool(task.plugin_manager.hook.oracle.get_hookimpls())
        self._timer = timer
        self._full = task.info.score_range[1]

    def preparing(self) -> None:
        """Show the parent that no attempt is being scored."""
        self._timer.start(PREPARING)

    def compare(
        self, attempt: Attempt, truth: Json, index: int = 0, *, only_rewarded: bool = False
    ) -> tuple[Score, ScoringFault | None]:
        """The task's score of an attempt, and what is wrong with it; `index` counts it in its batch, for the timer.

        With `only_rewarded` the oracle, which is slow, is called only for completions that score full. It checks the
        answer that the task extracted, and the one that counts by construction of the attempt. Without an oracle, the
        task's own score of the latter alone, in the gold presentation, takes its place.
        """
        task, text, intended = self.task, attempt.text, attempt.intended
        self._timer.start(2 * index)
        score = task.score_completion(text, truth)
        if score.reason == "error":
            read, note = self._describe_error(text, truth)
            return score, ScoringFault("error", score, self._ask(intended or read, truth, index), None, note)
        answer = score.answer
        paid = score.correct or score.value >= self._full
        if only_rewarded and not paid:
            return score, None
        if not self.has_oracle:
            if attempt.intended is None or not attempt.plain:
                return score, None
            is_right = task.score_completion(attempt.plain, truth).correct
            kind: Kind = "wrong_rewarded" if paid else "right_unrewarded"
            return score, None if is_right == paid else ScoringFault(kind, score, is_right, intended)
        self._timer.start(2 * index + 1)
        try:
            for read in (answer, None if intended == answer else intended):
                right = None if read is None else task.oracle(read, truth)
                if right is not None and bool(right) != paid:
                    return score, ScoringFault(
                        "wrong_rewarded" if paid else "right_unrewarded", score, bool(right), read
                    )
        except TinyZeroError as error:
            return score, ScoringFault("oracle_error", score, None, answer, str(error))
        return score, None

    def is_right(self, answer: str, plain: str, truth: Json) -> bool | None:
        """Whether the answer is right: by the oracle, or without one by the score of the completion `plain`."""
        if self.has_oracle:
            return self.task.oracle(answer, truth)
        return self.task.score_completion(plain, truth).correct

    def _ask(self, answer: str | None, truth: Json, index: int) -> bool | None:
        """The oracle's result for an answer on which the scorer failed; None if it cannot tell."""
        if answer is None or not self.has_oracle:
            return None
        self._timer.start(2 * index + 1)
        try:
            right = self.task.oracle(answer, truth)
        except TinyZeroError:
            return None
        return None if right is None else bool(right)

    def _describe_error(self, text: str, truth: Json) -> tuple[str | None, str]:
        """The answer, and the exception with its line; scores again, since the score guard keeps only the first one."""
        answer = None
        try:
            answer = self.task.extract_answer(text)
            if answer is not None:
                self.task.score(answer, truth)
        except BaseException as error:  # the score guard catches all of these
            frame = traceback.extract_tb(error.__traceback__, limit=-1)[0]
            return answer, f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        return answer, "an error that did not recur"
