"""Functions run on several ranks, each in a process of its own, on the CPU."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def on_ranks(count: int, function: Callable[..., Any], directory: Path, *arguments: Any) -> list[Any]:
    """What a function of a module gives on each rank; `directory` is an existing one for what passes between them."""
    store = directory / f"store_of_{count}"
    torch.multiprocessing.spawn(_run, (count, function, str(store), arguments), nprocs=count)
    return [pickle.loads(Path(f"{store}_{rank}").read_bytes()) for rank in range(count)]


def apart(function: Callable[..., Any], directory: Path, *arguments: Any) -> Any:
    """What a function of a module gives in a process of its own; `directory` is an existing one for its result."""
    file = directory / "result"
    torch.multiprocessing.spawn(_run_apart, (function, str(file), arguments), nprocs=1)
    return pickle.loads(file.read_bytes())


def _run_apart(_: int, function: Callable[..., Any], file: str, arguments: tuple[Any, ...]) -> None:
    Path(file).write_bytes(pickle.dumps(function(*arguments)))


def _run(rank: int, count: int, function: Callable[..., Any], store: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
    try:
        Path(f"{store}_{rank}").write_bytes(pickle.dumps(function(*arguments)))
    finally:
        dist.destroy_process_group()
