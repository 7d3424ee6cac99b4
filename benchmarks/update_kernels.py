"""Where the time of an update on one GPU goes, by kind of kernel, next to what its arithmetic takes.

    python benchmarks/update_kernels.py [--shape 0.5B] [--prompts 32] [--output kernels.json]

Runs three steps of GRPO on a model with random weights (8 completions of 140 + 1,024 tokens for each prompt), with
PyTorch's profiler on the update of the last one. `matrix products` are those of cuBLAS; `compiled` are the kernels that
torch.compile makes, `head` those of models/fused_logprobs_triton.py; `idle` is when none ran, less when several did.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import run
from benchmarks.common import fixed_workload, last_of_each, print_machine, print_table
from benchmarks.shapes import write_model
from benchmarks.step import CEILING

CHILD = "--child"
PROMPT_TOKENS, NEW_TOKENS, SAMPLES, STEPS = 140, 1024, 8, 3
KINDS = {
    "attention": r"flash|fmha|attention|softmax_lse",
    "matrix products": r"nvjet|gemm|cutlass|cublas|sm90_xmma",
    "head": r"_measure|_gradient|_statistics",
    "compiled": r"^triton_",
    "optimizer": r"adam|lamb|multi_tensor",
    "copies and fills": r"memcpy|memset|copy|fill|cat|split",
}
"""Kinds of kernels, by their names; the first that matches."""


def main(
    shape: str = "0.5B",
    prompts: int = 32,
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE for tinyzero train")] = None,
    limit: Annotated[float, typer.Option(help="seconds")] = 400,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results")] = None,
) -> None:
    """Measure, and print two tables."""
    found: dict[str, Any] = {"machine": print_machine("torch", "tinyzero-trainer"), "shape": shape}
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parameters = write_model(folder / "model", shape)
        work = fixed_workload(folder / "model", prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, steps=STEPS)
        work += [f"data.prompts_per_step={prompts}", f"rollout.group_size={SAMPLES}", *(override or [])]
        arguments = [*last_of_each(work), "--output", str(folder / "run")]
        done = run([sys.executable, __file__, CHILD, str(folder / "kernels.json"), "train", *arguments], limit)
        if done.code:
            raise SystemExit(done.output[-4000:])
        found |= json.loads((folder / "kernels.json").read_text())
    arithmetic = 6 * parameters * prompts * SAMPLES * (PROMPT_TOKENS + NEW_TOKENS) / CEILING
    kinds, kernels = defaultdict[str, float](float), found["kernels"]
    for name, (seconds, _) in kernels.items():
        kinds[next((kind for kind, names in KINDS.items() if re.search(names, name, re.IGNORECASE)), "rest")] += seconds
    found |= {"arithmetic": arithmetic, "kinds": kinds}
    kinds["idle"] = found["wall"] - sum(kinds.values())
    rows = {kind: {"seconds": f"{one:.3f}", "share": f"{one / found['wall']:.1%}"} for kind, one in kinds.items()}
    print_table(f"{shape}, update of {found['wall']:.3f} s, arithmetic {arithmetic:.3f} s", rows)
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:40]
    cells = {name[:100]: {"seconds": f"{one:.3f}", "calls": str(calls)} for name, (one, calls) in longest}
    print_table("kernel", cells)
    if output is not None:
        output.write_text(json.dumps(found, indent=2))


def child(file: Path, arguments: list[str]) -> None:
    """Run `tinyzero` with the profiler on the last step's update; write seconds and calls of each kernel."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from tinyzero_sdk.cli import main as tinyzero
    from tinyzero_trainer.training.policy import Policy

    profiler, calls = profile(activities=[ProfilerActivity.CUDA]), 0
    update = Policy.update

    def profiled(self: Policy, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < STEPS:
            return update(self, *args, **options)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with profiler:
            start.record()
            result = update(self, *args, **options)
            end.record()
            torch.cuda.synchronize()
        kernels = {one.key: (one.self_device_time_total / 1e6, one.count) for one in profiler.key_averages()}
        file.write_text(json.dumps({"wall": start.elapsed_time(end) / 1e3, "kernels": kernels}))
        return result

    Policy.update = profiled  # type: ignore[method-assign]
    tinyzero(arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(Path(sys.argv[2]), sys.argv[3:])
    else:
        typer.run(main)
