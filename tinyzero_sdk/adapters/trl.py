"""A task as a reward function for TRL, and its problems as a dataset for `GRPOTrainer`.

TRL is not imported, and `datasets` (a dependency of TRL) only by `make_dataset`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.data.rows import plain
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Completion, Json, Split
from tinyzero_sdk.tasks.registry import load_task
from tinyzero_sdk.tasks.task import Task

if TYPE_CHECKING:
    import datasets


class RewardFunction(Scorer):
    """One task for `GRPOTrainer(reward_funcs=[...])`.

    The dataset needs a column `ground_truth`; `make_dataset` makes one.

    Example:
        >>> reward = RewardFunction("countdown")
        >>> truths = [{"target": 7, "numbers": [3, 4]}]
        >>> reward(completions=["<answer>3 + 4</answer>"], ground_truth=truths)
        [1.0]
    """

    @property
    def __name__(self) -> str:
        """Name of the reward in TRL's metrics: `rewards/<task>/mean`."""
        return self.task.name

    def __call__(
        self,
        completions: Sequence[str | list[dict[str, Any]]],
        ground_truth: Sequence[Json] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """The rewards of a batch, from [n] texts or lists of chat messages, and columns of the dataset.

        `log_metric` is TRL's logger, called with the fraction of solved problems as `<task>/accuracy`.

        Raises:
            DataError: the dataset has no column `ground_truth`, or it is not as long as the completions.
            BrokenTaskError: the scorer fails on everything.
        """
        if ground_truth is None:
            raise DataError(
                "the dataset has no column `ground_truth`; make it with tinyzero_sdk.adapters.trl.make_dataset, or "
                "copy the column out of `reward_model`"
            )
        counts = [None] * len(completions) if completion_ids is None else list(map(len, completion_ids))
        texts = map(text_of, completions)
        batch = [Completion(text, count) for text, count in zip(texts, counts, strict=True)]
        scores = self.score(batch, [plain(truth) for truth in ground_truth])
        if log_metric is not None and scores:
            log_metric(f"{self.task.name}/accuracy", sum(score.correct for score in scores) / len(scores))
        return [score.value for score in scores]


def text_of(completion: str | Sequence[dict[str, Any]]) -> str:
    """The text of a completion: plain text, or the content of the last chat message.

    Example:
        >>> text_of([{"role": "assistant", "content": [{"type": "text", "text": "7"}]}])
        '7'
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def rows(
    task: Task | str, size: int, *, split: Split = "train", seed: int = 0, template: str = "chat"
) -> Iterator[dict[str, Json]]:
    """Problems for TRL: `prompt` (chat messages or text, by template) and `ground_truth`."""
    opened = load_task(task) if isinstance(task, str) else task
    for item in opened.dataset(split, size, seed=seed):
        yield {"prompt": opened.make_prompt(item, template), "ground_truth": item.ground_truth}


def make_dataset(
    task: Task | str, size: int, *, split: Split = "train", seed: int = 0, template: str = "chat"
) -> "datasets.Dataset":
    """The same as a `datasets.Dataset`. Use the template `base` for a base model."""
    from datasets import Dataset

    return Dataset.from_list(list(rows(task, size, split=split, seed=seed, template=template)))
