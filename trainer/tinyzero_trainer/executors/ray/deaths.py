"""Why an actor's process has died: what Ray says, what it wrote last, and whether the kernel was short of memory."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinyzero_trainer.executors.ray.cluster import import_ray

EVIDENCE_SECONDS = 30.0
"""For a look at a log on the machine of the dead."""

HOST_ADVICE = "memory.cpu_offload=none, a lower reward.num_workers or fewer ranks on a machine take less of it"

_KILLS = "processes killed by the kernel for memory:"
_DETAILS = {
    "process": r"\bpid: (\d+)",
    "machine": r"\bip: (\S+)",
    "kind": r"Worker exit type: (\w+)",
    "code": r"with an exit code (\d+)",
    "signal": r"receives a (SIG\w+)",
}
"""Where Ray's message has them."""


def note_start() -> None:
    """Write into this process's log what `find_reason` compares with."""
    print(_KILLS, kernel_kills(), file=sys.stderr, flush=True)


def end_of(error: Exception) -> str:
    """Which process an actor was and how it ended, in a few words."""
    text = str(error).strip()
    if "creation task" in text:
        return f"could not start: {text.splitlines()[-1]}"
    matches = {key: re.search(pattern, text) for key, pattern in _DETAILS.items()}
    process, machine, kind, code, signal = ((matches[key] or [None, None])[1] for key in _DETAILS)
    if memory := re.search(r"running low on memory.*?\(IP: ([^,)]+).*? was (\S+) used / (\S+) limit", text, re.DOTALL):
        machine, used, limit = memory.groups()
        return f"was killed by Ray, since its machine, {machine}, ran out of memory ({used} of {limit}); {HOST_ADVICE}"
    if process is None:
        return "has died"
    name = f"(process {process} on {machine})" if machine else f"(process {process})"
    if kind == "NODE_OUT_OF_MEMORY":
        return f"{name} was killed by Ray, since its machine ran out of memory; {HOST_ADVICE}"
    cause, words = None, "its machine does not tell more"
    with suppress(Exception):  # its machine may be gone, and Ray with it
        cause, words = _ask(int(process), machine)
    silent = "it was killed from outside, or exited at once"
    cause = cause or (f"it got a {signal}" if signal else f"it exited with code {code}" if code else silent)
    return f"{name} has died: {cause}" + (f" ({words})" if words else "")


def _ask(process: int, machine: str | None) -> tuple[str | None, str]:
    """`find_reason` on a machine of the cluster."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == machine]
    there: Any = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    asked = ray.remote(find_reason).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(process)
    reason: tuple[str | None, str] = ray.get(asked, timeout=EVIDENCE_SECONDS)
    return reason


def find_reason(process: int) -> tuple[str | None, str]:
    """In a process of Ray on the machine of the dead, whose logs are in one directory."""
    directory = Path(os.readlink("/proc/self/fd/2")).parent
    (file,) = directory.glob(f"worker-*-{process}.err")
    return reason_in(file.read_text(encoding="utf-8", errors="replace"), kernel_kills())


def reason_in(log: str, kills: int) -> tuple[str | None, str]:
    """The cause, and other last words, by a process's log and how many processes the kernel has killed by now."""
    before = re.search(rf"^{_KILLS} (\d+)$", log, re.MULTILINE)
    if before and kills > int(before[1]):
        return f"the kernel's OOM killer ended it, since its machine ran out of memory; {HOST_ADVICE}", ""
    if crash := re.search(r"^Fatal Python error: (.+)$", log, re.MULTILINE):
        frame = re.search(r'^  File ".*?([^/"]+)", line (\d+) in (\w+)', log[crash.end() :], re.MULTILINE)
        return f"{crash[1]}" + (f" in {frame[3]}, {frame[1]}:{frame[2]}" if frame else ""), ""
    # Ray's own lines name the job and the actor, or have a date.
    lines = [line for line in log.splitlines() if line.strip() and not re.match(rf":\w+:|\[\d{{4}}-|{_KILLS}", line)]
    return None, f"its log ends with: {lines[-1].strip()[:200]}" if lines else ""


def kernel_kills() -> int:
    """Processes that the kernel has killed for memory: of this container, else of the whole machine; 0 if unknown."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"):
        with suppress(OSError):
            if count := re.search(r"^oom_kill (\d+)$", Path(file).read_text(encoding="utf-8"), re.MULTILINE):
                return int(count[1])
    return 0
