"""Runs with no memory setting typed: whether they fit, their memory next to the plan, and settings made by hand.

    python benchmarks/auto.py [--case 3B] [--case 7B] [--case grpo-24gb] [--case ppo-24gb] [--output auto.json]

`7B` takes two GPUs. Where a case is for a smaller GPU, another process holds the rest of the memory.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import run, wait_until_idle, watch_gpu_memory
from benchmarks.common import TINYZERO, fixed_workload, last_of_each, print_machine, print_table
from benchmarks.shapes import write_model
from benchmarks.training import metrics_of
from tinyzero_trainer.distributed.sizes import CONTEXT
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.nvml import nvidia_driver

PROMPT_TOKENS, NEW_TOKENS = 140, 1024
AUTO = "auto"
HOLD = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print(flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A run, and settings to compare with those that it chooses."""

    shape: str  # of the model; see shapes.py
    arguments: str
    alternatives: tuple[str, ...]
    gpu_memory: int | None = None  # bytes; None = the whole GPU


def settings(micro_batch: int, *, recompute: bool = False, offload: str = "none") -> str:
    return (
        f"optimizer.micro_batch_tokens={micro_batch} memory.activation_checkpointing={str(recompute).lower()} "
        f"memory.cpu_offload={offload}"
    )


_GRPO, _PPO = "--recipe tinyzero-grpo", "--recipe tinyzero-ppo"
_RECOMPUTED = (settings(16384, recompute=True), settings(32768, recompute=True))
CASES = {
    "3B": Case("3B", "", (settings(8192), settings(16384), settings(65536, recompute=True))),
    "7B": Case("7B", "--gpus 2", (settings(12288), settings(32768, recompute=True), settings(4096))),
    "grpo-24gb": Case("0.5B", _GRPO, (settings(4096), *_RECOMPUTED), 24 * 10**9),
    "ppo-24gb": Case("0.5B", _PPO, (settings(8192, offload="idle"), *_RECOMPUTED), 24 * 10**9),
    "0.5B": Case("0.5B", "", (settings(16384), settings(32768), settings(131072))),
    "10M": Case("10M", "rollout.max_completion_tokens=16", (settings(2048),)),
}
"""`10M` tests this script, on a CPU too."""


def main(
    case: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(CASES)}")] = None,
    prompts: Annotated[int, typer.Option(help="prompts of a step, each with 8 completions")] = 32,
    steps: int = 3,
    limit: Annotated[float, typer.Option(help="seconds for each run")] = 400,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results, written after each run")] = None,
) -> None:
    """Measure, and print a table for each case."""
    found: dict[str, Any] = {"machine": print_machine("torch", "tinyzero-trainer"), "cases": {}}
    for name in case or list(CASES)[:4]:
        results = found["cases"][name] = {}
        with TemporaryDirectory() as scratch:
            model = Path(scratch) / "model"
            write_model(model, CASES[name].shape)
            work = fixed_workload(model, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, steps=steps)
            work += [f"data.prompts_per_step={prompts}", "rollout.group_size=8", *CASES[name].arguments.split()]
            wait_until_idle([None])
            with memory_held(CASES[name].gpu_memory):
                for number, given in enumerate(("", *CASES[name].alternatives)):
                    directory = Path(scratch) / f"run-{number}"
                    results[given or AUTO] = measure([*work, *given.split()], directory, limit)
                    shutil.rmtree(directory, ignore_errors=True)  # checkpoints of 3B and 7B would fill a disk
                    if output is not None:
                        output.write_text(json.dumps(found, indent=2))
        print_table(name, {words: cells(one, results[AUTO]) for words, one in results.items()})
        print(f"chosen: {results[AUTO]['chosen']}\n", flush=True)


@contextmanager
def memory_held(left: int | None) -> Iterator[None]:
    """Hold memory of the first GPU, so that this many bytes are left; None = all."""
    driver = nvidia_driver()
    if left is None or driver is None or not driver.gpus:
        yield
        return
    size = driver.gpus[0].memory - left - CONTEXT  # the last for the process that holds it
    command = [sys.executable, "-c", HOLD, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def measure(arguments: Sequence[str], directory: Path, limit: float) -> dict[str, Any]:
    """Train, then ask for the plan of the settings in the run's config.toml; means over all steps but the first."""
    time.sleep(5)  # until the memory of the run before is free
    with watch_gpu_memory() as memory:
        done = run([*TINYZERO, "train", *last_of_each(arguments), "--output", str(directory)], limit)
    rows, planned, saved = metrics_of(directory)[2:], None, directory / "config.toml"
    if saved.exists():
        command = [*TINYZERO, "plan", "--config", str(saved), "--json", "--prompt-tokens", str(PROMPT_TOKENS)]
        plan = subprocess.run(command, capture_output=True, text=True, check=False)
        if plan.returncode < 2 and plan.stdout:
            found = json.loads(plan.stdout)
            planned = {"peak": found["requested"]["peak"], "speed": found["speed"]}
    return {
        "step_s": [row["timing_s/step"] for row in rows],
        "tokens_per_s": fmean(row["perf/throughput"] for row in rows) if rows else None,
        "peak": memory.peak(),
        "planned": planned,
        "chosen": next((line for _, line in done.lines if line.startswith("auto: ")), ""),
        "exit_code": done.code,
        "log": done.output[-4000:] if done.code else "",
    }


def cells(result: Mapping[str, Any], auto: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table."""
    speed, of_auto = result["tokens_per_s"], auto["tokens_per_s"]
    planned, peak = result["planned"], result["peak"]
    return {
        "tokens/s": "failed" if speed is None else f"{speed:,.0f}",
        "against auto": "" if speed is None or of_auto is None else f"{100 * (speed / of_auto - 1):+.1f}%",
        "step": "" if speed is None else f"{fmean(result['step_s']):.1f} s",
        "planned": "" if planned is None else f"{planned['peak'] / GIB:.1f} GiB",
        "NVML": "" if peak is None else f"{peak / GIB:.1f} GiB",
        "plan's error": f"{100 * (planned['peak'] / peak - 1):+.1f}%" if planned and peak else "",
    }


if __name__ == "__main__":
    typer.run(main)
