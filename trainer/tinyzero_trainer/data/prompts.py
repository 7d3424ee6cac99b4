"""From a task's problems to prompts: an endless stream for training, a fixed list for evaluation."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Annotated, Self

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Item, Task
from tinyzero_sdk.data.file_task import FileTask, RowItem
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Split
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_trainer.config import CurriculumConfig, DataConfig
from tinyzero_trainer.data.curriculum import (
    SAMPLE,
    PassRates,
    bucket_edges,
    bucket_of,
    bucket_weights,
    choose_bucket,
    updated_rates,
)
from tinyzero_trainer.data.tokenization import encode_prompt
from tinyzero_trainer.types import Prompt, Rollout

Count = Annotated[int, Field(ge=0, lt=2**63)]  # what islice takes
EVALUATION_SEED = 0
"""The held-out problems are the same in every run of a task, whatever the run's own seed."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """Position of a task's training stream; part of a checkpoint."""

    taken: Count = 0
    epoch: Count = 0
    read: Count = 0
    """Problems of this epoch that were read: those handed out, and those that wait for their bucket."""

    taken_from: tuple[Count, ...] = (0,)
    """Problems of this epoch handed out from each bucket."""

    pass_rates: PassRates = (None,)

    data_version: str | None = None
    """`Task.data_version` when the stream began."""


class PromptSource:
    """Problems of one task as prompts for one model."""

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "",
        prompt_template: str | None = DataConfig.prompt_template,
        test_fraction: float = DataConfig.test_fraction,
        max_prompt_tokens: int = DataConfig.max_prompt_tokens,
    ) -> None:
        """`name` is what the run calls the task; without a template, it is `chat` if the model has one, else `base`."""
        self.task, self.name = task, name or task.name
        self._tokenizer, self._max_tokens = tokenizer, max_prompt_tokens
        self._test_fraction = DEFAULT_TEST_FRACTION if task.has_own_splits else test_fraction
        self.template = prompt_template or ("chat" if tokenizer.chat_template else "base")

    def stream(
        self, seed: int, progress: StreamState | None = None, curriculum: CurriculumConfig | None = None
    ) -> "PromptStream":
        """Problems of the training split without end: each once, then all again in another order."""
        if isinstance(self.task, FileTask):  # a prompt that is too long would stop the run later
            chat = [Message(role="user", content="?")] if self._tokenizer.chat_template else "?"
            around = len(encode_prompt(self._tokenizer, chat)[0].encode()) + 1  # a BOS
            for item in self.task.may_exceed("train", self._test_fraction, self._max_tokens, around):
                self.prompt(item)
        return PromptStream(self, seed, progress or StreamState(), curriculum or CurriculumConfig())

    def held_out(self, count: int) -> list[Prompt]:
        """The first `count` problems of the test split, or all of them."""
        return [self.prompt(item) for item in self._items("test", EVALUATION_SEED, count)]

    def items(self, seed: int, count: int) -> Iterator[Item]:
        """The first `count` problems of the training split, or all of them."""
        return self._items("train", seed, count)

    def prompt(self, item: Item, bucket: int = 0) -> Prompt:
        """The prompt of one problem; a `DataError` if it is empty or longer than `max_prompt_tokens`."""
        prompt = self.task.make_prompt(item, self.template)
        if isinstance(item, RowItem) and not isinstance(prompt, str) and len(prompt) == 1:
            prompt = prompt if self._tokenizer.chat_template else prompt[0]["content"]  # files have no plain text
        text, token_ids = encode_prompt(self._tokenizer, prompt)
        if not 0 < len(token_ids) <= self._max_tokens:
            where = f"{item.place}: the" if isinstance(item, RowItem) else "a"
            raise DataError(
                f"{where} prompt of task {self.name!r} has {len(token_ids)} tokens, expected 1 to "
                f"{self._max_tokens}; raise data.max_prompt_tokens (of sft data.max_length), or change the template"
            )
        return Prompt(item, text, token_ids, self.name, bucket)

    def epoch(self, seed: int, number: int, start: int = 0) -> Iterator[Item]:
        """The problems of the training split from number `start` on, in the order of this epoch (0-based)."""
        return self._items("train", derive_seed("epoch", seed, number), None, start)

    def _items(self, split: Split, seed: int, most: int | None, start: int = 0) -> Iterator[Item]:
        """Different problems of a split: `most` or all of them, and at least one."""
        has_some = start > 0
        try:
            for item in self.task.dataset(split, most, seed=seed, test_fraction=self._test_fraction, start=start):
                has_some = True
                yield item
        except DataError:
            if not has_some:
                raise


class PromptStream(Iterator[Prompt]):
    """The training problems of one task without end, each once per epoch.

    With a curriculum the bucket of each problem is sampled, and problems of other buckets wait in order: an epoch ends
    when none is waiting. Sampling depends on how many came before, so a resumed stream gives the same problems.
    """

    def __init__(self, source: PromptSource, seed: int, progress: StreamState, curriculum: CurriculumConfig) -> None:
        """Raises:
        SettingsError: with a curriculum, the difficulty of a problem is unknown.
        """
        self._source, self._seed, self._curriculum = source, seed, curriculum
        self._edges, self._sizes = self._find_buckets() if curriculum.buckets else ((), [1])
        count = len(self._sizes)
        version = source.task.data_version
        if progress == StreamState():
            progress = replace(progress, taken_from=(0,) * count, pass_rates=(None,) * count, data_version=version)
        if progress.data_version != version:
            raise SettingsError(
                f"data.path or data.test_path has not the problems of task {source.name!r} that the checkpoint has; "
                "restore the files, or start a run in another --output"
            )
        if not len(progress.taken_from) == len(progress.pass_rates) == count:
            raise SettingsError(
                f"the checkpoint has {len(progress.taken_from)} buckets of task {source.name!r}, and the run {count}; "
                "delete the checkpoint to resume from the one before it"
            )
        self.progress = progress
        self._weights = bucket_weights(progress.pass_rates, self._sizes, curriculum)
        self._waiting: list[deque[Item]] = [deque() for _ in range(count)]
        start = 0 if self._edges else progress.read  # without buckets none waits
        self._items = source.epoch(seed, progress.epoch, start)
        if self._edges:  # what was read of this epoch is sorted again, and what was handed out is skipped
            for item in islice(self._items, progress.read):
                self._sort(item)
            for waiting, taken in zip(self._waiting, progress.taken_from, strict=True):
                for _ in range(taken):
                    waiting.popleft()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Prompt:
        bucket = self._choose()
        item = self._waiting[bucket].popleft()
        progress = self.progress
        taken_from = tuple(count + (place == bucket) for place, count in enumerate(progress.taken_from))
        self.progress = replace(progress, taken=progress.taken + 1, taken_from=taken_from)
        return self._source.prompt(item, bucket)

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        """Update the pass rates and the weights of the buckets.

        Returns:
            `bucket_K/weight` during the step and `bucket_K/pass_rate` after it; nothing without a curriculum.
        """
        if not self._curriculum.buckets:
            return {}
        used, results = self._weights, ((sample.prompt.bucket, sample.score.correct) for sample in samples)
        rates = updated_rates(self.progress.pass_rates, results, self._curriculum)
        self.progress = replace(self.progress, pass_rates=rates)
        self._weights = bucket_weights(rates, self._sizes, self._curriculum)
        metrics = {f"bucket_{bucket}/weight": weight for bucket, weight in enumerate(used)}
        return metrics | {f"bucket_{bucket}/pass_rate": rate for bucket, rate in enumerate(rates) if rate is not None}

    def _find_buckets(self) -> tuple[tuple[float, ...], list[int]]:
        items = list(islice(self._source.epoch(self._seed, 0), SAMPLE))
        difficulties = [self._source.task.difficulty(item) for item in items]
        edges = bucket_edges(difficulties, self._curriculum.buckets, task=self._source.name)
        sizes = Counter(bucket_of(difficulty, edges) for difficulty in difficulties)
        return edges, [sizes[bucket] for bucket in range(len(edges) + 1)]

    def _choose(self) -> int:
        """The bucket of the next problem, which waits there: sampled from those with one left in this epoch."""
        chance = 0.0
        if self._edges:
            chance = Random(derive_seed("curriculum", self._seed, self._source.name, self.progress.taken)).random()
        available = list(range(len(self._waiting)))
        while available:
            bucket = choose_bucket(self._weights, available, chance)
            if self._waiting[bucket] or self._read_until(bucket):
                return bucket
            # The epoch has been read to its end: only waiting problems are left.
            available = [place for place, waiting in enumerate(self._waiting) if waiting]
        epoch = self.progress.epoch + 1
        self.progress = replace(self.progress, epoch=epoch, read=0, taken_from=(0,) * len(self._waiting))
        self._items = self._source.epoch(self._seed, epoch)
        return self._choose()

    def _read_until(self, bucket: int) -> bool:
        """Read until a problem of `bucket` comes; False at the end of the epoch."""
        for item in self._items:
            self.progress = replace(self.progress, read=self.progress.read + 1)
            if self._sort(item) == bucket:
                return True
        return False

    def _sort(self, item: Item) -> int:
        bucket = bucket_of(self._source.task.difficulty(item), self._edges) if self._edges else 0
        self._waiting[bucket].append(item)
        return bucket
