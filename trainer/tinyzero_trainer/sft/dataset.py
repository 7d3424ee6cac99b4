"""A task's demonstrations as batches to learn from: drawn, tokenised and packed here or in worker processes.

Batch k depends on the settings alone, so any number of workers gives the same batches in the same order. What is
learnt from them is train.py's business.
"""

import pickle
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from multiprocessing.connection import Connection
from random import Random
from typing import TYPE_CHECKING, cast

import numpy as np

from tinyzero_sdk import Task
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.workers.process import SharedTimer, WorkerProcess, to_picklable_error
from tinyzero_trainer.config import DataConfig
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.mixture import next_share
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.sft.tiny_model import build_tokenizer
from tinyzero_trainer.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_PROBLEMS = 20_000
"""Different problems that demonstrations are made for; a demonstration is hardly ever seen twice anyway."""

_ENOUGH = 64
"""Demonstrations of which one has to be short enough, or the settings are at fault and not chance."""

_LENGTH_STEP = 64  # lines are a multiple of it long, which attention kernels like
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false"}  # one process a core is the plan


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a demonstration that follows it."""

    prompt: list[int]
    """Tokens that are given."""

    demonstration: list[int]
    """Tokens that are learnt, the end token included."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.demonstration)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Examples in lines of equal length, several in a line; all arrays but the last are [lines, length]."""

    tokens: np.ndarray
    """int32; what is left at the end of a line is filled with padding."""

    owners: np.ndarray
    """int16: which example of its line a token belongs to, counted from 1; 0 = padding."""

    positions: np.ndarray
    """int16: place of each token in its own example."""

    predicts: np.ndarray
    """[learnt] int64: flat places of the tokens whose next token is learnt."""


def pack(examples: Sequence[Example], *, length: int, pad_id: int, multiple: int = 1) -> PackedBatch:
    """Lay out examples in lines, the longest first, each in the line where the least is left over.

    Args:
        examples: none longer than `length`.
        length: of a line.
        pad_id: token that fills up.
        multiple: lines of padding are added until their number is a multiple of it.
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
    learnt = np.zeros((count, length), bool)
    places = np.arange(length, dtype=np.int16)
    for row, line_examples in enumerate(lines):
        ends = accumulate(map(len, line_examples))
        for owner, (example, end) in enumerate(zip(line_examples, ends, strict=True), start=1):
            here = slice(end - len(example), end)
            tokens[row, here] = example.prompt + example.demonstration
            owners[row, here] = owner
            positions[row, here] = places[: len(example)]
            learnt[row, end - 1 - len(example.demonstration) : end - 1] = True
    return PackedBatch(tokens, owners, positions, np.flatnonzero(learnt))


class Demonstrations:
    """Training problems of one task in random order, each time with a new demonstration."""

    def __init__(self, config: SftConfig, task: Task, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._config, self._task, self._tokenizer = config, task, tokenizer
        training, seed = config.training, config.run.seed
        data = DataConfig(prompt_template=training.template, test_fraction=training.test_fraction)
        self._prompts = PromptSource(task, tokenizer, data).some(MOST_PROBLEMS, seed)
        self._random = Random(derive_seed("order", seed))
        self._drawn = 0
        self.longest = max(len(prompt.token_ids) for prompt in self._prompts) + training.max_tokens
        """Tokens of the longest example there can be."""

    def skip(self, count: int) -> None:
        """Go on as if so many had been drawn."""
        self._random.choices(self._prompts, k=count)
        self._drawn += count

    def draw(self, count: int) -> list[Example]:
        """So many more, without those that are too long; one at least.

        Raises:
            TinyZeroError: the task has none, or all are too long.
        """
        first, seed = self._drawn, self._config.run.seed
        self._drawn += count
        seeds = [derive_seed("demonstration", seed, number) for number in range(first, self._drawn)]
        examples = self._examples(self._random.choices(self._prompts, k=count), seeds)
        # In their place others are tried, drawn apart, so that those to come are the same whoever draws them.
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
    """What batches are made from; crosses to worker processes."""

    config: SftConfig
    """Of the warm start."""

    tasks: tuple[Task, ...]
    """In the order of its shares."""

    multiple: int = 1
    """Of which the number of lines of each batch is a multiple."""

    def batches(self, place: int = 0, workers: int = 1) -> Iterator[PackedBatch]:
        """Batches for ever, in which each task has its share: those numbered `place`, `place` + `workers`, …"""
        tokenizer = build_tokenizer()
        weights = [share.weight for share in self.config.task_shares()]
        sources = [Demonstrations(self.config, task, tokenizer) for task in self.tasks]
        length = -(-max(source.longest for source in sources) // _LENGTH_STEP) * _LENGTH_STEP
        pad_id = cast(int, tokenizer.pad_token_id)
        drawn, number = [0] * len(sources), 0
        while True:
            before = list(drawn)
            for _ in range(self.config.training.batch_size if len(sources) > 1 else 0):
                drawn[next_share(weights, drawn)] += 1
            counts = [after - earlier for after, earlier in zip(drawn, before, strict=True)]
            counts = counts if len(sources) > 1 else [self.config.training.batch_size]
            if number % workers == place:
                examples = [
                    example
                    for source, count in zip(sources, counts, strict=True)
                    if count
                    for example in source.draw(count)
                ]
                yield pack(examples, length=length, pad_id=pad_id, multiple=self.multiple)
            else:
                for source, count in zip(sources, counts, strict=True):
                    source.skip(count)
            number += 1


@contextmanager
def batch_stream(source: BatchSource, workers: int) -> Iterator[Iterator[PackedBatch]]:
    """Batches for ever, made in this process or ahead of time in others, which leaving the context ends.

    Args:
        source: of the batches.
        workers: processes; 0 = this one.
    """
    if not workers:
        yield source.batches()
        return
    with ExitStack() as stack:
        processes = []
        for place in range(workers):
            service = partial(_serve, source=source, place=place, workers=workers)
            process = WorkerProcess(pickle.dumps(source.tasks[0]), service, _ONE_THREAD)
            stack.callback(process.close)
            processes.append(process)
        yield _received([process.connection for process in processes])


def _received(connections: Sequence[Connection]) -> Iterator[PackedBatch]:
    """What workers send, each in its turn.

    Raises:
        TinyZeroError: what stopped a worker.
    """
    for connection in cycle(connections):
        try:
            message = connection.recv()
            if message is None:  # it has loaded the task
                message = connection.recv()
        except (EOFError, OSError):
            raise BrokenTaskError(
                "a process that makes demonstrations has ended; messages above may tell why"
            ) from None
        if isinstance(message, TinyZeroError):
            raise message
        yield message


def _serve(
    task: Task, connection: Connection, timer: SharedTimer, *, source: BatchSource, place: int, workers: int
) -> None:
    """What a worker does (see `worker.Service`): send batches as fast as they are taken."""
    del task, timer
    try:
        for batch in source.batches(place, workers):
            connection.send(batch)
    except BrokenPipeError:
        pass  # the parent has enough
    except Exception as error:  # a task may raise anything; the parent says it
        connection.send(to_picklable_error(error))
