"""Whether a run's ranks, engines and scorers fit on the nodes of a Ray cluster, or on the GPUs of this machine.

Ray places all of them or none, each on one node. Whether that is possible is decided here exactly; Ray itself packs by
heuristics, and may fail where CPUs are few.
"""

from collections.abc import Iterator, Sequence

from tinyzero_trainer.doctor.cluster_checks import counted, named
from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.ray_facts import Node, Placement, Ray

Room = tuple[int, int]
"""GPUs and CPUs of a node."""


def check_placement(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether the run has room."""
    placement, ray = requirements.placement, facts.ray
    if placement is None:
        return
    if ray is None:
        yield from _on_this_machine(placement, facts)
    elif not ray.trouble:
        yield _on_nodes(placement, ray)


def fits(placement: Placement, nodes: Sequence[Room]) -> bool:
    """Whether there is a way to place all actors.

    Example:
        >>> fits(Placement(ranks=4, engines=1, spread=4, scorers=1), [(4, 8), (4, 8)])
        True
        >>> fits(Placement(ranks=4, engines=1, spread=4, scorers=1), [(6, 8), (2, 8)])
        True
        >>> fits(Placement(ranks=2, engines=1, spread=4, scorers=1), [(2, 8), (2, 8), (2, 8)])
        False
    """
    if sum(cpus for _, cpus in nodes) < placement.cpus:
        return False
    engines = [0] * len(nodes)
    for _ in range(placement.engines):
        # Each where it costs the fewest ranks. A node's room for ranks falls ever faster, so no other choice is better.
        found = [
            (_ranks(placement, node, engines[index]) - _ranks(placement, node, engines[index] + 1), index)
            for index, node in enumerate(nodes)
            if _engine_fits(placement, node, engines[index] + 1)
        ]
        if not found:
            return False
        engines[min(found)[1]] += 1
    return sum(_ranks(placement, node, count) for node, count in zip(nodes, engines, strict=True)) >= placement.ranks


def _engine_fits(placement: Placement, node: Room, engines: int) -> bool:
    return engines * placement.spread <= node[0] and engines <= node[1]


def _ranks(placement: Placement, node: Room, engines: int) -> int:
    """How many have room on a node beside so many engines; those that share an engine are on one node."""
    gpus, cpus = node
    if not placement.spread:
        return cpus - engines
    most = min(gpus - engines * placement.spread, cpus - engines)
    return most if placement.engines else most // placement.spread * placement.spread


# ---- findings --------------------------------------------------------------------------------------------------------


def _on_this_machine(placement: Placement, facts: Facts) -> Iterator[Finding]:
    here = len(facts.torch.gpus)
    if placement.gpus > here:
        what = f"{_wish(placement)}, but torch sees {here} on this machine"
        do = "lower --gpus, or name a Ray with more"
        yield Finding("layout", "error", what, do, (f"tinyzero doctor --address auto --gpus {placement.gpus}",))
    else:
        yield Finding("layout", "ok", f"{_wish(placement)}: there is room on this machine")


def _on_nodes(placement: Placement, ray: Ray) -> Finding:
    free = [(int(node.gpus_free), int(node.cpus_free)) for node in ray.alive]
    every = [(int(node.gpus), int(node.cpus)) for node in ray.alive]
    if fits(placement, free):
        return Finding("layout", "ok", f"{_wish(placement)}: there is room")
    taken = fits(placement, every)
    what = (
        f"{_wish(placement)}; {_missing(placement, ray.alive, free if taken else every, 'free' if taken else 'there')}"
    )
    fewer = _fewer(placement, free)
    lower = f"take fewer (--gpus {fewer} would fit now)" if fewer else "make the run smaller"
    if taken:
        do = f"wait until others are done (train waits a minute), or {lower}"
        return Finding("layout", "warning", what, do, (f"ray status --address={ray.address}",))
    return Finding(
        "layout", "error", what, f"let more machines join, or {lower}", (f"ray start --address={ray.address}",)
    )


def _wish(placement: Placement) -> str:
    """What the run takes."""
    parts = [counted(placement.ranks, "rank")]
    if placement.engines:
        on = f" of {counted(placement.spread, 'GPU')}" if placement.spread else ""
        parts.append(f"{counted(placement.engines, 'engine')}{on}")
    elif placement.spread > 1:
        parts[0] += f", with an engine for each {placement.spread} that are on one node"
    takes = f"{counted(placement.gpus, 'GPU')} and " if placement.spread else ""
    return f"{', '.join(parts)} and {counted(placement.scorers, 'scorer')} take {takes}{counted(placement.cpus, 'CPU')}"


def _missing(placement: Placement, nodes: Sequence[Node], rooms: Sequence[Room], state: str) -> str:
    """What there is too little of, and where."""
    gpus, cpus = (sum(room[kind] for room in rooms) for kind in (0, 1))
    most = max((room[0] for room in rooms), default=0)
    need = f"an engine takes {placement.spread} GPUs of one node (vllm.tensor_parallel={placement.spread})"
    if 1 < placement.spread > most:
        return f"{need}, and no node has more than {most} {state}"
    if placement.gpus > gpus:
        return f"{counted(gpus, 'GPU')} {_are(gpus)} {state}: {_each(nodes, rooms, 0)}"
    if placement.cpus > cpus:
        return f"{counted(cpus, 'CPU')} {_are(cpus)} {state}: {_each(nodes, rooms, 1)}"
    lines = placement.engines or (placement.ranks // placement.spread if placement.spread else 0)
    if placement.spread > 1 and sum(room[0] // placement.spread for room in rooms) < lines:
        return f"{need}, and for {lines} of them the GPUs that are {state} lie apart: {_each(nodes, rooms, 0)}"
    return f"each rank and engine takes a CPU of its node, and CPUs are {state} so: {_each(nodes, rooms, 1)}"


def _fewer(placement: Placement, rooms: Sequence[Room]) -> int:
    """The most GPUs with which it has room, its engines as they are; 0 = none, or it has no GPUs."""
    for gpus in range(placement.gpus - 1, placement.engines * placement.spread, -1):
        ranks = gpus - placement.engines * placement.spread
        if not placement.engines and ranks % placement.spread:
            continue
        if fits(Placement(ranks, placement.engines, placement.spread, placement.scorers), rooms):
            return gpus
    return 0


def _each(nodes: Sequence[Node], rooms: Sequence[Room], kind: int) -> str:
    """How many are where; nodes with the same are put together."""
    counts: dict[int, list[Node]] = {}
    for node, room in zip(nodes, rooms, strict=True):
        counts.setdefault(room[kind], []).append(node)
    return ", ".join(f"{count}{' each' if len(some) > 1 else ''} on {named(some)}" for count, some in counts.items())


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
