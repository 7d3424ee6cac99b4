"""Asks the NVIDIA driver for its GPUs, by nvidia-smi. What it prints beside them is kept as it said it.

A GPU that has failed is told of in a sentence where its row should be, or in brackets in place of a value, and the
exit code may be 0 or not; the healthy GPUs' rows are there all the same.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link, Process

SECONDS = 15.0
MIB = 2**20

CARD_FIELDS = ("index", "uuid", "name", "compute_cap", "memory.total", "memory.free", "memory.used", "driver_version")
USE_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")

_TROUBLE = re.compile(r"\[[^]]*(\blost\b|error|reset)[^]]*\]|ERR!", re.IGNORECASE)
"""In place of a value: the GPU has failed. `[N/A]` and `[Not Supported]` are no fault."""


@dataclass(frozen=True)
class Said:
    """What nvidia-smi answered."""

    rows: tuple[list[str], ...]
    """Its rows, in fields."""

    other: tuple[str, ...]
    """Lines that are no rows, or those of a GPU that has failed."""

    error: str = ""
    """Why it gave no answer, or its exit code; empty = it was content."""


def nvidia_driver(cuda: tuple[int, int] | None) -> Driver | None:
    """The driver and its GPUs; None = no trace of one.

    Args:
        cuda: what libcuda said it supports; None = there is no libcuda.
    """
    if shutil.which("nvidia-smi") is None:
        if cuda is not None:
            return Driver(cuda=cuda)
        if Path("/proc/driver/nvidia/version").exists():
            return Driver(error="there is an NVIDIA driver, but its GPUs were not given to this container")
        return None
    said = ask("--query-gpu", CARD_FIELDS)
    if not said.rows:
        return Driver(cuda=cuda, error=f"nvidia-smi: {' '.join(said.other) or said.error or 'it names no gpu'}")
    uses = ask("--query-compute-apps", USE_FIELDS)
    unread = said.other or ((said.error,) if said.error else ())
    # A process may hide what it holds, and there may be none.
    unread_uses = tuple(line for line in uses.other if not re.fullmatch(r"\[.*]|No running processes.*", line))
    gpus = gpus_of(said.rows, uses.rows)
    return Driver(said.rows[0][-1], cuda, gpus, unread=unread, unread_uses=unread_uses)


def ask(query: str, fields: Sequence[str], timeout: float = SECONDS) -> Said:
    """The answer to a query.

    Args:
        query: such as `--query-gpu`.
        fields: of each row; the last of those of a process may have commas in it.
        timeout: seconds.
    """
    command = ("nvidia-smi", f"{query}={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        # Names of processes are bytes that somebody else chose.
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return Said((), (), f"no answer within {timeout:g} s")
    except OSError as error:
        return Said((), (), error.strerror or str(error))
    rows, other = [], []
    for line in map(_printable, done.stdout.splitlines()):
        row = [field.strip() for field in line.split(",", len(fields) - 1)]
        if len(row) == len(fields) and not any(map(_TROUBLE.search, row[:-1])):
            rows.append(row)
        elif line:
            other.append(line)
    other += filter(None, map(_printable, done.stderr.splitlines()))
    return Said(tuple(rows), tuple(other), f"it ended with code {done.returncode}" if done.returncode else "")


def ask_links(timeout: float = SECONDS) -> tuple[Link, ...]:
    """How the GPUs are linked; none if that is not known."""
    try:
        command = ("nvidia-smi", "topo", "-m")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_links(done.stdout)


def gpus_of(rows: Iterable[list[str]], uses: Iterable[list[str]]) -> tuple[GpuInfo, ...]:
    """GPUs from the rows of the two queries, in which anything may be `[N/A]`."""
    holders: dict[str, list[Process]] = {}
    for uuid, pid, held, path in uses:
        holders.setdefault(uuid, []).append(Process(_int(pid) or 0, Path(path).name, (_int(held) or 0) * MIB))
    gpus = []
    for index, uuid, name, capability, total, free, used, _ in rows:
        major, _, minor = capability.partition(".")
        known, left, taken = (_int(major), _int(minor)), _int(free), _int(used)
        gpus.append(
            GpuInfo(
                index=_int(index) or 0,
                name=name,
                capability=None if known[0] is None or known[1] is None else (known[0], known[1]),
                memory=(_int(total) or 0) * MIB,
                free=None if left is None else left * MIB,
                used=None if taken is None else taken * MIB,
                processes=tuple(holders.get(uuid, ())),
                uuid=uuid.removeprefix("GPU-"),
            )
        )
    return tuple(gpus)


def _printable(line: str) -> str:
    """Without what would move a terminal's cursor."""
    return "".join(char for char in line if char.isprintable()).strip()


def _int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""The header is underlined, in a pipe too."""

_GPU = re.compile(r"GPU(\d+)")
_KINDS = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_SELF = "X"


def parse_links(text: str) -> tuple[Link, ...]:
    """The link of each pair of GPUs; none if the text is not a drawing as it is known.

    Args:
        text: what `nvidia-smi topo -m` prints: a row and a column for each GPU, then columns for other devices.
    """
    lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    rows = [line for line in lines if len(line) > 1 and _GPU.fullmatch(line[0])]
    if not rows or rows[0][1] == _SELF:
        return ()
    header, *rows = rows
    columns = _leading_gpus(header)
    table = {_number(row[0]): row[1 : len(columns) + 1] for row in rows}
    if [_number(row[0]) for row in rows] != columns or any(len(cells) != len(columns) for cells in table.values()):
        return ()
    if any(table[one][place] != _SELF for place, one in enumerate(columns)):
        return ()
    found = []
    for (left, first), (right, second) in combinations(enumerate(columns), 2):
        kind = table[first][right]
        if kind != table[second][left] or not _KINDS.fullmatch(kind):
            return ()
        found.append(Link(first, second, kind))
    return tuple(found)


def _leading_gpus(header: Sequence[str]) -> list[int]:
    """Columns of GPUs, which come first; one called "GPU NUMA ID" comes last."""
    count = next((place for place, name in enumerate(header) if not _GPU.fullmatch(name)), len(header))
    return [_number(name) for name in header[:count]]


def _number(name: str) -> int:
    return int(name.removeprefix("GPU"))
