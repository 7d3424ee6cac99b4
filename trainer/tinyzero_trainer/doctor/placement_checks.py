"""What fits where: a run's ranks, engines and scorers against the nodes of a Ray, or the GPUs of this machine.

Ray places them as a whole or not at all, each on one node. Whether there is a way is decided here exactly; Ray itself
packs by rules of thumb, and may miss one where CPUs are few.
"""

from collections.abc import Iterator, Sequence

from tinyzero_trainer.doctor.cluster_checks import counted, named
from tinyzero_trainer.doctor.facts import Facts, Wanted
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.doctor.ray_facts import Node, Places, Ray

Room = tuple[int, int]
"""GPUs and CPUs of a node."""


def check_places(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Whether the run has room."""
    places, ray = wanted.places, facts.ray
    if places is None:
        return
    if ray is None:
        yield from _on_this_machine(places, facts)
    elif not ray.trouble:
        yield _on_nodes(places, ray)


def fits(places: Places, nodes: Sequence[Room]) -> bool:
    """Whether there is a way to place all actors.

    Example:
        >>> fits(Places(ranks=4, engines=1, spread=4, scorers=1), [(4, 8), (4, 8)])
        True
        >>> fits(Places(ranks=4, engines=1, spread=4, scorers=1), [(6, 8), (2, 8)])
        True
        >>> fits(Places(ranks=2, engines=1, spread=4, scorers=1), [(2, 8), (2, 8), (2, 8)])
        False
    """
    if sum(cpus for _, cpus in nodes) < places.cpus:
        return False
    engines = [0] * len(nodes)
    for _ in range(places.engines):
        # Each where it costs the fewest ranks. A node's room for ranks falls ever faster, so no other choice is better.
        found = [
            (_ranks(places, node, engines[index]) - _ranks(places, node, engines[index] + 1), index)
            for index, node in enumerate(nodes)
            if _engine_fits(places, node, engines[index] + 1)
        ]
        if not found:
            return False
        engines[min(found)[1]] += 1
    return sum(_ranks(places, node, count) for node, count in zip(nodes, engines, strict=True)) >= places.ranks


def _engine_fits(places: Places, node: Room, engines: int) -> bool:
    return engines * places.spread <= node[0] and engines <= node[1]


def _ranks(places: Places, node: Room, engines: int) -> int:
    """How many have room on a node beside so many engines; those that share an engine are on one node."""
    gpus, cpus = node
    if not places.spread:
        return cpus - engines
    most = min(gpus - engines * places.spread, cpus - engines)
    return most if places.engines else most // places.spread * places.spread


# ---- findings --------------------------------------------------------------------------------------------------------


def _on_this_machine(places: Places, facts: Facts) -> Iterator[Finding]:
    here = len(facts.torch.gpus)
    if places.gpus > here:
        what = f"{_wish(places)}, but torch sees {here} on this machine"
        do = "lower --gpus, or name a Ray with more"
        yield Finding("layout", "error", what, do, (f"tinyzero doctor --address auto --gpus {places.gpus}",))
    else:
        yield Finding("layout", "ok", f"{_wish(places)}: there is room on this machine")


def _on_nodes(places: Places, ray: Ray) -> Finding:
    free = [(int(node.gpus_free), int(node.cpus_free)) for node in ray.alive]
    every = [(int(node.gpus), int(node.cpus)) for node in ray.alive]
    if fits(places, free):
        return Finding("layout", "ok", f"{_wish(places)}: there is room")
    taken = fits(places, every)
    what = f"{_wish(places)}; {_missing(places, ray.alive, free if taken else every, 'free' if taken else 'there')}"
    fewer = _fewer(places, free)
    lower = f"take fewer (--gpus {fewer} would fit now)" if fewer else "make the run smaller"
    if taken:
        do = f"wait until others are done (train waits a minute), or {lower}"
        return Finding("layout", "warning", what, do, (f"ray status --address={ray.address}",))
    return Finding(
        "layout", "error", what, f"let more machines join, or {lower}", (f"ray start --address={ray.address}",)
    )


def _wish(places: Places) -> str:
    """What the run takes."""
    parts = [counted(places.ranks, "rank")]
    if places.engines:
        on = f" of {counted(places.spread, 'GPU')}" if places.spread else ""
        parts.append(f"{counted(places.engines, 'engine')}{on}")
    elif places.spread > 1:
        parts[0] += f", with an engine for each {places.spread} that are on one node"
    takes = f"{counted(places.gpus, 'GPU')} and " if places.spread else ""
    return f"{', '.join(parts)} and {counted(places.scorers, 'scorer')} take {takes}{counted(places.cpus, 'CPU')}"


def _missing(places: Places, nodes: Sequence[Node], rooms: Sequence[Room], state: str) -> str:
    """What there is too little of, and where."""
    gpus, cpus = (sum(room[kind] for room in rooms) for kind in (0, 1))
    most = max((room[0] for room in rooms), default=0)
    need = f"an engine takes {places.spread} GPUs of one node (vllm.tensor_parallel={places.spread})"
    if 1 < places.spread > most:
        return f"{need}, and no node has more than {most} {state}"
    if places.gpus > gpus:
        return f"{counted(gpus, 'GPU')} {_are(gpus)} {state}: {_each(nodes, rooms, 0)}"
    if places.cpus > cpus:
        return f"{counted(cpus, 'CPU')} {_are(cpus)} {state}: {_each(nodes, rooms, 1)}"
    lines = places.engines or (places.ranks // places.spread if places.spread else 0)
    if places.spread > 1 and sum(room[0] // places.spread for room in rooms) < lines:
        return f"{need}, and for {lines} of them the GPUs that are {state} lie apart: {_each(nodes, rooms, 0)}"
    return f"each rank and engine takes a CPU of its node, and CPUs are {state} so: {_each(nodes, rooms, 1)}"


def _fewer(places: Places, rooms: Sequence[Room]) -> int:
    """The most GPUs with which it has room, its engines as they are; 0 = none, or it has no GPUs."""
    for gpus in range(places.gpus - 1, places.engines * places.spread, -1):
        ranks = gpus - places.engines * places.spread
        if not places.engines and ranks % places.spread:
            continue
        if fits(Places(ranks, places.engines, places.spread, places.scorers), rooms):
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
