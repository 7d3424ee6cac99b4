"""How several GPUs are linked: the findings on it and on NCCL."""

from collections.abc import Iterator, Sequence

from tinyzero_trainer.doctor.facts import Facts, Wanted
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.hardware.compute_capability import named_outside

_WITHIN = ("PIX", "PXB", "PHB", "NODE")
"""Ways that stay with one processor; the others (SYS, long ago SOC) go through the link between processors."""


def check_links(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Several visible GPUs: how they are linked, whether they are alike, and NCCL, by which they talk."""
    torch = facts.torch
    if len(torch.gpus) < 2 or torch.hip:
        return
    kinds = dict.fromkeys(gpu.name for gpu in torch.gpus)
    if len(kinds) > 1:
        what = f"the GPUs are unlike ({', '.join(kinds)}): together they are as fast as the slowest"
        do = "train on those that are alike; numbers here are those of cuda:N, which may not be nvidia-smi's"
        yield Finding("links", "note", what, do)
    if links := _visible_links(facts):
        yield _on_links(links, facts)
    if torch.nccl:
        yield Finding("nccl", "ok", f"NCCL {torch.nccl} comes with torch")


def _visible_links(facts: Facts) -> dict[tuple[int, int], str]:
    """The kind of link between `cuda:i` and `cuda:j`, i < j; empty if one is not known."""
    driver, places = facts.driver, {gpu.uuid: gpu.index for gpu in facts.torch.gpus if gpu.uuid}
    if driver is None or len(places) != len(facts.torch.gpus):
        return {}
    outside = {gpu.index: places[gpu.uuid] for gpu in driver.gpus if gpu.uuid in places}
    found = {}
    for link in driver.links:
        if link.first in outside and link.second in outside:
            first, second = sorted((outside[link.first], outside[link.second]))
            found[first, second] = link.kind
    return found if len(found) == len(places) * (len(places) - 1) // 2 else {}


def _on_links(links: dict[tuple[int, int], str], facts: Facts) -> Finding:
    count = len(facts.torch.gpus)
    every = "both GPUs" if count == 2 else f"all {count} GPUs"
    fast = {pair for pair, kind in links.items() if kind.startswith("NV")}
    kinds = ", ".join(sorted({links[pair] for pair in fast}, key=lambda kind: int(kind[2:])))
    if len(fast) == len(links):
        return Finding("links", "ok", f"NVLink between {every} ({kinds})")
    joined = _groups(range(count), fast)
    if len(joined) == 1:
        return Finding("links", "ok", f"NVLink joins {every} ({kinds}), though not every pair directly")
    slow = ", ".join(sorted({links[pair] for pair in links.keys() - fast}))
    if fast:
        groups = " and ".join(_named(group) for group in joined if len(group) > 1)
        what = f"NVLink between {groups} only ({kinds}); elsewhere PCIe ({slow}), which is several times slower"
        return Finding("links", "note", what, "if they suffice, train on GPUs that NVLink joins", _take(joined, facts))
    within = {pair for pair, kind in links.items() if kind in _WITHIN}
    near = _groups(range(count), within)
    if len(near) > 1:
        what = f"no NVLink: PCIe between {every}, and in part the link between processors ({slow})"
        if len(near) == count:
            return Finding("links", "note", what.replace("in part ", ""), _SLOW)
        return Finding("links", "note", what, f"{_SLOW}; those of one processor are nearer", _take(near, facts))
    return Finding("links", "note", f"no NVLink: PCIe between {every} ({slow})", _SLOW)


_SLOW = "weights and gradients travel slowly, so measure what more than one GPU gains"


def _groups(places: Sequence[int], pairs: set[tuple[int, int]]) -> list[list[int]]:
    """GPUs that pairs join, over others too; the largest group first."""
    groups = [{place} for place in places]
    for pair in pairs:
        touched = [group for group in groups if not group.isdisjoint(pair)]
        groups = [group for group in groups if group.isdisjoint(pair)] + [set().union(*touched)]
    return sorted(map(sorted, groups), key=lambda group: (-len(group), group))


def _named(group: Sequence[int]) -> str:
    names = [f"cuda:{place}" for place in group]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) < 4 else f"{names[0]}, … and {names[-1]}"


def _take(groups: Sequence[Sequence[int]], facts: Facts) -> tuple[str]:
    names = [named_outside(place, facts.visible) for place in groups[0]]
    return (f"export CUDA_VISIBLE_DEVICES={','.join(names)}",)
