"""A probe in a child process, which may crash or hang without harm: `ask_child` here, `run_stages` there.

The child adds to a mapping stage by stage and prints it as a line of JSON before each, so the last line that was
printed holds whatever is known.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def ask_child(command: Sequence[str], timeout: float, first: str) -> dict[str, Any]:
    """What a module that calls `run_stages` found, `first` first; why it crashed or hung is under `STAGE_error`."""
    try:
        # -P: no file in the working directory can replace a library.
        done = subprocess.run((sys.executable, "-P", *command), capture_output=True, timeout=timeout, check=False)
        output, reason = done.stdout, f"its process ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output, reason = error.stdout or b"", f"no answer within {timeout:g} s"
    lines = [line for line in output.decode(errors="replace").splitlines() if line.endswith("}")]
    seen: dict[str, Any] = json.loads(lines[-1]) if lines else {"stage": first}
    if stage := seen.pop("stage", None):
        seen[f"{stage}_error"] = reason
    return seen


def run_stages(
    stages: Mapping[str, Callable[[dict[str, Any]], None]], describe: Callable[[BaseException], str]
) -> None:
    """Run the stages, each of which adds what it sees to a mapping, and exit; all others need the first to succeed."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to stderr
    seen: dict[str, Any] = {}
    for name, look in stages.items():
        print(json.dumps(seen | {"stage": name}), file=output, flush=True)
        try:
            look(seen)
        except Exception as error:  # libraries may be broken in any way
            seen[f"{name}_error"] = describe(error)
            if name == next(iter(stages)):
                break
    print(json.dumps(seen), file=output, flush=True)
    os._exit(0)  # a broken library may crash on its way out too
