"""Memory that this process may use, within a container's limits. No torch in here."""

import os
from pathlib import Path


def host_memory() -> tuple[int, int]:
    """Bytes of memory, total and free, within a container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            free = int(value.split()[0]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.isdigit():
        total = min(total, int(limit))
        free = min(free, max(0, int(limit) - int(used or 0)))
    return total, free


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip() if Path(path).is_file() else ""
