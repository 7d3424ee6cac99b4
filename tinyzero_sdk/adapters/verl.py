"""A task as verl's reward function, `compute_score(data_source, solution_str, ground_truth, extra_info)`.

In verl's configuration, for files that `tinyzero data` wrote (their `data_source` names the task):

    reward.custom_reward_function.path=pkg://tinyzero_sdk.adapters.verl
    reward.custom_reward_function.name=compute_score

The keys of `reward.custom_reward_function.reward_kwargs` (`+reward.…` on the command line) are passed on: `task`,
 `options`, `workers`, `timeout`, `details`, `allow_unsafe_scorers`. verl itself is not imported.
"""

import difflib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.data.rows import plain
from tinyzero_sdk.errors import SettingsError, TaskNotFoundError, did_you_mean
from tinyzero_sdk.records import Completion
from tinyzero_sdk.tasks.local_packages import is_path
from tinyzero_sdk.tasks.registry import list_tasks, load_task
from tinyzero_sdk.tasks.task import Task

KEYS = ("task", "options", "workers", "timeout", "details", "allow_unsafe_scorers")
"""Keys of `reward_kwargs` for `compute_score`."""

_OF_VERL = frozenset({"reward_router_address", "reward_model_tokenizer"})  # of a served reward model


class ComputeScore(Scorer):
    """One task as a callable of verl's signature, for any `data_source`; it pickles.

    Example:
        >>> compute_score = ComputeScore("countdown")
        >>> compute_score("any", "<answer>3 + 4</answer>", {"target": 7, "numbers": [3, 4]})
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
        **others: Any,
    ) -> float | dict[str, float | str]:
        """The reward of one response; `data_source` and `extra_info` are ignored.

        Args:
            solution_str: the decoded response.
            ground_truth: from the row's `reward_model`; may contain numpy arrays.
            details: return `score`, `acc` (1 if solved) and `reason`, which verl turns into metrics.
            others: other arguments of verl, such as the address of a reward model.

        Raises:
            SettingsError: `details` is misspelt.
            BrokenTaskError: the scorer fails on everything.
        """
        _check_others(others, ("details",))
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
    timeout: float = 5.0,
    details: bool = False,
    allow_unsafe_scorers: bool = False,
    **others: Any,
) -> float | dict[str, float | str]:
    """The reward of one response by the task `task`, or else `data_source`.

    Raises:
        TinyZeroError: no such task, the options do not fit it, a key is misspelt, or the scorer fails on everything.
    """
    _check_others(others, KEYS)
    if task is None and is_path(data_source):
        raise SettingsError(
            f"the data source {data_source!r} is a task file, which a data file may not choose; "
            f"if you trust it, name it: reward_kwargs.task={data_source}"
        )
    frozen = json.dumps(plain(options or {}), sort_keys=True)
    try:
        scorer = _open(task or data_source, frozen, workers, timeout, allow_unsafe_scorers)
    except TaskNotFoundError:
        if task is not None:
            raise
        last = data_source.rpartition("/")[2].lower()  # `gsm8k` of `openai/gsm8k`
        alike = difflib.get_close_matches(last, [entry.name for entry in list_tasks()], n=1)
        raise TaskNotFoundError(
            f"no task {data_source!r}, the data_source of the row; name the task that scores such rows: "
            f"reward_kwargs.task={(*alike, 'NAME')[0]}"
        ) from None
    return scorer(data_source, solution_str, ground_truth, extra_info, details=details)


def _check_others(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuse misspelt keys; warn of other unknown keys, which a newer verl may pass."""
    for name in names:
        if name in _OF_VERL:
            continue
        if hint := did_you_mean(name, known).strip():
            raise SettingsError(f"no key {name!r} in reward_kwargs; {hint}")
        warnings.warn(f"the key {name!r} has no effect on the reward; known: {', '.join(known)}", stacklevel=3)


@cache
def _open(name: str, options: str, workers: int, timeout: float, allow_unsafe_scorers: bool) -> ComputeScore:
    task: Task = load_task(name, options=json.loads(options), allow_unsafe_scorers=allow_unsafe_scorers)
    return ComputeScore(task, workers=workers, timeout=timeout)
