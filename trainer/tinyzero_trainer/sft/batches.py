"""Batches of examples: made in this process, or ahead of it in worker processes.

Batch k depends on the settings alone, so any number of workers gives the same batches in the same order.
"""

import itertools
import multiprocessing
import os
import signal
import warnings
from collections.abc import Generator, Iterator, Mapping
from multiprocessing import forkserver
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tinyzero_sdk import Task
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.workers.process import to_picklable_error
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.mixture import next_share
from tinyzero_trainer.sft.examples import Encoder, ExampleSource, TaskExamples
from tinyzero_trainer.sft.file_examples import ExampleFile, FileExamples
from tinyzero_trainer.types import Rollout

# Not fork: this process has threads. Not spawn: each worker would import torch and transformers, for half a minute.
_FORKSERVER = multiprocessing.get_context("forkserver")


class Batches(IterableDataset["list[Rollout] | TinyZeroError"]):
    """Batches without end, in which tasks have their weights; a worker of a DataLoader makes every n-th of them."""

    def __init__(
        self,
        config: SftConfig,
        tasks: Mapping[str, Task],
        encoder: Encoder,
        file: ExampleFile | None = None,
        first: int = 0,
    ) -> None:
        """From batch number `first` on, of `file` or of what the tasks make."""
        self.config, self.tasks, self.encoder, self.file, self.first = config, tasks, encoder, file, first

    def sources(self) -> list[ExampleSource]:
        """The file, or each task."""
        if self.file is not None:
            return [FileExamples(self.config, self.file, self.tasks, self.encoder)]
        return [TaskExamples(self.config, name, task, self.encoder) for name, task in self.tasks.items()]

    def batches(self, worker: int = 0, workers: int = 1) -> Iterator[list[Rollout]]:
        """Batches number `first` + `worker`, `first` + `worker` + `workers`, …"""
        sources, batch_size = self.sources(), self.config.data.batch_size
        weights = [spec.weight for spec in self.config.task_specs]
        sampled = [0] * len(sources)
        for number in itertools.count():
            counts = [batch_size] if len(sources) == 1 else [0] * len(sources)
            for _ in range(batch_size - sum(counts)):
                index = next_share(weights, sampled)
                sampled[index] += 1
                counts[index] += 1
            if number >= self.first and (number - self.first) % workers == worker:
                batch = [source.sample(count) for source, count in zip(sources, counts, strict=True) if count]
                yield [*itertools.chain(*batch)]
            else:
                for source, count in zip(sources, counts, strict=True):
                    source.skip(count)

    def __iter__(self) -> Iterator[list[Rollout] | TinyZeroError]:
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
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # of the terminal: the parent ends its workers
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker for each core


def prepare_workers() -> None:
    """Start the process that workers are forked from: it imports what they need while the model is loaded."""
    _FORKSERVER.set_forkserver_preload([__name__])
    forkserver.ensure_running()


def batch_stream(batches: Batches, workers: int) -> Generator[list[Rollout]]:
    """Batches without end, made in this process or prefetched by others, which end when the generator is closed.

    Raises:
        TinyZeroError: what stopped a worker.
    """
    options: dict[str, Any] = {"multiprocessing_context": _FORKSERVER, "worker_init_fn": _start_worker}
    with warnings.catch_warnings():
        # Whether there are more than cores is the user's choice.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        # With a separate generator: a DataLoader draws a seed.
        generator, options = torch.Generator(), options if workers else {}
        loader = DataLoader(batches, batch_size=None, num_workers=workers, generator=generator, **options)
    stream: Any = iter(loader)
    try:
        for batch in stream:
            if isinstance(batch, TinyZeroError):
                raise batch
            yield batch
    except RuntimeError as error:
        if not workers:
            raise
        raise BrokenTaskError("a process that makes examples has died; messages above may say why") from error
    finally:
        for process in stream._workers if workers else ():  # the loader would wait for those that hang
            process.kill()
