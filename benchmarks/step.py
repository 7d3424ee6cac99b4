"""One training step of a 0.5B model on one GPU, part by part; with --trl beside TRL's GRPOTrainer doing the same job.

python benchmarks/step.py --engine torch --engine vllm --trl measured --trl best
"""

import json
import os
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.common import TINYZERO, machine, print_machine, table
from benchmarks.shapes import write_model
from benchmarks.watching import Watched, run_watched
from tinyzero_trainer.monitoring.metrics_log import read_metrics

CEILING = 790e12
"""Floating-point operations a second that a bf16 matrix product reaches on an H200."""

TRL = {
    "measured": (16, {}),
    "liger": (32, {"use_liger_kernel": True, "vllm_importance_sampling_correction": False}),
    "best": (16, {"vllm_importance_sampling_correction": False, "torch_compile": True}),
}
"""Micro-batch and settings: the configuration whose figures are quoted, and the quicker ones that were found."""


def main(
    shape: str = "0.5B",
    prompts: int = 128,
    samples: int = 8,
    prompt_tokens: int = 140,
    new_tokens: int = 1024,
    steps: int = 3,
    engine: Annotated[list[str] | None, typer.Option(help="torch, vllm")] = None,
    trl: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(TRL)}")] = None,
    word: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for tinyzero train")] = None,
    limit: Annotated[float, typer.Option(help="seconds for each")] = 400,
    output: Annotated[Path | None, typer.Option(help="JSON of the results")] = None,
) -> None:
    """Measure, and print a table."""
    print_machine("torch", "transformers", "tinyzero-trainer")
    found: dict[str, Any] = {"machine": machine("torch", "transformers", "tinyzero-trainer"), "runs": {}}
    names = ("prompts", "samples", "prompt_tokens", "new_tokens", "steps")
    job = dict(zip(names, (prompts, samples, prompt_tokens, new_tokens, steps), strict=True))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parameters = write_model(folder / "model", shape)
        for name in engine if engine is not None else ([] if trl else ["torch"]):
            words = [f"rollout.engine={name}", *(word or [])]
            found["runs"][f"tinyzero, {name}"] = ours(folder, job, words, parameters, limit)
            save(found, output)
        for name in trl or []:
            found["runs"][f"TRL, {name}"] = theirs(folder, job, *TRL[name], limit)
            save(found, output)
    rows = {name: cells(run, job) for name, run in found["runs"].items()}
    print(table(f"{shape}, {prompts} × {samples} × ({prompt_tokens} + {new_tokens}) tokens", rows))


def save(found: dict[str, Any], output: Path | None) -> None:
    """Now, in case the next one fails."""
    print(json.dumps(found["runs"]), flush=True)
    if output is not None:
        output.write_text(json.dumps(found, indent=2))


def ours(folder: Path, job: dict[str, int], words: list[str], parameters: int, limit: float) -> dict[str, Any]:
    """Means over all steps but the first."""
    run = folder / "-".join(words).replace("/", "_")[:60]
    ran = run_watched([*TINYZERO, "train", *settings(folder / "model", run, job), *words], limit)
    rows = read_metrics(run / "metrics.jsonl")[2:] if (run / "metrics.jsonl").exists() else []
    if not rows:
        return {"error": ran.timed_output[-2000:], "peak_gb": peak_gb(ran)}
    seconds = {name: fmean(row[name] for row in rows) for name in rows[0] if name.startswith("timing_s/")}
    tokens = job["prompts"] * job["samples"] * (job["prompt_tokens"] + job["new_tokens"])
    update = seconds["timing_s/update_actor"]
    return {
        "step_s": [row["timing_s/step"] for row in rows],
        "timing_s": seconds,
        "mfu": 6 * parameters * tokens / update / CEILING,
        "rollout_tokens_per_s": job["prompts"] * job["samples"] * job["new_tokens"] / seconds["timing_s/gen"],
        "peak_gb": peak_gb(ran),
        "words": words,
    }


def settings(model: Path, run: Path, job: dict[str, int]) -> list[str]:
    """Of `tinyzero train`: full-length completions of prompts of one length, and little else."""
    return [
        "--task", str(Path(__file__).with_name("fixed_task.py")), "--model", str(model),
        "--output", str(run), f"task.prompt_tokens={job['prompt_tokens']}", "data.prompt_template=base",
        f"data.prompts_per_step={job['prompts']}", f"rollout.group_size={job['samples']}",
        f"rollout.max_completion_tokens={job['new_tokens']}", "rollout.ignore_eos=true",
        "rollout.return_logprobs=never",
        f"run.steps={job['steps']}", "eval.num_problems=8", "eval.every=0", "eval.greedy=false", "log.rollouts_every=0",
        "checkpoint.every=0", "optimizer.micro_batch_tokens=32768", f"reward.num_workers={min(8, os.cpu_count() or 1)}",
    ]  # fmt: skip


def theirs(
    folder: Path, job: dict[str, int], micro_batch: int, options: dict[str, Any], limit: float
) -> dict[str, Any]:
    """Seconds of each step but the first."""
    command = [sys.executable, str(Path(__file__).with_name("trl_step.py")), str(folder / "model")]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in job.items()]
    command += [
        f"--micro-batch={micro_batch}",
        *(f"--option={key}={json.dumps(value)}" for key, value in options.items()),
    ]
    ran = run_watched(command, limit, cwd=folder)
    lines = [json.loads(line) for line in ran.output.splitlines() if line.startswith('{"step_s"')]
    seconds = [line["step_s"] for line in lines]
    if not seconds:
        return {"error": ran.timed_output[-2000:], "peak_gb": peak_gb(ran)}
    return {"step_s": seconds[1:] or seconds, "peak_gb": peak_gb(ran), "options": options, "micro_batch": micro_batch}


def peak_gb(ran: Watched) -> float | None:
    """Most memory that the run had on the GPU, in GB; None = nobody could be asked."""
    most = ran.watch.most()
    return None if most is None else most / 1e9


def cells(run: dict[str, Any], job: dict[str, int]) -> dict[str, str]:
    """A row of the table."""
    tokens = job["prompts"] * job["samples"] * (job["prompt_tokens"] + job["new_tokens"])
    step, parts = fmean(run["step_s"]) if "step_s" in run else None, run.get("timing_s", {})
    names = ("gen", "update_actor", "update_weights", "reward")
    rest = 1 - (parts["timing_s/gen"] + parts["timing_s/update_actor"]) / parts["timing_s/step"] if parts else None
    return {
        "step": "failed" if step is None else f"{step:.1f} s",
        "tokens/s": "" if step is None else f"{tokens / step:,.0f}",
        **{name: f"{parts[f'timing_s/{name}']:.2f} s" if parts else "" for name in names},
        "all else": "" if rest is None else f"{100 * rest:.1f} %",
        "MFU": f"{100 * run['mfu']:.1f} %" if "mfu" in run else "",
        "peak": "" if run["peak_gb"] is None else f"{run['peak_gb']:.0f} GB",
    }


if __name__ == "__main__":
    typer.run(main)
