"""GPU memory and time of whole training steps, phase by phase, next to the predictions of `tinyzero plan`.

    python benchmarks/memory.py [--case grpo-24gb --case ppo-24gb --case 1.5B --case 3B] [--output memory.json]

Each case is planned, then trained for three steps with the proposed settings, while NVML reads the memory of all
processes. For a case that is planned for a smaller GPU than the one present, the trainer sees only that much memory. A
case that fails does not stop the next one.
"""

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import BUSY_BYTES, MemoryReadings, run, wait_until_idle, watch_gpu_memory
from benchmarks.common import TINYZERO, fixed_workload, last_of_each, print_machine, print_table
from benchmarks.shapes import write_model
from benchmarks.training import mean_timings, metrics_of
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.distributed.sizes import CONTEXT
from tinyzero_trainer.hardware.gpu import GIB

PROMPT_TOKENS, NEW_TOKENS = 256, 1024
CHILD = "--child"


@dataclass(frozen=True, slots=True)
class Case:
    """A run to measure."""

    shape: str  # of the model; see shapes.py
    arguments: tuple[str, ...]
    gpu_memory: str | None = None  # of the GPU to plan for; None = the one present


_GRPO = ("--recipe", "tinyzero-grpo", "data.prompts_per_step=32", "rollout.group_size=8")
_PPO = ("--recipe", "tinyzero-ppo", "data.prompts_per_step=256")
_VLLM = ("rollout.engine=vllm",)

CASES = {
    "grpo-24gb": Case("0.5B", (*_GRPO, *_VLLM), "24GB"),
    "ppo-24gb": Case("0.5B", (*_PPO, *_VLLM), "24GB"),
    "grpo-24gb-torch": Case("0.5B", _GRPO, "24GB"),
    "ppo-24gb-torch": Case("0.5B", _PPO, "24GB"),
    "1.5B": Case("1.5B", (*_GRPO, *_VLLM)),
    "3B": Case("3B", (*_GRPO, *_VLLM)),
    "3B-24gb": Case("3B", (*_GRPO, *_VLLM), "24GB"),
    "10M": Case("10M", ("data.prompts_per_step=8", "rollout.group_size=2", "rollout.max_completion_tokens=16"), "24GB"),
}
"""The first two run out of memory on a GPU of 24 GB with default settings; `10M` tests this script."""

DEFAULT_CASES = ["grpo-24gb", "ppo-24gb", "1.5B", "3B"]


def main(
    case: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(CASES)}")] = None,
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for every case, before it is planned")] = None,
    steps: int = 3,
    limit: Annotated[float, typer.Option(help="seconds for each case")] = 600,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results, written after each case")] = None,
) -> None:
    """Measure, and print a table for each case."""
    found: dict[str, Any] = {"machine": print_machine("torch", "transformers", "tinyzero-trainer"), "cases": {}}
    for name in case or DEFAULT_CASES:
        print(f"\n## {name}\n", flush=True)
        try:
            found["cases"][name] = measure(CASES[name], override or [], steps=steps, limit=limit)
            report(found["cases"][name])
        except Exception as error:  # the next case can still be measured
            traceback.print_exc()
            found["cases"][name] = {"error": f"{type(error).__name__}: {error}"}
        if output is not None:
            output.write_text(json.dumps(found, indent=2))


def measure(case: Case, overrides: Sequence[str], *, steps: int, limit: float) -> dict[str, Any]:
    """Plan a case, and run it as planned."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        marks, directory = folder / "marks.jsonl", folder / "run"
        write_model(folder / "model", case.shape)
        work = fixed_workload(folder / "model", prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, steps=steps)
        requested = [*work, *case.arguments, *overrides]
        planned = plan(requested, case)
        chosen = (f"{one['key']}={format_value(one['value'])}" for one in planned["chosen"])
        proposed = [*planned["overrides"].split(), *chosen]
        print("planned:", " ".join(proposed) or "as requested", "" if planned["fits"] else "(DOES NOT FIT)", flush=True)
        arguments = last_of_each([*requested, *proposed, "--output", str(directory)])
        gpu = str(planned["gpu"]["memory"] if case.gpu_memory else 0)
        wait_until_idle([None])
        with watch_gpu_memory() as memory:
            done = run([sys.executable, __file__, CHILD, str(marks), gpu, "train", *arguments], limit)
        lines = marks.read_text().splitlines() if marks.exists() else []
        rows = metrics_of(directory)[1:]
        return {
            "planned": planned,
            "peak": memory.peak(),
            "before": memory.before,
            "phases": by_phase([json.loads(line) for line in lines], memory),
            "steps": [row["timing_s/step"] for row in rows],
            "seconds": mean_timings(rows[1:] or rows),
            "exit_code": done.code,
            "log": done.output[-6000:],
        }


def plan(requested: Sequence[str], case: Case) -> dict[str, Any]:
    """The plan for the GPU of the case, or for the one present."""
    command = [*TINYZERO, "plan", *last_of_each(requested), "--json", "--prompt-tokens", str(PROMPT_TOKENS)]
    command += ["--gpu-memory", case.gpu_memory] if case.gpu_memory else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"tinyzero plan: {done.stderr.strip()}")
    planned: dict[str, Any] = json.loads(done.stdout)
    return planned


def child(marks: Path, memory: int, arguments: Sequence[str]) -> None:
    """Run `tinyzero`; note at the end of each phase the time, and the allocator's peaks within it.

    `memory` is that of the GPU that the run is planned for, in bytes; 0 = the one present.
    """
    import torch

    from tinyzero_sdk.cli import main as tinyzero
    from tinyzero_trainer.monitoring.performance import StepTimer

    cuda = torch.cuda.is_available()
    if memory and cuda and memory < torch.cuda.get_device_properties(0).total_memory:
        limit_gpu_memory(memory)
    start, record = StepTimer.__init__, StepTimer.record

    def note(name: str) -> None:
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        with marks.open("a") as stream:
            print(json.dumps({"name": name, "at": time.time(), **peaks}), file=stream)

    def noted_start(timer: StepTimer) -> None:
        start(timer)
        note("")

    def noted_record(timer: StepTimer, name: str) -> None:
        record(timer, name)
        note(name)

    StepTimer.__init__, StepTimer.record = noted_start, noted_record  # type: ignore[method-assign, assignment]
    tinyzero(arguments)


def limit_gpu_memory(memory: int) -> None:
    """Show this process only `memory` bytes of the GPU: as free memory, and as the limit of its allocator."""
    import torch

    whole, real = torch.cuda.get_device_properties(0).total_memory, torch.cuda.mem_get_info

    def limited(*device: Any) -> tuple[int, int]:
        free, total = real(*device)
        return max(0, free - (total - memory)), memory

    torch.cuda.mem_get_info = limited  # type: ignore[assignment]
    torch.cuda.set_per_process_memory_fraction((memory - CONTEXT) / whole)


def by_phase(marks: Sequence[Mapping[str, Any]], memory: MemoryReadings) -> dict[str, dict[str, int]]:
    """Peak bytes of each phase over all steps, by NVML and by PyTorch's allocator; 0 = not known."""
    found: dict[str, dict[str, int]] = {}
    for before, mark in pairwise(marks):
        if mark["name"]:
            sizes = {"NVML": memory.peak(before["at"], mark["at"]) or 0}
            sizes |= {key: mark[key] for key in ("allocated", "reserved")}
            known = found.get(mark["name"], sizes)
            found[mark["name"]] = {key: max(size, known[key]) for key, size in sizes.items()}
    return found


def report(result: Mapping[str, Any]) -> None:
    """The tables of a case."""
    if result["exit_code"]:
        print(f"exit code {result['exit_code']}:\n{result['log']}", flush=True)
    proposed, speed = result["planned"]["proposed"], result["planned"]["speed"]
    rows = {
        phase["phase"]: _cells(phase["total"], result["phases"].get(phase["phase"], {})) for phase in proposed["phases"]
    }
    rows["peak"] = _cells(proposed["peak"], {"NVML": result["peak"] or 0})
    print_table("GiB", rows)
    if speed is not None:
        measured = {name.removeprefix("timing_s/"): f"{seconds:.2f}" for name, seconds in result["seconds"].items()}
        planned = {**speed["seconds"], "step": speed["step"]}
        times = {name: {"planned": f"{one:.2f}", "measured": measured.get(name, "")} for name, one in planned.items()}
        print_table("seconds", times)
    for phase in proposed["phases"]:
        items = (f"{item['role']} {item['what']} {item['size'] / GIB:.2f}" for item in phase["parts"])
        print(f"{phase['phase']}: {', '.join(items)}", flush=True)
    print("steps:", ", ".join(f"{seconds:.1f} s" for seconds in result["steps"]) or "none", flush=True)
    print(f"in use before the run: {result['before'] / GIB:.2f} GiB", flush=True)
    if result["before"] > BUSY_BYTES:
        print("other processes used this GPU: memory that they freed meanwhile is missing from the peak", flush=True)


def _cells(planned: int, measured: Mapping[str, int]) -> dict[str, str]:
    names = ("NVML", "allocated", "reserved")
    shown = {name: f"{measured[name] / GIB:.2f}" if measured.get(name) else "" for name in names}
    error = f"{100 * (planned / nvml - 1):+.1f}%" if (nvml := measured.get("NVML")) else ""
    return {"planned": f"{planned / GIB:.2f}", **shown, "error": error}


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        typer.run(main)
