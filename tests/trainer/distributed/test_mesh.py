"""Which ranks hold a model together, and which have the same sequences."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tinyzero_trainer.distributed import mesh as meshes
from tinyzero_trainer.distributed.mesh import Mesh, build_mesh


@pytest.fixture
def on_each(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Mesh]]:
    """The meshes of each of some ranks, between which nothing passes."""

    def made(count: int, *given: int) -> Iterator[Mesh]:
        for rank in range(count):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
            try:
                yield build_mesh("cpu", *given)
                assert build_mesh("cpu", *given).ranks == build_mesh("cpu", *given).ranks
            finally:
                dist.destroy_process_group()

    return made


def test_neighbours_share_lines_and_replicas(on_each: Callable[..., Iterator[Mesh]]) -> None:
    for rank, found in enumerate(on_each(8, 2, 2)):
        ranks, line = found.ranks, found.ranks.sequence_group
        assert found.weights.mesh.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert (ranks.size, ranks.rank, ranks.world_size, ranks.is_distributed) == (4, rank // 2, 8, True)
        assert ranks.is_main == (rank == 0)
        assert line is not None
        assert (line.size, line.rank) == (2, rank % 2)
        assert dist.get_process_group_ranks(line.process_group) == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert dist.get_process_group_ranks(ranks.process_group) == list(range(rank % 2, 8, 2))


def test_one_line_for_all_is_one_share(on_each: Callable[..., Iterator[Mesh]]) -> None:
    for rank, found in enumerate(on_each(2, 1, 2)):
        ranks = found.ranks
        assert found.weights.mesh.tolist() == [0, 1]
        assert (ranks.size, ranks.rank, ranks.is_distributed, ranks.is_main) == (1, 0, True, rank == 0)


def test_replicas_alone_leave_the_batch_to_all(on_each: Callable[..., Iterator[Mesh]]) -> None:
    for rank, found in enumerate(on_each(4, 2)):
        assert found.weights.mesh_dim_names == ("replicate", "shard")
        assert (found.ranks.size, found.ranks.rank, found.ranks.sequence_group) == (4, rank, None)


def test_all_groups_are_as_patient_as_that_of_all(
    on_each: Callable[..., Iterator[Mesh]], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience, new_group, made = timedelta(seconds=77), dist.new_group, dict[Any, timedelta | None]()

    def watched(ranks: list[int], **given: Any) -> Any:
        group = new_group(ranks, **given)
        made[group] = given.get("timeout")
        return group

    monkeypatch.setattr(dist, "new_group", watched)
    monkeypatch.setattr(meshes, "_world_timeout", lambda device: patience)
    for found in on_each(8, 2, 2):
        assert found.ranks.sequence_group is not None
        groups = [*found.weights.get_all_groups(), found.ranks.process_group, found.ranks.sequence_group.process_group]
        assert [made[group] for group in groups] == [patience] * 4


def test_the_patience_of_the_group_of_all(tmp_path: Path) -> None:
    patience = timedelta(seconds=77)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=patience)
    try:
        assert meshes._world_timeout("cpu") == patience
    finally:
        dist.destroy_process_group()


def test_all_models_of_a_process_share_the_groups(on_each: Callable[..., Iterator[Mesh]]) -> None:
    for found in on_each(4, 2, 2):
        assert build_mesh("cpu", 2, 2) is found
