"""Looks at a Ray that is there, through ray_probe.py, which asks each node through node_probe.py. It judges nothing.

A few seconds, or `SECONDS` where Ray does not answer. Meanwhile there is a marker in the run directory; nothing else is
changed here or on the nodes.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tinyzero_trainer.doctor.consistency_checks import SAME, WHERE_USED
from tinyzero_trainer.doctor.facts import Facts
from tinyzero_trainer.doctor.probe import ask_apart, without_user
from tinyzero_trainer.doctor.ray_facts import Inside, Node, Ray, Token, Trouble
from tinyzero_trainer.executors.ray.cluster import in_one_line, is_host_and_port, not_listening

SECONDS = 75.0
"""For all of it."""

_TROUBLES: tuple[tuple[str, Trouble], ...] = (
    (r"no authentication token was found|RAY_AUTH_TOKEN_PATH is set but", "no token"),
    (r"InvalidAuthToken|Unauthenticated|AuthenticationError", "token"),
    (r"Version mismatch", "versions"),
    (r"any running Ray instance|multiple active Ray instances", "nobody"),
    (r"node_ip_address\.json|expects this IP address|No node info found|Failed to get node info", "outside"),
    (r"Invalid address|Malformed address", "form"),
    (r"No module named 'ray'|needs Ray", "missing"),
)
"""What Ray says, and what it means."""


def with_ray(facts: Facts, address: str | None, *, directory: Path, model: str) -> Facts:
    """The same, with what is to be said of Ray. If no address is given, that costs no time.

    Args:
        facts: of this machine.
        address: ray.address.
        directory: see `look_at_ray`.
        model: see `look_at_ray`.
    """
    ray = None if address is None else look_at_ray(address, directory=directory, model=model)
    return replace(facts, ray=ray, ray_address=without_user(os.environ.get("RAY_ADDRESS", "")), token=token())


def look_at_ray(
    address: str, *, directory: Path, model: str, command: Iterable[str] = (), timeout: float = SECONDS
) -> Ray:
    """What is to be seen from here.

    Args:
        address: `auto` or HOST:PORT.
        directory: the run directory, which need not exist.
        model: path of the model's directory; empty = it is none.
        command: another process to ask, for tests.
        timeout: seconds.
    """
    named = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
    if trouble := not_reached(named):
        return Ray(without_user(named), *trouble)
    if not command and not installed():
        return Ray(named, "missing")
    with marker(directory) as (path, content):
        asked = json.dumps({"address": address, "look": [[*SAME, *WHERE_USED], path, content, model]})
        command = tuple(command) or (sys.executable, "-P", "-m", "tinyzero_trainer.doctor.ray_probe", asked)
        seen = ask_apart(command, timeout, "connect")
    return ray_of(seen, named, str(Path(path).parent) if path else "")


def installed() -> bool:
    """Whether Ray is, without an import of it."""
    try:
        return bool(metadata.version("ray"))
    except metadata.PackageNotFoundError:
        return False


def not_reached(address: str) -> tuple[Trouble, str] | None:
    """What is wrong with an address before Ray is asked, which would try for half a minute."""
    if "://" in address:
        return "scheme", ""
    if address == "auto":
        return None
    if not is_host_and_port(address):
        return "form", ""
    reason = not_listening(address)
    return None if reason is None else ("nobody", reason)


@contextmanager
def marker(directory: Path) -> Iterator[tuple[str, str]]:
    """A file in a directory, or in the nearest one above it that exists: its path and what is in it.

    The path is empty where nothing can be written, of which `check_disk` tells.
    """
    directory, content = directory.expanduser().absolute(), uuid.uuid4().hex
    there = next((parent for parent in (directory, *directory.parents) if parent.is_dir()), None)
    path = there / f".tinyzero-doctor-{content}" if there else None
    try:
        if path is not None:
            path.write_text(content, encoding="utf-8")
    except OSError:
        path = None
    try:
        yield str(path or ""), content
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink()


def ray_of(seen: dict[str, Any], address: str, directory: str) -> Ray:
    """A record from what ray_probe.py said.

    Args:
        seen: its last line, with the error of the stage at which it ended, if it did.
        address: as given.
        directory: that nodes were asked for.
    """
    if error := seen.get("connect_error") or seen.get("nodes_error"):
        return Ray(address, trouble_of(error), in_one_line(re.sub(r"^\w+: ", "", error)))
    nodes = [Node(**node | {"inside": _inside(node.get("inside"))}) for node in seen["nodes"]]
    if late := seen.get("inside_error"):
        nodes = [Node(**vars(node) | {"error": late}) if node.alive else node for node in nodes]
    nodes.sort(key=lambda node: (not node.head, _number(node.address), node.host))
    return Ray(seen["address"], "", "", tuple(nodes), _inside(seen["here"]), directory)


def trouble_of(error: str) -> Trouble:
    """What an error means.

    Example:
        >>> trouble_of("ConnectionError: Failed\\nRpcError: InvalidAuthToken: Authentication token is missing")
        'token'
    """
    if re.search(r"it takes longer than", error):
        return "time"
    return next((trouble for pattern, trouble in _TROUBLES if re.search(pattern, error)), "other")


def token() -> Token:
    """Where Ray would look for one; in this order."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(name):
            return Token(mode, name)
    with suppress(OSError, RuntimeError):
        if (Path.home() / ".ray" / "auth_token").is_file():
            return Token(mode, "~/.ray/auth_token")
    return Token(mode)


def _inside(found: dict[str, Any] | None) -> Inside | None:
    if found is None:
        return None
    gpus = None if found["gpus"] is None else tuple(found["gpus"])
    return Inside(**found | {"gpus": gpus})


def _number(address: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in address.split("."))
