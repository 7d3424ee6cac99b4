"""How several GPUs are linked: the findings on it and on NCCL."""

from collections.abc import Iterator, Sequence

from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.hardware.compute_capability import named_outside


def check_links(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Several visible GPUs: how they are linked, whether they are alike, and NCCL, by which they talk."""
    torch = facts.torch
    if len(torch.gpus) < 2 or torch.hip:
        return
    kinds = dict.fromkeys(gpu.name for gpu in torch.gpus)
    if len(kinds) > 1:
        what = f"the GPUs differ ({', '.join(kinds)}): together they are as fast as the slowest"
        do = "train on GPUs of one model; numbers here are those of cuda:N, which may differ from nvidia-smi's"
        yield Finding("links", "note", what, do)
    if links := _visible_links(facts):
        yield _on_links(links, facts)
    if torch.nccl:
        yield Finding("nccl", "ok", f"NCCL {torch.nccl} comes with torch")


def _visible_links(facts: Facts) -> dict[tuple[int, int], str]:
    """The kind of link between `cuda:i` and `cuda:j`, i < j; empty if one is not known."""
    driver, indices = facts.driver, {gpu.uuid: gpu.index for gpu in facts.torch.gpus if gpu.uuid}
    if driver is None or len(indices) != len(facts.torch.gpus):
        return {}
    outside = {gpu.index: indices[gpu.uuid] for gpu in driver.gpus if gpu.uuid in indices}
    found = {}
    for link in driver.links:
        if link.first in outside and link.second in outside:
            first, second = sorted((outside[link.first], outside[link.second]))
            found[first, second] = link.kind
    return found if len(found) == len(indices) * (len(indices) - 1) // 2 else {}


def _on_links(links: dict[tuple[int, int], str], facts: Facts) -> Finding:
    count = len(facts.torch.gpus)
    every = "both GPUs" if count == 2 else f"all {count} GPUs"
    fast = {pair for pair, kind in links.items() if kind == "NVLink"}
    groups = _groups(range(count), fast)
    if len(groups) == 1:
        indirect = "" if len(fast) == len(links) else ", though not every pair directly"
        return Finding("links", "ok", f"NVLink joins {every}{indirect}")
    slow = ", ".join(sorted({links[pair] for pair in links.keys() - fast} - {""}))
    if not fast:
        return Finding("links", "note", f"no NVLink: PCIe between {every} ({slow})", _SLOW)
    joined = " and ".join(_named(group) for group in groups if len(group) > 1)
    what = f"NVLink between {joined} only; elsewhere PCIe ({slow}), which is several times slower"
    names = ",".join(named_outside(index, facts.visible) for index in groups[0])
    command = f"export CUDA_VISIBLE_DEVICES={names}"
    return Finding("links", "note", what, "if they are enough, train on GPUs that NVLink joins", (command,))


_SLOW = "weights and gradients travel slowly, so measure what more than one GPU gains"


def _groups(indices: Sequence[int], pairs: set[tuple[int, int]]) -> list[list[int]]:
    """GPUs that pairs join, over others too; the largest group first."""
    groups = [{place} for place in indices]
    for pair in pairs:
        touched = [group for group in groups if not group.isdisjoint(pair)]
        groups = [group for group in groups if group.isdisjoint(pair)] + [set().union(*touched)]
    return sorted(map(sorted, groups), key=lambda group: (-len(group), group))


def _named(group: Sequence[int]) -> str:
    names = [f"cuda:{place}" for place in group]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) < 4 else f"{names[0]}, … and {names[-1]}"
