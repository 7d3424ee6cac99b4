"""Which ranks shard a model together, and which share sequences."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tinyzero_trainer.distributed import mesh as meshes
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.distributed.mesh import build_mesh

Meshes = Callable[..., Iterator[tuple[DeviceMesh, DataParallelGroup]]]


@pytest.fixture
def on_each(monkeypatch: pytest.MonkeyPatch) -> Meshes:
    """The mesh of each of several ranks, which do not communicate."""

    def made(count: int, *given: int) -> Iterator[tuple[DeviceMesh, DataParallelGroup]]:
        for rank in range(count):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
            try:
                yield build_mesh("cpu", *given)
            finally:
                dist.destroy_process_group()

    return made


def test_neighbours_share_rows_and_replicas(
    on_each: Meshes,
) -> None:
    for rank, (mesh, ranks) in enumerate(on_each(8, 2, 2)):
        assert build_mesh("cpu", 2, 2)[1] is ranks  # all models of a process share the groups
        line = ranks.sequence_group
        assert mesh.mesh.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert (ranks.size, ranks.rank, ranks.world_size, ranks.is_distributed) == (4, rank // 2, 8, True)
        assert ranks.is_main == (rank == 0)
        assert line is not None
        assert (line.size, line.rank) == (2, rank % 2)
        assert dist.get_process_group_ranks(line.process_group) == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert dist.get_process_group_ranks(ranks.process_group) == list(range(rank % 2, 8, 2))


@pytest.mark.parametrize(("count", "given", "size"), [(2, (1, 2), 1), (4, (2,), 4)])
def test_one_row_for_all_is_one_batch_and_replicas_alone_share_it_out(
    count: int,
    given: tuple[int, ...],
    size: int,
    on_each: Meshes,
) -> None:
    for rank, (mesh, ranks) in enumerate(on_each(count, *given)):
        assert mesh.mesh_dim_names == (("replicate", "shard") if size > 1 else None)
        assert (ranks.size, ranks.rank, ranks.is_distributed, ranks.is_main) == (size, rank % size, True, rank == 0)
        assert (ranks.sequence_group is None) == (size > 1)


def test_all_groups_have_the_timeout_of_the_world(on_each: Meshes, monkeypatch: pytest.MonkeyPatch) -> None:
    timeout, new_group, made = timedelta(seconds=77), dist.new_group, dict[Any, timedelta | None]()

    def watched(ranks: list[int], **given: Any) -> Any:
        group = new_group(ranks, **given)
        made[group] = given.get("timeout")
        return group

    monkeypatch.setattr(dist.distributed_c10d, "new_group", watched)
    monkeypatch.setattr(meshes, "_world_timeout", lambda device: timeout)
    for mesh, ranks in on_each(8, 2, 2):
        assert ranks.sequence_group is not None
        groups = [*mesh.get_all_groups(), ranks.process_group, ranks.sequence_group.process_group]
        assert [made[group] for group in groups] == [timeout] * 4


def test_the_timeout_of_the_world(tmp_path: Path) -> None:
    timeout = timedelta(seconds=77)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timeout)
    try:
        assert meshes._world_timeout("cpu") == timeout
    finally:
        dist.destroy_process_group()
