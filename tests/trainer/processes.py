"""Functions run in other processes, in one or on several ranks, on the CPU or on a GPU each; or on ranks in threads."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
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

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'tinyzero-trainer[ray]'")


def on_ranks(
    count: int, function: Callable[..., Any], directory: Path, *arguments: Any, gpus: bool = False
) -> list[Any]:
    """The results of a module's function on each rank; the ranks find each other by a file in `directory`."""
    store = directory / f"store_of_{count}"
    _start(_run, (count, function, str(store), arguments, gpus), count, gpus=gpus)
    return [pickle.loads(Path(f"{store}_{rank}").read_bytes()) for rank in range(count)]


def on_threads(
    count: int, function: Callable[[SequenceParallelGroup], Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """A function's result on each rank of a sequence-parallel group whose ranks are threads of this process."""
    barrier, values = Barrier(count, timeout=60), list[Any]([None] * count)

    def exchange(index: int, value: Any) -> list[Any]:
        values[index] = value
        barrier.wait()
        everyones = list(values)
        barrier.wait()
        return everyones

    def all_to_all(output: Tensor, input: Tensor, group: Any) -> None:
        torch.stack([pieces[group] for pieces in exchange(group, input.clone())], out=output)

    def all_gather(outputs: list[Tensor], input: Tensor, group: Any) -> None:
        for output, tensor in zip(outputs, exchange(group, input.clone()), strict=True):
            output.copy_(tensor)

    def work(index: int) -> Any:
        try:
            return function(SequenceParallelGroup(count, index, cast(Any, index)))
        except BaseException:
            barrier.abort()
            raise

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as threads:
        patch.setattr(ulysses, "dist", SimpleNamespace(all_to_all_single=all_to_all, all_gather=all_gather))
        return list(threads.map(work, range(count)))


def in_own_process(function: Callable[..., Any], directory: Path, *arguments: Any, gpus: bool = False) -> Any:
    """The result of a module's function in a new process, which passes through a file in `directory`."""
    file = directory / "result"
    _start(_run_in_own_process, (function, str(file), arguments), 1, gpus=gpus)
    return pickle.loads(file.read_bytes())


def _start(function: Callable[..., Any], arguments: tuple[Any, ...], count: int, *, gpus: bool) -> None:
    """Call a function in processes, with the index of each first, in the current environment."""
    # Forked from one that has imported torch, which would take each of them seconds; but CUDA allows no fork of a
    # process that has as much as asked whether there is a GPU.
    multiprocessing.set_forkserver_preload([preloaded.__name__])
    torch.multiprocessing.start_processes(
        _in_environment,
        (dict(os.environ), function, arguments),
        count,
        start_method="spawn" if gpus else "forkserver",
    )


def _in_environment(
    index: int, environment: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(index, *arguments)


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
