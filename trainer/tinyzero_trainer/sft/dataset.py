"""A task's demonstrations as training batches: sampled, tokenized and packed in this process or in worker processes.

Batch k depends on the settings alone, so any number of workers gives the same batches in the same order.
"""

import itertools
import os
import signal
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tinyzero_sdk import Task
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.workers.process import to_picklable_error
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.mixture import next_share
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.sft.tiny_model import build_tokenizer
from tinyzero_trainer.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_PROBLEMS = 20_000
"""Different problems to demonstrate; few demonstrations are seen twice."""

_ENOUGH = 64

_LENGTH_STEP = 64  # rows are a multiple of it long, for attention kernels


@dataclass(frozen=True, slots=True)
class Example:
    prompt: list[int]
    demonstration: list[int]
    """Token IDs trained on, with the end token."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.demonstration)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Examples packed into rows of equal length, several in a row; all arrays but the last are [rows, length]."""

    tokens: np.ndarray
    """int32; the end of a row is filled with padding."""

    owners: np.ndarray
    """int16: which example of its row a token belongs to, 1-based; 0 = padding."""

    positions: np.ndarray
    predicts: np.ndarray
    """[trained] int64: flat indices of the tokens whose next token is a target."""


def pack(examples: Sequence[Example], *, length: int, pad_id: int, multiple: int = 1) -> PackedBatch:
    """Pack examples into rows, the longest first, each into the row where the fewest tokens stay free (best fit).

    Args:
        length: tokens of a row; no example is longer.
        multiple: rows of padding are added until their number is a multiple of it.
    """
    rows: list[list[Example]] = []
    free: list[tuple[int, int]] = []  # free tokens and the row, ascending
    for example in sorted(examples, key=len, reverse=True):
        place = bisect_left(free, (len(example), 0))
        left, row = free.pop(place) if place < len(free) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(example)
        insort(free, (left - len(example), row))
    count = -(-max(1, len(rows)) // multiple) * multiple
    tokens = np.full((count, length), pad_id, np.int32)
    owners, positions = np.zeros((2, count, length), np.int16)
    trained = np.zeros((count, length), bool)
    places = np.arange(length, dtype=np.int16)
    for row, row_examples in enumerate(rows):
        ends = itertools.accumulate(map(len, row_examples))
        for owner, (example, end) in enumerate(zip(row_examples, ends, strict=True), start=1):
            here = slice(end - len(example), end)
            tokens[row, here] = example.prompt + example.demonstration
            owners[row, here] = owner
            positions[row, here] = places[: len(example)]
            trained[row, end - 1 - len(example.demonstration) : end - 1] = True
    return PackedBatch(tokens, owners, positions, np.flatnonzero(trained))


class Demonstrations:
    """Training problems of one task in random order, each time with a new demonstration."""

    def __init__(self, config: SftConfig, task: Task, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._config, self._task, self._tokenizer = config, task, tokenizer
        training, seed = config.training, config.run.seed
        source = PromptSource(task, tokenizer, prompt_template=training.template, test_fraction=training.test_fraction)
        self._prompts = source.sample(MOST_PROBLEMS, seed)
        self._random = Random(derive_seed("order", seed))
        self._sampled = 0
        self.longest = max(len(prompt.token_ids) for prompt in self._prompts) + training.max_tokens
        """Tokens of the longest example there can be."""

    def skip(self, count: int) -> None:
        """Continue as if this many had been sampled."""
        self._random.choices(self._prompts, k=count)
        self._sampled += count

    def sample(self, count: int) -> list[Example]:
        """Sample this many and drop those that are too long, but not all."""
        first, seed = self._sampled, self._config.run.seed
        self._sampled += count
        seeds = [derive_seed("demonstration", seed, number) for number in range(first, self._sampled)]
        examples = self._examples(self._random.choices(self._prompts, k=count), seeds)
        # Otherwise try more, from another random state, so that later ones do not depend on it.
        others = Random(derive_seed("others", seed, first))
        for tried in range(count, _ENOUGH):
            if examples:
                break
            examples = self._examples([others.choice(self._prompts)], [derive_seed("other", seed, first, tried)])
        if not examples:
            raise TinyZeroError(
                f"all of {max(count, _ENOUGH)} demonstrations of task {self._task.name!r} are longer than "
                f"training.max_tokens={self._config.training.max_tokens} tokens; raise it"
            )
        return examples

    def _examples(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Example]:
        texts = [self._task.demonstrate(prompt.item, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        if None in texts:
            raise TinyZeroError(
                f"task {self._task.name!r} gives no demonstrations to learn from; add a `demonstrate` hook, "
                "or train a model of your own with --model"
            )
        # One call for the batch: a tokenizer's cost is per call, not per text.
        encoded = self._tokenizer(cast(list[str], texts), add_special_tokens=False)["input_ids"]
        most = self._config.training.max_tokens
        end = cast(int, self._tokenizer.eos_token_id)
        return [
            Example(prompt.token_ids, [*tokens, end])
            for prompt, tokens in zip(prompts, encoded, strict=True)
            if len(tokens) < most
        ]


class BatchSource(IterableDataset["PackedBatch | TinyZeroError"]):
    """Batches without end, in which tasks have their weights; a worker of a DataLoader makes every n-th of them."""

    def __init__(self, config: SftConfig, tasks: Sequence[Task], multiple: int = 1) -> None:
        self.config, self.tasks, self.multiple = config, tasks, multiple

    def batches(self, worker: int = 0, workers: int = 1) -> Iterator[PackedBatch]:
        """Batches number `worker`, `worker` + `workers`, …"""
        tokenizer, batch_size = build_tokenizer(), self.config.training.batch_size
        weights = [spec.weight for spec in self.config.task_specs]
        sources = [Demonstrations(self.config, task, tokenizer) for task in self.tasks]
        length = -(-max(source.longest for source in sources) // _LENGTH_STEP) * _LENGTH_STEP
        pad_id = cast(int, tokenizer.pad_token_id)
        sampled = [0] * len(sources)
        for number in itertools.count():
            counts = [batch_size] if len(sources) == 1 else [0] * len(sources)
            for _ in range(batch_size - sum(counts)):
                index = next_share(weights, sampled)
                sampled[index] += 1
                counts[index] += 1
            if number % workers == worker:
                examples = [
                    source.sample(count) if count else [] for source, count in zip(sources, counts, strict=True)
                ]
                yield pack([*itertools.chain(*examples)], length=length, pad_id=pad_id, multiple=self.multiple)
            else:
                for source, count in zip(sources, counts, strict=True):
                    source.skip(count)

    def __iter__(self) -> Iterator[PackedBatch | TinyZeroError]:
        worker = get_worker_info()
        if worker is None:
            yield from self.batches()
            return
        try:
            yield from self.batches(worker.id, worker.num_workers)
        except Exception as error:  # a task may raise anything; a DataLoader would bury it in a traceback
            yield to_picklable_error(error)


def _start_worker(worker: int) -> None:
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core


def batch_stream(source: BatchSource, workers: int) -> Generator[PackedBatch]:
    """Batches without end, made in this process or prefetched by others, which end when the generator is closed.

    Raises:
        TinyZeroError: what stopped a worker.
    """
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "worker_init_fn": _start_worker} if workers else {}
    # With a separate generator: a DataLoader draws a seed.
    loader = DataLoader(source, batch_size=None, num_workers=workers, generator=torch.Generator(), **options)
    try:
        for batch in loader:
            if isinstance(batch, TinyZeroError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not workers:
            raise
        raise BrokenTaskError("a process that makes demonstrations has died; messages above may say why") from error
