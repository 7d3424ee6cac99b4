"""A task's demonstrations as training batches: sampled, tokenised and packed in this process or in worker processes.

Batch k depends on the settings alone, so any number of workers gives the same batches in the same order.
"""

import os
import signal
from bisect import bisect_left, insort
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
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
"""Different problems that demonstrations are made for; few demonstrations are seen twice anyway."""

_ENOUGH = 64
"""If none of this many demonstrations is short enough, the settings are at fault and not chance."""

_LENGTH_STEP = 64  # rows are a multiple of it long, for attention kernels


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a demonstration that follows it."""

    prompt: list[int]
    """Token IDs, not trained on."""

    demonstration: list[int]
    """Token IDs that are trained on, the end token included."""

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
    """int16: position of each token in its own example."""

    predicts: np.ndarray
    """[trained] int64: flat indices of the tokens whose next token is a target."""


def pack(examples: Sequence[Example], *, length: int, pad_id: int, multiple: int = 1) -> PackedBatch:
    """Pack examples into rows, the longest first, each into the row where the least is left over (best fit).

    Args:
        examples: none longer than `length`.
        length: tokens of a row.
        pad_id: padding token.
        multiple: rows of padding are added until their number is a multiple of it.
    """
    lines: list[list[Example]] = []
    free: list[tuple[int, int]] = []  # tokens left and the line, rising
    for example in sorted(examples, key=len, reverse=True):
        place = bisect_left(free, (len(example), 0))
        left, line = free.pop(place) if place < len(free) else (length, len(lines))
        if line == len(lines):
            lines.append([])
        lines[line].append(example)
        insort(free, (left - len(example), line))
    count = -(-max(1, len(lines)) // multiple) * multiple
    tokens = np.full((count, length), pad_id, np.int32)
    owners, positions = np.zeros((2, count, length), np.int16)
    trained = np.zeros((count, length), bool)
    places = np.arange(length, dtype=np.int16)
    for row, line_examples in enumerate(lines):
        ends = accumulate(map(len, line_examples))
        for owner, (example, end) in enumerate(zip(line_examples, ends, strict=True), start=1):
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
        """Sample this many more and leave out those that are too long; at least one is left.

        Raises:
            TinyZeroError: the task has none, or all are too long.
        """
        first, seed = self._sampled, self._config.run.seed
        self._sampled += count
        seeds = [derive_seed("demonstration", seed, number) for number in range(first, self._sampled)]
        examples = self._examples(self._random.choices(self._prompts, k=count), seeds)
        # In their place others are tried, sampled apart, so that those to come are the same whoever draws them.
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
        """Demonstrations of problems, without those that are too long."""
        texts = [self._task.demonstrate(prompt.item, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        if None in texts:
            raise TinyZeroError(
                f"task {self._task.name!r} gives no demonstrations to learn from; add a `demonstrate` hook, "
                "or train a model of your own with --model"
            )
        # One call for the whole batch: the tokenizer's cost is a call's, not a text's.
        encoded = self._tokenizer(cast(list[str], texts), add_special_tokens=False)["input_ids"]
        most = self._config.training.max_tokens
        end = cast(int, self._tokenizer.eos_token_id)
        return [
            Example(prompt.token_ids, [*tokens, end])
            for prompt, tokens in zip(prompts, encoded, strict=True)
            if len(tokens) < most
        ]


@dataclass(frozen=True)
class BatchSource:
    """What batches are made from; sent to worker processes."""

    config: SftConfig

    tasks: tuple[Task, ...]
    """In the order of its specs."""

    multiple: int = 1
    """The number of rows of each batch is a multiple of it."""

    def batches(self, place: int = 0, workers: int = 1) -> Iterator[PackedBatch]:
        """Batches without end, in which tasks have their weights: those numbered `place`, `place` + `workers`, …"""
        tokenizer = build_tokenizer()
        weights = [spec.weight for spec in self.config.task_specs]
        sources = [Demonstrations(self.config, task, tokenizer) for task in self.tasks]
        length = -(-max(source.longest for source in sources) // _LENGTH_STEP) * _LENGTH_STEP
        pad_id = cast(int, tokenizer.pad_token_id)
        sampled, number = [0] * len(sources), 0
        while True:
            before = list(sampled)
            for _ in range(self.config.training.batch_size if len(sources) > 1 else 0):
                sampled[next_share(weights, sampled)] += 1
            counts = [after - earlier for after, earlier in zip(sampled, before, strict=True)]
            counts = counts if len(sources) > 1 else [self.config.training.batch_size]
            if number % workers == place:
                examples = [
                    example
                    for source, count in zip(sources, counts, strict=True)
                    if count
                    for example in source.sample(count)
                ]
                yield pack(examples, length=length, pad_id=pad_id, multiple=self.multiple)
            else:
                for source, count in zip(sources, counts, strict=True):
                    source.skip(count)
            number += 1


class _Batches(IterableDataset[PackedBatch | TinyZeroError]):
    """The batches that a worker of a DataLoader makes, which takes them from its workers in turn."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[PackedBatch | TinyZeroError]:
        worker = get_worker_info()
        if worker is None:
            yield from self._source.batches()
            return
        try:
            yield from self._source.batches(worker.id, worker.num_workers)
        except Exception as error:  # a task may raise anything; a DataLoader would bury it in a traceback
            yield to_picklable_error(error)


def _start_worker(worker: int) -> None:
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core


def batch_stream(source: BatchSource, workers: int) -> Generator[PackedBatch]:
    """Batches without end, made in this process or ahead of time in others, which end when the generator is closed.

    Args:
        source: of the batches.
        workers: processes; 0 = this one.

    Raises:
        TinyZeroError: what stopped a worker.
    """
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "worker_init_fn": _start_worker} if workers else {}
    # A generator of its own: a DataLoader draws a seed.
    loader = DataLoader(_Batches(source), batch_size=None, num_workers=workers, generator=torch.Generator(), **options)
    try:
        for batch in loader:
            if isinstance(batch, TinyZeroError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not workers:
            raise
        raise BrokenTaskError("a process that makes demonstrations has died; messages above may say why") from error
