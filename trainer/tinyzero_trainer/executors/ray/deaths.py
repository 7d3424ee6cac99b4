"""Why an actor's process died, from Ray's message, the process's log and the kernel's count of OOM kills."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinyzero_trainer.executors.ray.cluster import import_ray

EVIDENCE_SECONDS = 30.0
"""To read a log on another machine."""

HOST_ADVICE = "memory.cpu_offload=none, a lower reward.num_workers or fewer ranks on a machine take less of it"

_KILLS = "processes killed by the kernel for memory:"
_DETAILS = {
    "process": r"\bpid: (\d+)",
    "machine": r"\bip: (\S+)",
    "kind": r"Worker exit type: (\w+)",
    "code": r"with an exit code (\d+)",
    "signal": r"receives a (SIG\w+)",
}
"""Where they are in Ray's message."""


def log_oom_kills() -> None:
    """Write the count so far into this process's log; `reason_in` compares with it."""
    print(_KILLS, oom_kills(), file=sys.stderr, flush=True)


def describe_death(error: Exception) -> str:
    """What follows an actor's name in an error: its process, and how it ended."""
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
    cause, last_line = None, "its log cannot be read"
    with suppress(Exception):  # its machine may be gone, and Ray with it
        cause, last_line = _find_reason_on(machine, int(process))
    silent = "it was killed from outside, or exited at once"
    cause = cause or (f"it got a {signal}" if signal else f"it exited with code {code}" if code else silent)
    return f"{name} has died: {cause}" + (f" ({last_line})" if last_line else "")


def _find_reason_on(machine: str | None, process: int) -> tuple[str | None, str]:
    """`find_reason` on a machine of the cluster."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] == machine]
    on_machine: Any = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    task = ray.remote(find_reason).options(num_cpus=0, max_retries=0, scheduling_strategy=on_machine)
    reason: tuple[str | None, str] = ray.get(task.remote(process), timeout=EVIDENCE_SECONDS)
    return reason


def find_reason(process: int) -> tuple[str | None, str]:
    """Runs on the same machine, in another process of Ray, whose log is in the same directory."""
    directory = Path(os.readlink("/proc/self/fd/2")).parent
    (file,) = directory.glob(f"worker-*-{process}.err")
    return reason_in(file.read_text(encoding="utf-8", errors="replace"), oom_kills())


def reason_in(log: str, kills: int) -> tuple[str | None, str]:
    """The cause, if the log or the kernel's OOM kills by now show it, else the log's last line."""
    before = re.search(rf"^{_KILLS} (\d+)$", log, re.MULTILINE)
    if before and kills > int(before[1]):
        return f"the kernel's OOM killer ended it, since its machine ran out of memory; {HOST_ADVICE}", ""
    if crash := re.search(r"^Fatal Python error: (.+)$", log, re.MULTILINE):
        frame = re.search(r'^  File ".*?([^/"]+)", line (\d+) in (\w+)', log[crash.end() :], re.MULTILINE)
        return f"{crash[1]}" + (f" in {frame[3]}, {frame[1]}:{frame[2]}" if frame else ""), ""
    # Ray's own lines name the job and the actor, or have a date.
    lines = [line for line in log.splitlines() if line.strip() and not re.match(rf":\w+:|\[\d{{4}}-|{_KILLS}", line)]
    return None, f"its log ends with: {lines[-1].strip()[:200]}" if lines else ""


def oom_kills() -> int:
    """Processes that the kernel has killed for memory: of this container, else of the whole machine; 0 if unknown."""
    for file in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"):
        with suppress(OSError):
            if count := re.search(r"^oom_kill (\d+)$", Path(file).read_text(encoding="utf-8"), re.MULTILINE):
                return int(count[1])
    return 0
