"""The phases of one training step of a 0.5B model on one GPU; with --trl, TRL's GRPOTrainer on the same job.

python benchmarks/step.py --engine torch --engine vllm --trl measured --trl best
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import run, watch_gpu_memory
from benchmarks.common import TINYZERO, fixed_workload, print_machine, print_table
from benchmarks.shapes import write_model
from benchmarks.training import mean_timings, metrics_of

CEILING = 790e12  # bf16 FLOP/s that a matrix product reaches on an H200
TRL = {
    "measured": (16, {}),
    "liger": (32, {"use_liger_kernel": True, "vllm_importance_sampling_correction": False}),
    "best": (16, {"vllm_importance_sampling_correction": False, "torch_compile": True}),
}
"""Micro-batch size and settings: a plain configuration, and the faster ones that were found."""

Job = dict[str, int]  # a step's work: prompts, samples, prompt_tokens, new_tokens; and the number of steps


def main(
    shape: str = "0.5B",
    prompts: int = 128,
    samples: int = 8,
    prompt_tokens: int = 140,
    new_tokens: int = 1024,
    steps: int = 3,
    micro_batch_tokens: int = 32768,
    engine: Annotated[list[str] | None, typer.Option(help="torch, vllm")] = None,
    trl: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(TRL)}")] = None,
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for tinyzero train")] = None,
    limit: Annotated[float, typer.Option(help="seconds for each run")] = 400,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results")] = None,
) -> None:
    """Measure, and print a table."""
    found: dict[str, Any] = {"machine": print_machine("torch", "transformers", "tinyzero-trainer"), "runs": {}}
    job = {"prompts": prompts, "samples": samples, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    job["steps"] = steps

    def add(name: str, result: dict[str, Any]) -> None:
        """Save it now, in case the next run fails."""
        found["runs"][name] = result
        print(json.dumps(found["runs"]), flush=True)
        if output is not None:
            output.write_text(json.dumps(found, indent=2))

    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parameters = write_model(folder / "model", shape)
        for name in engine if engine is not None else ([] if trl else ["torch"]):
            overrides = [f"rollout.engine={name}", *(override or [])]
            arguments = train_arguments(folder / "model", job, micro_batch_tokens)
            add(f"tinyzero, {name}", run_tinyzero(folder, job, arguments, overrides, parameters, limit))
        for name in trl or []:
            add(f"TRL, {name}", run_trl(folder, job, *TRL[name], limit))
    rows = {name: cells(result, job) for name, result in found["runs"].items()}
    print_table(f"{shape}, {prompts} × {samples} × ({prompt_tokens} + {new_tokens}) tokens", rows)


def run_tinyzero(
    folder: Path, job: Job, arguments: list[str], overrides: list[str], parameters: int, limit: float
) -> dict[str, Any]:
    """Means over all steps but the first."""
    directory = folder / "-".join(overrides).replace("/", "_")[:60]
    with watch_gpu_memory() as memory:
        done = run([*TINYZERO, "train", *arguments, "--output", str(directory), *overrides], limit)
    peak, rows = memory.peak(), metrics_of(directory)[2:]
    if not rows:
        return {"error": done.output[-2000:], "peak_bytes": peak}
    seconds = mean_timings(rows)
    return {
        "step_s": [row["timing_s/step"] for row in rows],
        "timing_s": seconds,
        "mfu": 6 * parameters * tokens_of(job) / seconds["timing_s/update_actor"] / CEILING,
        "rollout_tokens_per_s": job["prompts"] * job["samples"] * job["new_tokens"] / seconds["timing_s/gen"],
        "peak_bytes": peak,
        "overrides": overrides,
    }


def train_arguments(model: Path, job: Job, micro_batch_tokens: int = 32768) -> list[str]:
    """Of `tinyzero train`."""
    work = fixed_workload(model, prompt_tokens=job["prompt_tokens"], new_tokens=job["new_tokens"], steps=job["steps"])
    batch = [f"data.prompts_per_step={job['prompts']}", f"rollout.group_size={job['samples']}"]
    return [*work, *batch, f"optimizer.micro_batch_tokens={micro_batch_tokens}"]


def tokens_of(job: Job) -> int:
    """Prompt and completion tokens of a step."""
    return job["prompts"] * job["samples"] * (job["prompt_tokens"] + job["new_tokens"])


def run_trl(folder: Path, job: Job, micro_batch: int, options: dict[str, Any], limit: float) -> dict[str, Any]:
    """Seconds of each step but the first."""
    command = [sys.executable, str(Path(__file__).with_name("trl_step.py")), str(folder / "model")]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in (job | {"micro_batch": micro_batch}).items()]
    command += [f"--option={key}={json.dumps(value)}" for key, value in options.items()]

    def show(at: float, line: str) -> None:
        if line.startswith("{"):
            print(f"{at:.0f} s: {line}", file=sys.stderr, flush=True)

    with watch_gpu_memory() as memory:
        done = run(command, limit, on_line=show, cwd=folder)
    seconds = [json.loads(line)["step_s"] for line in done.output.splitlines() if line.startswith('{"step_s"')]
    if not seconds:
        return {"error": done.output[-2000:], "peak_bytes": memory.peak()}
    measured = {"step_s": seconds[1:] or seconds, "peak_bytes": memory.peak()}
    return {**measured, "options": options, "micro_batch": micro_batch}


def cells(result: dict[str, Any], job: Job) -> dict[str, str]:
    """A row of the table."""
    step, seconds = fmean(result["step_s"]) if "step_s" in result else None, result.get("timing_s", {})
    phases = ("gen", "update_actor", "update_weights", "reward")
    busy = seconds["timing_s/gen"] + seconds["timing_s/update_actor"] if seconds else 0.0
    # An update computes a prompt once, whatever the number of its completions.
    computed = job["prompts"] * (job["prompt_tokens"] + job["samples"] * job["new_tokens"]) / tokens_of(job)
    return {
        "step": "failed" if step is None else f"{step:.1f} s",
        "tokens/s": "" if step is None else f"{tokens_of(job) / step:,.0f}",
        **{name: f"{seconds[f'timing_s/{name}']:.2f} s" if seconds else "" for name in phases},
        "all else": f"{100 * (1 - busy / seconds['timing_s/step']):.1f}%" if seconds else "",
        "MFU": f"{100 * result['mfu']:.1f}%" if "mfu" in result else "",
        "of computed tokens": f"{100 * result['mfu'] * computed:.1f}%" if "mfu" in result else "",
        "peak": "" if result["peak_bytes"] is None else f"{result['peak_bytes'] / 1e9:.0f} GB",
    }


if __name__ == "__main__":
    typer.run(main)
