"""What fits where, as the doctor says of nodes that are made up."""

import dataclasses
import itertools
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.clusters import ADDRESS, bad, of_gpus, with_ray
from tests.trainer.machines import H200, facts_of, seen
from tinyzero_trainer.doctor.facts import Package, Wanted
from tinyzero_trainer.doctor.placement_checks import fits
from tinyzero_trainer.doctor.ray_facts import Places


@pytest.mark.parametrize(
    ("places", "free", "level", "what"),
    [
        (Places(16, 0, 1, 1), (8, 8), "ok", "16 ranks and 1 scorer take 16 GPUs and 17 CPUs: there is room"),
        (Places(14, 1, 2, 2), (8, 8), "ok", "14 ranks, 1 engine of 2 GPUs and 2 scorers take 16 GPUs and 17 CPUs"),
        (Places(16, 0, 1, 1), (8, 4), "warning", "12 GPUs are free: 8 on 10.0.0.1, 4 on 10.0.0.2"),
        (Places(24, 0, 1, 1), (8, 4), "error", "16 GPUs are there: 8 each on 10.0.0.1 and 10.0.0.2"),
        (Places(4, 1, 4, 1), (3, 3, 3), "warning", "4 GPUs of one node (vllm.tensor_parallel=4), and no node has more"),
        (Places(4, 2, 4, 1), (7, 3, 3), "warning", "for 2 of them the GPUs that are free lie apart: 7 on 10.0.0.1"),
        (Places(8, 0, 4, 1), (6, 2), "warning", "for 2 of them the GPUs that are free lie apart"),
        (Places(2, 1, 16, 1), (8, 8, 8), "error", "an engine takes 16 GPUs of one node"),
        (Places(3, 0, 0, 1), (0,), "ok", "3 ranks and 1 scorer take 4 CPUs: there is room"),
        (Places(40, 0, 0, 1), (8,), "error", "32 CPUs are there: 32 on 10.0.0.1"),
    ],
)
def test_what_has_room(places: Places, free: tuple[float, ...], level: str, what: str) -> None:
    finding = seen(with_ray(*of_gpus(*free)), "layout", Wanted(address=ADDRESS, places=places))
    assert finding.level == level
    assert what in finding.what


def test_what_would_fit_is_told() -> None:
    wanted = Wanted(address=ADDRESS, places=Places(16, 0, 1, 1))
    assert "--gpus 12 would fit now" in seen(with_ray(*of_gpus(8, 4)), "layout", wanted).do
    lines = Wanted(address=ADDRESS, places=Places(16, 0, 4, 1))
    assert "--gpus 8 would fit now" in seen(with_ray(*of_gpus(7, 6)), "layout", lines).do
    none = Wanted(address=ADDRESS, places=Places(2, 1, 8, 1))
    assert "smaller" in seen(with_ray(*of_gpus(4, 4)), "layout", none).do
    uneven = [*of_gpus(8, cpus=2), dataclasses.replace(of_gpus(8)[0], address="10.0.0.2")]
    [what] = [finding.what for finding in bad(with_ray(*uneven), wanted)]
    assert what.endswith("takes a CPU of its node, and CPUs are free so: 2 on 10.0.0.1, 32 on 10.0.0.2")


def test_room_on_this_machine() -> None:
    two = (H200, dataclasses.replace(H200, index=1, uuid="e"))
    packages = (Package("transformers", "5.23.0"), Package("ray", "2.60.0"))
    for gpus, level in ((2, "ok"), (4, "error")):
        wanted = Wanted(places=Places(gpus, 0, 1, 1))
        assert seen(facts_of(*two, packages=packages), "layout", wanted).level == level
    finding = seen(facts_of(*two), "ray", Wanted(places=Places(2, 0, 1, 1)))
    assert (finding.level, finding.commands) == ("error", ("pip install 'tinyzero-trainer[ray]'",))


def some_way(places: Places, nodes: list[tuple[int, int]]) -> bool:
    """Whether there is one, by trying all."""
    if sum(cpus for _, cpus in nodes) < places.cpus:
        return False
    ways: Iterable[tuple[tuple[int, int], ...]] = itertools.product(
        *(list(itertools.product(range(places.engines + 1), range(places.ranks + 1))) for _ in nodes)
    )
    line = places.spread if not places.engines and places.spread else 1
    return any(
        sum(engines for engines, _ in way) == places.engines
        and sum(ranks for _, ranks in way) == places.ranks
        and all(
            ranks % line == 0
            and engines + ranks <= cpus
            and (engines * places.spread + ranks <= gpus or not places.spread)
            for (engines, ranks), (gpus, cpus) in zip(way, nodes, strict=True)
        )
        for way in ways
    )


@given(
    st.builds(Places, st.integers(1, 4), st.integers(0, 3), st.integers(0, 3), st.integers(1, 2)),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3),
)
@example(Places(2, 2, 2, 1), [(4, 2), (4, 4)])
def test_what_fits_is_what_some_way_places(places: Places, nodes: list[tuple[int, int]]) -> None:
    if not places.engines and places.spread:  # such a layout is refused before
        places = dataclasses.replace(places, ranks=places.ranks * places.spread)
    assert fits(places, nodes) == some_way(places, nodes)
