"""What fits where, as the doctor says of nodes that are made up."""

import dataclasses
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.doctor.clusters import ADDRESS, bad, of_gpus, with_ray
from tests.trainer.doctor.machines import H200, facts_of, seen
from tinyzero_trainer.doctor.facts import Package, Requirements
from tinyzero_trainer.doctor.placement_checks import fits
from tinyzero_trainer.doctor.ray_facts import Placement


@pytest.mark.parametrize(
    ("placement", "free", "level", "what"),
    [
        (Placement(16, 0, 1, 1), (8, 8), "ok", "16 ranks and 1 scorer take 16 GPUs and 17 CPUs: there is room"),
        (Placement(14, 1, 2, 2), (8, 8), "ok", "14 ranks, 1 engine of 2 GPUs and 2 scorers take 16 GPUs and 17 CPUs"),
        (Placement(16, 0, 1, 1), (8, 4), "warning", "12 GPUs are free: 8 on 10.0.0.1, 4 on 10.0.0.2"),
        (Placement(24, 0, 1, 1), (8, 4), "error", "16 GPUs are there: 8 each on 10.0.0.1 and 10.0.0.2"),
        (
            Placement(4, 1, 4, 1),
            (3, 3, 3),
            "warning",
            "4 GPUs of one node (vllm.tensor_parallel=4), and no node has more",
        ),
        (Placement(4, 2, 4, 1), (7, 3, 3), "warning", "for 2 of them the GPUs that are free lie apart: 7 on 10.0.0.1"),
        (Placement(8, 0, 4, 1), (6, 2), "warning", "for 2 of them the GPUs that are free lie apart"),
        (Placement(2, 1, 16, 1), (8, 8, 8), "error", "an engine takes 16 GPUs of one node"),
        (Placement(3, 0, 0, 1), (0,), "ok", "3 ranks and 1 scorer take 4 CPUs: there is room"),
        (Placement(40, 0, 0, 1), (8,), "error", "32 CPUs are there: 32 on 10.0.0.1"),
    ],
)
def test_what_has_room(placement: Placement, free: tuple[float, ...], level: str, what: str) -> None:
    finding = seen(with_ray(*of_gpus(*free)), "layout", Requirements(address=ADDRESS, placement=placement))
    assert finding.level == level
    assert what in finding.what


def test_what_would_fit_is_told() -> None:
    requirements = Requirements(address=ADDRESS, placement=Placement(16, 0, 1, 1))
    assert "--gpus 12 would fit now" in seen(with_ray(*of_gpus(8, 4)), "layout", requirements).do
    lines = Requirements(address=ADDRESS, placement=Placement(16, 0, 4, 1))
    assert "--gpus 8 would fit now" in seen(with_ray(*of_gpus(7, 6)), "layout", lines).do
    none = Requirements(address=ADDRESS, placement=Placement(2, 1, 8, 1))
    assert "smaller" in seen(with_ray(*of_gpus(4, 4)), "layout", none).do
    uneven = [*of_gpus(8, cpus=2), dataclasses.replace(of_gpus(8)[0], address="10.0.0.2")]
    [what] = [finding.what for finding in bad(with_ray(*uneven), requirements)]
    assert what.endswith("takes a CPU of its node, and CPUs are free so: 2 on 10.0.0.1, 32 on 10.0.0.2")


def test_room_on_this_machine() -> None:
    two = (H200, dataclasses.replace(H200, index=1, uuid="e"))
    packages = (Package("transformers", "5.23.0"), Package("ray", "2.60.0"))
    for gpus, level in ((2, "ok"), (4, "error")):
        requirements = Requirements(placement=Placement(gpus, 0, 1, 1))
        assert seen(facts_of(*two, packages=packages), "layout", requirements).level == level
    finding = seen(facts_of(*two), "ray", Requirements(placement=Placement(2, 0, 1, 1)))
    assert (finding.level, finding.commands) == ("error", ("pip install 'tinyzero-trainer[ray]'",))


def some_way(placement: Placement, nodes: list[tuple[int, int]]) -> bool:
    """Whether there is one, by trying all."""
    if sum(cpus for _, cpus in nodes) < placement.cpus:
        return False
    ways: Iterable[tuple[tuple[int, int], ...]] = itertools.product(
        *(list(itertools.product(range(placement.engines + 1), range(placement.ranks + 1))) for _ in nodes)
    )
    line = placement.spread if not placement.engines and placement.spread else 1
    return any(
        sum(engines for engines, _ in way) == placement.engines
        and sum(ranks for _, ranks in way) == placement.ranks
        and all(
            ranks % line == 0
            and engines + ranks <= cpus
            and (engines * placement.spread + ranks <= gpus or not placement.spread)
            for (engines, ranks), (gpus, cpus) in zip(way, nodes, strict=True)
        )
        for way in ways
    )


@given(
    st.builds(Placement, st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(1, 2)),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3),
)
@example(Placement(2, 2, 2, 1), [(4, 2), (4, 4)])
def test_what_fits_is_what_some_way_places(placement: Placement, nodes: list[tuple[int, int]]) -> None:
    if not placement.engines and placement.spread:  # such a layout is refused before
        placement = dataclasses.replace(placement, ranks=placement.ranks * placement.spread)
    assert fits(placement, nodes) == some_way(placement, nodes)
