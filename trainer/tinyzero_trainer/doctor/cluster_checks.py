"""Findings on a Ray that is there, and on each of its nodes. What is unlike among them is in consistency_checks.py."""

from collections.abc import Iterator, Sequence

from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding, as_size
from tinyzero_trainer.doctor.ray_facts import Node, Ray, Token
from tinyzero_trainer.hardware.gpu import GIB

ENOUGH_SHARED = GIB
"""As on this machine; see checks.py."""

ENOUGH_FILES = 4096

INSTALL = "pip install 'tinyzero-trainer[ray]'"
START = ("ray start --head --port=6379", "ray start --address=HOST:6379")
SECRET = "export RAY_AUTH_TOKEN=SECRET"

NAMED = 3
"""Nodes that are named one by one."""


def check_ray(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether there is a Ray, and whether a run could use it."""
    ray = facts.ray
    if ray is None:
        yield from _without_ray(facts, requirements)
        return
    if ray.trouble:
        yield _unreachable(ray, facts)
        return
    version = ray.here.packages.get("ray", "") if ray.here else ""
    what = f"Ray {version} at {ray.address}: {counted(len(ray.alive), 'node')}"
    # With `auto`, and with it alone, Ray sends a token that is there though nobody has asked it to.
    sent = facts.token.mode.lower() == "token" or (requirements.address == "auto" and facts.token.source)
    if len(ray.alive) > 1 and not sent:
        what += "; it asks for no token, so whoever reaches it can run code on all of them"
        do = "unless the network is your own, start it anew with one, the same everywhere"
        yield Finding("ray", "note", what, do, ("export RAY_AUTH_MODE=token", SECRET))
    else:
        yield Finding("ray", "ok", what)


def check_nodes(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """What each node has, and those that have gone or give no answer."""
    ray = facts.ray
    if ray is None or ray.trouble:
        return
    described: dict[str, list[Node]] = {}
    for node in ray.alive:
        described.setdefault(_description(node), []).append(node)
    for what, nodes in described.items():
        each = "each: " if len(nodes) > 1 else ""
        head = " (the head)" if len(nodes) == 1 and nodes[0].head else ""
        yield Finding("node" if len(nodes) == 1 else f"{len(nodes)} nodes", "ok", f"{named(nodes)}{head}, {each}{what}")
    yield from _gone(ray)
    for node in ray.alive:
        if node.error:
            what = f"{node.address} takes no task: {node.error}"
            do = "see what its Ray says, in /tmp/ray/session_latest/logs there, and start it there again"
            yield Finding("node", "error", what, do, (f"ray start --address={ray.address}",))
    yield from _limits(ray)
    yield from _gpus_by_two_counts(ray)


# ---- Ray -------------------------------------------------------------------------------------------------------------


def _without_ray(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    installed = any(package.name == "ray" for package in facts.packages)
    if requirements.placement is not None and not installed:
        yield Finding("ray", "error", "several processes need Ray, which is not installed", "install it", (INSTALL,))
    if facts.ray_address and installed:
        what, do = f"RAY_ADDRESS={facts.ray_address}, which a run without --address leaves alone", "to look at that Ray"
        yield Finding("ray", "note", what, do, ("tinyzero doctor --address auto",))


def _unreachable(ray: Ray, facts: Facts) -> Finding:
    """Why it cannot be looked at, and what to do."""
    there, why = f"Ray at {ray.address}", f" ({ray.error})" if ray.error else ""
    status = f"ray status --address={ray.address}"
    from_variable = ray.address == facts.ray_address
    if ray.trouble in ("token", "no token"):
        return _token(ray, facts.token)
    what, do, commands = {
        "missing": ("--address needs Ray, which is not installed", "install it", (INSTALL,)),
        "scheme": (
            f"{'RAY_ADDRESS=' if from_variable else ''}{ray.address} is of Ray's client or dashboard, not of Ray",
            "on a machine of the cluster, give HOST:PORT as `ray start --head` told it",
            ("unset RAY_ADDRESS",) if from_variable else ("tinyzero doctor --address HOST:6379",),
        ),
        "form": (
            f"{ray.address!r} is no address of a Ray",
            "give auto, or HOST:PORT as `ray start --head` told it",
            ("tinyzero doctor --address HOST:6379",),
        ),
        "nobody": (
            f"there is no Ray at {ray.address}{why}" if ray.address != "auto" else "there is no Ray on this machine",
            "start it on one machine, then on the others with the address that the first one tells",
            START,
        ),
        "versions": (
            f"{there} is another than the one here: {ray.error}",
            "install the same Ray and Python on all machines",
            tuple(f"pip install 'ray=={version}'" for version in _version_there(ray)),
        ),
        "outside": (
            f"this machine is no node of {there}",
            "type it on a machine of the cluster, or let this one join",
            (f"ray start --address={ray.address}",),
        ),
        "time": (
            f"{there} gives no answer{why}",
            "see whether it is well, and whether a firewall is between",
            (status,),
        ),
    }.get(ray.trouble, (f"{there} cannot be reached: {ray.error}", "see whether it is well", (status,)))
    return Finding("ray", "error", what, do, commands)


def _token(ray: Ray, token: Token) -> Finding:
    ways = (SECRET, "export RAY_AUTH_TOKEN_PATH=FILE")
    if ray.trouble == "no token":
        what = f"RAY_AUTH_MODE={token.mode or 'token'}, but there is no token"
        if token.source:
            what = f"there is no token in the file that {token.source} names"
        return Finding("ray", "error", what, "set the one that `ray start` had", ways)
    if token.mode.lower() != "token":
        given = token.source.startswith("RAY_")
        commands = ("export RAY_AUTH_MODE=token", *(() if given else (SECRET,)))
        do = "set both as for `ray start`" if not given else f"have it sent: it is in {token.source}"
        if token.source and not given:
            do += f"; without the second, the token in {token.source} is sent"
        return Finding("ray", "error", f"Ray at {ray.address} asks for a token", do, commands)
    what = f"Ray at {ray.address} does not take the token of {token.source or 'this machine'}"
    return Finding("ray", "error", what, "set the one that `ray start` had there", ways)


def _version_there(ray: Ray) -> list[str]:
    there, _, here = ray.error.partition(" there, ")
    versions = [part.partition("Ray ")[2].partition(",")[0].partition(" ")[0] for part in (there, here)]
    return [versions[0]] if versions[0] and versions[0] != versions[1] else []


# ---- nodes -----------------------------------------------------------------------------------------------------------


def named(nodes: Sequence[Node]) -> str:
    """Some by their addresses, the others by their number; several may be on one machine."""
    names = list(dict.fromkeys(node.address for node in nodes))
    if len(names) > NAMED + 1:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return ", ".join(names[:-1]) + (" and " if names[:-1] else "") + names[-1]


def _description(node: Node) -> str:
    parts = [
        f"{node.gpus_free:g} of {counted(node.gpus, 'GPU')} free" if node.gpus else "no GPU",
        f"{node.cpus_free:g} of {counted(node.cpus, 'CPU')}",
    ]
    if node.inside and node.inside.gpus:
        parts.append(", ".join(dict.fromkeys(node.inside.gpus)))
    parts.append(f"object store {as_size(node.store)}")
    if node.inside and node.inside.shared_memory is not None:
        parts.append(f"/dev/shm {as_size(node.inside.shared_memory)}")
    return ", ".join(parts)


def _gone(ray: Ray) -> Iterator[Finding]:
    """Those that have left; a machine that has come back is no loss."""
    there = {node.address for node in ray.alive}
    gone = [node for node in ray.nodes if not node.alive and node.address not in there]
    if gone:
        reasons = dict.fromkeys(node.reason for node in gone if node.reason)
        what = f"{named(gone)} {'has' if len(gone) == 1 else 'have'} left{': ' + '; '.join(reasons) if reasons else ''}"
        do = "if it should be there, start Ray on it again"
        yield Finding("nodes", "warning", what, do, (f"ray start --address={ray.address}",))


def _limits(ray: Ray) -> Iterator[Finding]:
    """Shared memory and open files, where there are too few."""
    small: dict[int, list[Node]] = {}
    few: dict[int, list[Node]] = {}
    for node in ray.alive:
        if node.inside is not None:
            if (size := node.inside.shared_memory) is not None and size < ENOUGH_SHARED:
                small.setdefault(size, []).append(node)
            if node.inside.open_files < ENOUGH_FILES:
                few.setdefault(node.inside.open_files, []).append(node)
    for size, nodes in small.items():
        several = any(node.gpus > 1 for node in nodes)
        what = f"{as_size(size)} of shared memory (/dev/shm) on {named(nodes)}, too little for "
        what += "NCCL between several GPUs" if several else "Ray and vLLM"
        do = "start its container with more; on Kubernetes, mount an emptyDir of `medium: Memory` there"
        yield Finding("shared memory", "error" if several else "warning", what, do, ("docker run --shm-size=16g …",))
    for count, nodes in few.items():
        what = f"at most {count:,} open files on {named(nodes)}"
        yield Finding("open files", "warning", what, "raise the limit before `ray start` there", ("ulimit -n 65536",))


def _gpus_by_two_counts(ray: Ray) -> Iterator[Finding]:
    """Ray's count of GPUs, which was given or guessed when it was started, against the driver's."""
    for node in ray.alive:
        gpus = node.inside.gpus if node.inside else None
        if gpus is None or len(gpus) == node.gpus:
            continue
        start = f"ray start {'--head' if node.head else f'--address={ray.address}'} --num-gpus={len(gpus)}"
        what = f"Ray counts {counted(node.gpus, 'GPU')} on {node.address}, where the driver knows {len(gpus)}"
        if node.gpus > len(gpus):
            yield Finding("gpu", "error", what, "start Ray there again", ("ray stop", start))
        else:
            do = "if all are for this Ray, start it there again, without CUDA_VISIBLE_DEVICES"
            yield Finding("gpu", "warning", what, do, ("ray stop", start))


def counted(number: float, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "GPU"), counted(2, "GPU")
        ('1 GPU', '2 GPUs')
    """
    return f"{number:g} {what}{'' if number == 1 else 's'}"
