"""GPU memory and times of whole training steps, phase by phase, beside what `tinyzero plan` predicts of them.

    python benchmarks/memory.py [--case grpo-24gb --case ppo-24gb --case 1.5B --case 3B] [--output memory.json]

Each case is planned, run for three steps by a process of its own with the settings that the plan proposes, and watched
by NVML, over all processes. A case that is planned for a smaller GPU than this one shows the trainer no more memory
than that GPU has. A case that fails does not stop the next one.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.common import TINYZERO, machine, print_machine, table
from benchmarks.shapes import write_model
from benchmarks.watching import Watch, bytes_in_use, run_watched
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.monitoring.metrics_log import read_metrics

BUSY = GIB
"""More than what a driver takes for itself."""
PROMPT_TOKENS, NEW_TOKENS = 256, 1024
CHILD = "--in-a-process-of-its-own"


@dataclass(frozen=True, slots=True)
class Case:
    """A run to measure."""

    spec: str
    """Of the model; see shapes.py."""

    words: tuple[str, ...] = ()
    """Words and flags for `tinyzero train`."""

    gpu_memory: str | None = None
    """What it shall fit into; none = the GPU that is here."""


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
"""The first two are the run that ends without memory on a GPU of 24 GB; `10M` is for trying this script."""

DEFAULT_CASES = ["grpo-24gb", "ppo-24gb", "1.5B", "3B"]


def main(
    case: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(CASES)}")] = None,
    word: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for every case, before it is planned")] = None,
    steps: int = 3,
    limit: Annotated[float, typer.Option(help="seconds for each case")] = 600,
    output: Annotated[Path | None, typer.Option(help="JSON of the results, written after each case")] = None,
) -> None:
    """Measure, and print a table for each case."""
    print_machine("torch", "transformers", "tinyzero-trainer")
    found: dict[str, Any] = {"machine": machine("torch", "transformers", "tinyzero-trainer"), "cases": {}}
    for name in case or DEFAULT_CASES:
        print(f"\n## {name}\n", flush=True)
        try:
            found["cases"][name] = measure(CASES[name], word or [], steps=steps, limit=limit)
            report(found["cases"][name])
        except Exception as error:  # the next case shall be measured all the same
            traceback.print_exc()
            found["cases"][name] = {"error": f"{type(error).__name__}: {error}"}
        if output is not None:
            output.write_text(json.dumps(found, indent=2))


def measure(case: Case, words: Sequence[str], *, steps: int, limit: float) -> dict[str, Any]:
    """Plan a case, run it as planned, and put both together."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(folder / "model", case.shape)
        asked = [*settings(folder, steps), *case.words, *words]
        planned = plan(asked, case)
        proposed = planned["words"].split()
        print("planned:", planned["words"] or "as asked", "" if planned["fits"] else "(DOES NOT FIT)", flush=True)
        kept = [word for word in asked if word.partition("=")[0] not in {one.partition("=")[0] for one in proposed}]
        marks = folder / "marks.jsonl"
        words = last_of_each([*kept, *proposed, "--output", str(folder / "run")])
        gpu = str(planned["gpu"]["memory"] if case.gpu_memory else 0)
        until_idle()
        ran = run_watched([sys.executable, str(Path(__file__)), CHILD, str(marks), gpu, "train", *words], limit)
        lines = marks.read_text().splitlines() if marks.exists() else []
        phases = by_phase([json.loads(line) for line in lines], ran.watch)
        metrics = folder / "run" / "metrics.jsonl"
        rows = read_metrics(metrics) if metrics.exists() else []
        return {
            "planned": planned,
            "measured": {"peak": ran.watch.most(), "before": ran.watch.before, "phases": phases},
            "steps": [row["timing_s/step"] for row in rows[1:]],
            "seconds": mean_seconds(rows[2:] or rows[1:]),
            "exit_code": ran.code,
            "said": ran.timed_output[-6000:],
        }


def mean_seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each part of a step, by its name in the metrics."""
    prefix = "timing_s/"
    names = [name for name in (rows[0] if rows else {}) if name.startswith(prefix)]
    return {name.removeprefix(prefix): fmean(row.get(name, 0.0) for row in rows) for name in names}


def until_idle() -> None:
    """Wait a minute at most for a process that ended just now: its memory comes back some seconds later."""
    for _ in range(60):
        if bytes_in_use() <= BUSY:
            return
        time.sleep(1)


def settings(folder: Path, steps: int) -> list[str]:
    """What every case is run with: full-length completions of prompts of one length, and little else."""
    return [
        *("--task", str(Path(__file__).with_name("fixed_task.py")), "--model", str(folder / "model")),
        *(f"task.prompt_tokens={PROMPT_TOKENS}", "data.prompt_template=base", f"run.steps={steps}"),
        *(f"rollout.max_completion_tokens={NEW_TOKENS}", "rollout.ignore_eos=true", "rollout.return_logprobs=never"),
        *("eval.num_problems=8", "eval.every=0", "eval.greedy=false", "log.rollouts_every=0", "checkpoint.every=0"),
        f"reward.num_workers={min(8, os.cpu_count() or 1)}",
    ]


def plan(asked: Sequence[str], case: Case) -> dict[str, Any]:
    """What `tinyzero plan` says of it; of a GPU as large as the one here, or of the one named."""
    command = [*TINYZERO, "plan", *last_of_each(asked)]
    command += ["--json", "--prompt-tokens", str(PROMPT_TOKENS)]
    command += ["--gpu-memory", case.gpu_memory] if case.gpu_memory else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"tinyzero plan: {done.stderr.strip()}")
    planned: dict[str, Any] = json.loads(done.stdout)
    return planned


def last_of_each(words: Sequence[str]) -> list[str]:
    """Words, of which the last of a key counts; flags as they are."""
    last = {word.partition("=")[0]: place for place, word in enumerate(words)}
    return [
        word
        for place, word in enumerate(words)
        if "=" not in word or word.startswith("-") or last[word.partition("=")[0]] == place
    ]


def on_a_smaller_gpu(memory: int) -> None:
    """Let this process see a GPU of so many bytes only: as free memory, and where its allocator must make room."""
    import torch

    whole, ask = torch.cuda.get_device_properties(0).total_memory, torch.cuda.mem_get_info

    def info(*device: Any) -> tuple[int, int]:
        free, total = ask(*device)
        return max(0, free - (total - memory)), memory

    torch.cuda.mem_get_info = info
    torch.cuda.set_per_process_memory_fraction((memory - constants.CONTEXT) / whole)


def child(marks: Path, memory: int, arguments: Sequence[str]) -> None:
    """`tinyzero`, noting at the end of each phase the time and the allocator's peaks within it.

    Args:
        marks: file for the notes.
        memory: bytes of the GPU that the run is made for; 0 = the one that is here.
        arguments: of `tinyzero`.
    """
    import torch

    from tinyzero_sdk.cli import main as tinyzero
    from tinyzero_trainer.controller import collector as collecting
    from tinyzero_trainer.controller import step as training_step
    from tinyzero_trainer.monitoring.timer import StepTimer

    if memory and torch.cuda.is_available() and memory < torch.cuda.get_device_properties(0).total_memory:
        on_a_smaller_gpu(memory)

    def note(name: str) -> None:
        cuda = torch.cuda.is_available()
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        with marks.open("a") as stream:
            stream.write(json.dumps({"name": name, "at": time.time(), **(peaks if cuda else {})}) + "\n")
        if cuda:
            torch.cuda.reset_peak_memory_stats()

    class Noted(StepTimer):
        def __init__(self) -> None:
            super().__init__()
            note("")

        def record(self, name: str) -> None:
            super().record(name)
            note(name)

    for user in (training_step, collecting):
        user.StepTimer = Noted  # type: ignore[misc]
    tinyzero(arguments)


def by_phase(marks: Sequence[Mapping[str, Any]], watch: Watch) -> dict[str, dict[str, int | None]]:
    """Most bytes of each phase, over all steps: by NVML, and by PyTorch's allocator."""
    found: dict[str, dict[str, int | None]] = {}
    for before, mark in pairwise(marks):
        if not mark["name"]:
            continue
        sizes = {
            "nvml": watch.most(before["at"], mark["at"]),
            **{key: mark.get(key) for key in ("allocated", "reserved")},
        }
        known = found.setdefault(mark["name"], dict.fromkeys(sizes))
        found[mark["name"]] = {key: _larger(known[key], size) for key, size in sizes.items()}
    return found


def _larger(left: int | None, right: int | None) -> int | None:
    return max((size for size in (left, right) if size is not None), default=None)


def report(result: Mapping[str, Any]) -> None:
    """The table of a case."""
    if result["exit_code"]:
        print(f"exit code {result['exit_code']}:\n{result['said']}", flush=True)
    measured, proposed = result["measured"], result["planned"]["proposed"]
    rows = {}
    for phase in proposed["phases"]:
        seen = measured["phases"].get(phase["phase"], {})
        rows[phase["phase"]] = _cells(phase["total"], seen.get("nvml"), seen.get("allocated"), seen.get("reserved"))
    rows["peak"] = _cells(proposed["peak"], measured["peak"])
    print(table("GiB", rows), flush=True)
    speed = result["planned"]["speed"]
    times = {**speed["seconds"], "step": speed["step"]}
    print(
        table("seconds", {name: _times(time, result["seconds"].get(name)) for name, time in times.items()}), flush=True
    )
    for phase in proposed["phases"]:
        parts = (f"{part['role']} {part['what']} {part['size'] / GIB:.2f}" for part in phase["parts"])
        print(f"{phase['phase']}: {', '.join(parts)}", flush=True)
    print("steps:", ", ".join(f"{seconds:.1f} s" for seconds in result["steps"]) or "none", flush=True)
    print(f"in use before the run: {measured['before'] / GIB:.2f} GiB", flush=True)
    if measured["before"] > BUSY:
        print("somebody else used this GPU: what they gave back meanwhile is missing from the peak", flush=True)


def _times(planned: float, measured: float | None) -> dict[str, str]:
    return {"planned": f"{planned:.2f}", "measured": "" if measured is None else f"{measured:.2f}"}


def _cells(planned: int, nvml: int | None, allocated: int | None = None, reserved: int | None = None) -> dict[str, str]:
    sizes = {"NVML": nvml, "allocated": allocated, "reserved": reserved}
    return {
        "planned": f"{planned / GIB:.2f}",
        **{name: "" if size is None else f"{size / GIB:.2f}" for name, size in sizes.items()},
        "error": "" if not nvml else f"{100 * (planned / nvml - 1):+.1f} %",
    }


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        typer.run(main)
