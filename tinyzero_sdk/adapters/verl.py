"""A task as verl's reward function, `compute_score(data_source, solution_str, ground_truth, extra_info)`.

In verl's configuration, for files that `tinyzero data` wrote (their `data_source` names the task):

    reward.custom_reward_function.path=pkg://tinyzero_sdk.adapters.verl
    reward.custom_reward_function.name=compute_score

What stands under `reward.custom_reward_function.reward_kwargs` (`+reward.…` on the command line) is passed on:
`task`, `options`, `workers`, `time_limit`, `details`, `allow_unsafe_scorers`. verl itself is not imported.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.host import load_task
from tinyzero_sdk.records import Completion
from tinyzero_sdk.task import Task
from tinyzero_sdk.wire import plain


class ComputeScore(Scorer):
    """One task as a callable of verl's signature, for any `data_source`; it pickles.

    Example:
        >>> compute_score = ComputeScore("countdown")  # doctest: +SKIP
        >>> compute_score("any", "<answer>3 + 4</answer>", {"target": 7, "numbers": [3, 4]})  # doctest: +SKIP
        1.0
    """

    def __call__(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        *,
        details: bool = False,
        **unused: Any,
    ) -> float | dict[str, float | str]:
        """The reward of one response.

        Args:
            data_source: not looked at.
            solution_str: the response, decoded.
            ground_truth: of the row's `reward_model`; numpy arrays in it are fine.
            extra_info: not looked at.
            details: return `score`, `acc` (1 if solved) and `reason`, of which verl makes metrics.
            unused: what verl passes besides, such as the address of a reward model.
        """
        [score] = self.score([Completion(solution_str)], [plain(ground_truth)])
        if details:
            return {"score": score.value, "acc": float(score.correct), "reason": score.reason}
        return score.value


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    task: str | None = None,
    options: Mapping[str, Any] | None = None,
    workers: int = 0,
    time_limit: float = 5.0,
    allow_unsafe_scorers: bool = False,
    **others: Any,
) -> float | dict[str, float | str]:
    """The reward of one response, by the task that `task` or else `data_source` names.

    Raises:
        TinyZeroError: no such task, or the options do not fit it.
    """
    if task is None and data_source.endswith(".py"):
        raise SettingsError(
            f"the data source {data_source!r} is a task file, which a data file may not choose; "
            f"if you trust it, name it: reward_kwargs.task={data_source}"
        )
    frozen = json.dumps(_as_json(options or {}), sort_keys=True)
    scorer = _open(task or data_source, frozen, workers, time_limit, allow_unsafe_scorers)
    return scorer(data_source, solution_str, ground_truth, extra_info, **others)


@cache
def _open(name: str, options: str, workers: int, time_limit: float, allow_unsafe_scorers: bool) -> ComputeScore:
    task: Task = load_task(name, options=json.loads(options), allow_unsafe_scorers=allow_unsafe_scorers)
    return ComputeScore(task, workers=workers, time_limit=time_limit)


def _as_json(value: Any) -> Any:
    """Plain JSON of what may be a node of OmegaConf, which looks like a mapping or a sequence and is neither."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(entry) for entry in value]
    return value
