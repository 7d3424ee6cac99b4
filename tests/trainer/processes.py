"""Functions run on several ranks, each in a process of its own, on the CPU or on a GPU each; or each in a thread."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer import preloaded
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.groups import SequenceParallelGroup


def on_ranks(
    count: int, function: Callable[..., Any], directory: Path, *arguments: Any, gpus: bool = False
) -> list[Any]:
    """What a function of a module gives on each rank; `directory` is an existing one for what passes between them."""
    store = directory / f"store_of_{count}"
    given = (count, function, str(store), arguments, gpus)
    if gpus:
        torch.multiprocessing.spawn(_run, given, nprocs=count)
    else:
        _start(_run, given, count)
    return [pickle.loads(Path(f"{store}_{rank}").read_bytes()) for rank in range(count)]


class ThreadGroup:
    """Stands for a process group whose ranks are threads of this process."""

    def __init__(self, count: int) -> None:
        self._barrier, self._given = Barrier(count, timeout=60), list[Any]([None] * count)

    def exchange(self, index: int, given: Any) -> list[Any]:
        """What all have given."""
        self._given[index] = given
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        return found

    def abort(self) -> None:
        """Nobody waits any longer."""
        self._barrier.abort()


def on_threads(
    count: int, function: Callable[[SequenceParallelGroup], Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What a function gives on each of the ranks that share a line, where these are threads."""
    peers = ThreadGroup(count)

    def all_to_all(taken: Tensor, given: Tensor, group: Any) -> None:
        found = peers.exchange(group, given.clone())
        torch.stack([pieces[group] for pieces in found], out=taken)

    def all_gather(taken: list[Tensor], given: Tensor, group: Any) -> None:
        for here, there in zip(taken, peers.exchange(group, given.clone()), strict=True):
            here.copy_(there)

    def work(index: int) -> Any:
        try:
            return function(SequenceParallelGroup(count, index, cast(Any, index)))
        except BaseException:
            peers.abort()
            raise

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as threads:
        patch.setattr(ulysses, "dist", SimpleNamespace(all_to_all_single=all_to_all, all_gather=all_gather))
        return list(threads.map(work, range(count)))


def in_own_process(function: Callable[..., Any], directory: Path, *arguments: Any) -> Any:
    """What a function of a module gives in a process of its own; `directory` is an existing one for its result."""
    file = directory / "result"
    _start(_run_in_own_process, (function, str(file), arguments), 1)
    return pickle.loads(file.read_bytes())


def _start(function: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> None:
    """Call a function in processes, with the place of each among them first; theirs is the environment of now."""
    # Forked from one that has imported torch, which takes each of them seconds else.
    multiprocessing.set_forkserver_preload([preloaded.__name__])
    torch.multiprocessing.start_processes(
        _in_environment, (dict(os.environ), function, arguments), count, start_method="forkserver"
    )


def _in_environment(
    place: int, environment: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(place, *arguments)


def _run_in_own_process(_: int, function: Callable[..., Any], file: str, arguments: tuple[Any, ...]) -> None:
    Path(file).write_bytes(pickle.dumps(function(*arguments)))


def _run(
    rank: int, count: int, function: Callable[..., Any], store: str, arguments: tuple[Any, ...], gpus: bool
) -> None:
    torch.set_num_threads(1)
    if gpus:
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(store, count), rank=rank, world_size=count)
    try:
        Path(f"{store}_{rank}").write_bytes(pickle.dumps(function(*arguments)))
    finally:
        dist.destroy_process_group()
