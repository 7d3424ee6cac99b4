"""A task's oracle in place of its scorer, so that a `ScoringPool` runs it in worker processes under limits."""

from typing import cast

from tinyzero_sdk.errors import describe_error
from tinyzero_sdk.records import Completion, Json, Score, ScoreColumns
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.text import last_answer, strip_special_tokens


def has_oracle(task: Task) -> bool:
    return bool(task.plugin_manager.hook.oracle.get_hookimpls())


def oracle_pool(task: Task, *, timeout: float, memory_limit_gb: float) -> ScoringPool:
    """A pool of one worker, in which the oracle scores."""
    return ScoringPool(cast(Task, OracleScorer(task)), timeout=timeout, memory_limit_gb=memory_limit_gb)


class OracleScorer:
    """Scores completions by the task's oracle; it has what a pool uses of a `Task`.

    The oracle judges the answer that the task extracts, and the last one that is marked as the SDK reads completions
    (`text.last_answer`), where that is another: a hole in `extract_answer` is no better than one in `score`.
    """

    is_async = compares_completions = False

    def __init__(self, task: Task) -> None:
        self.task, self.name = task, task.name
        self.first_error: str | None = None

    def check_scoring_allowed(self) -> None:
        self.task.check_scoring_allowed()

    def score_into(self, columns: ScoreColumns, completion: Completion | str, ground_truth: Json) -> None:
        """Add the fraction of the answers that are right, 0 without an answer; `no_answer` = the oracle cannot tell."""
        columns.add(self._score(completion if isinstance(completion, str) else completion.text, ground_truth), None)

    def _score(self, text: str, ground_truth: Json) -> Score:
        try:
            readings = {self.task.extract_answer(text), last_answer(strip_special_tokens(text))} - {None}
            truth = self.task.read_truth(ground_truth)
            judged = [self.task.oracle(reading, truth) for reading in sorted(filter(None, readings))]
        except Exception as error:  # of the task's code
            self.first_error = self.first_error or describe_error(error)
            return Score(0.0, False, "error")
        verdicts = [bool(right) for right in judged if right is not None]
        if readings and not verdicts:
            return Score(0.0, False, "no_answer")
        value = sum(verdicts) / max(1, len(verdicts))
        return Score(value, value == 1, "ok" if value == 1 else "wrong")
