"""Where the time of an update on one GPU goes, by kind of kernel, next to what its arithmetic takes.

    python benchmarks/update.py [--shape 0.5B] [--prompts 32] [--output update.json]
    python benchmarks/update.py --variant "" --variant "memory.recompute_logits=false model.float8=rowwise"

Each variant, settings of `tinyzero train`, trains a model with random weights on the same random completions (8 of 140
+ 1,024 tokens for each prompt), in a process of its own: an update to warm up, two that are timed, and one under
PyTorch's profiler. `matrix products` are those of cuBLAS; `compiled` are the kernels that torch.compile makes, `gate`
those of models/float8_triton.py and `head` those of models/fused_logprobs_triton.py; `idle` is when none ran, less when
several did.
"""

import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import device_name, run
from benchmarks.common import print_machine, print_table
from benchmarks.shapes import write_model
from benchmarks.step import CEILING

CHILD = "--child"
SAMPLES = 8
KINDS = {
    "attention": r"flash|fmha|attention|softmax_lse",
    "matrix products": r"nvjet|gemm|cutlass|cublas|sm90_xmma",
    "gate": r"^_gate",
    "head": r"_measure|_gradient|_statistics",
    "compiled": r"^triton_",
    "optimizer": r"adam|lamb|multi_tensor",
    "copies and fills": r"memcpy|memset|copy|fill|cat|split",
}
"""Kinds of kernels, by their names; the first that matches."""


def main(
    shape: str = "0.5B",
    prompts: int = 32,
    prompt_tokens: int = 140,
    new_tokens: int = 1024,
    micro_batch_tokens: int = 32768,
    variant: Annotated[list[str] | None, typer.Option(help="KEY=VALUE … for tinyzero train")] = None,
    limit: Annotated[float, typer.Option(help="seconds for each variant")] = 300,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results")] = None,
) -> None:
    """Measure, and print a table of all variants and one of the first one's kernels."""
    found: dict[str, Any] = {"machine": print_machine("torch", "tinyzero-trainer"), "device": device_name()}
    found |= {"shape": shape, "variants": {}}
    with TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        parameters = write_model(model, shape)
        for words in variant or [""]:
            job = {"model": str(model), "prompts": prompts, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
            job["micro_batch_tokens"] = micro_batch_tokens
            done = run([sys.executable, __file__, CHILD, json.dumps(job), *words.split()], limit)
            results = [json.loads(line) for _, line in done.lines if line.startswith('{"seconds"')]
            found["variants"][words] = results[-1] if results else {"error": done.output[-2000:]}
            print(json.dumps({words: found["variants"][words]})[:400], flush=True)
            if output is not None:
                output.write_text(json.dumps(found, indent=2))
    arithmetic = 6 * parameters * prompts * SAMPLES * (prompt_tokens + new_tokens) / CEILING
    rows = {words or "as it is": cells(one, arithmetic) for words, one in found["variants"].items()}
    print_table(
        f"{shape}, {prompts} × {SAMPLES} × ({prompt_tokens} + {new_tokens}), arithmetic {arithmetic:.3f} s", rows
    )
    kernels = next(iter(found["variants"].values())).get("kernels", {})
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:40]
    if longest:
        print_table("kernel", {name[:100]: {"seconds": f"{one:.3f}", "calls": f"{n}"} for name, (one, n) in longest})


def cells(result: dict[str, Any], arithmetic: float) -> dict[str, str]:
    """A row of the table of variants."""
    columns = ("update", "MFU", "peak", *KINDS, "rest", "idle")
    if "error" in result:
        return dict.fromkeys(columns, "") | {"update": "failed"}
    kinds = defaultdict[str, float](float)
    for name, (seconds, _) in result["kernels"].items():
        kinds[next((kind for kind, names in KINDS.items() if re.search(names, name, re.IGNORECASE)), "rest")] += seconds
    kinds["idle"] = result["profiled"] - sum(kinds.values())
    shown = {"update": f"{result['seconds']:.3f} s", "MFU": f"{arithmetic / result['seconds']:.1%}"}
    shown["peak"] = f"{result['peak'] / 2**30:.1f} GiB"
    return shown | {kind: f"{kinds[kind]:.3f} s" for kind in columns[3:]}


def child(job: dict[str, Any], words: list[str]) -> None:
    """Time updates with these settings, and print seconds, bytes, gradient norm and kernels as JSON."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from tinyzero_sdk import Item, Score
    from tinyzero_sdk.settings import parse_overrides
    from tinyzero_trainer.advisor.auto import resolve_auto
    from tinyzero_trainer.algorithms.batch import TrainingBatch
    from tinyzero_trainer.config.compose import compose
    from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group
    from tinyzero_trainer.models.device import choose_device
    from tinyzero_trainer.training.build import build_trained_models
    from tinyzero_trainer.types import Generation, Prompt, Rollout

    new_tokens, device = job["new_tokens"], choose_device("auto")
    given = [f"model.path={job['model']}", "run.task=countdown"]
    given += [f"optimizer.micro_batch_tokens={job['micro_batch_tokens']}"]
    given += [f"data.prompts_per_step={job['prompts']}", f"rollout.group_size={SAMPLES}"]
    given += [f"rollout.max_completion_tokens={new_tokens}", "memory.activation_checkpointing=false"]
    config, _ = resolve_auto(compose(parse_overrides([*given, *words])).config)
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, 1000, (count,), generator=generator).tolist()

    prompts = [Prompt(Item(None), "", tokens(job["prompt_tokens"])) for _ in range(job["prompts"])]
    rollouts = [
        Rollout(prompt, Generation(tokens(new_tokens), None, finished=False), "", Score(0.0, False))
        for prompt in prompts
        for _ in range(SAMPLES)
    ]
    advantages = torch.randn(len(rollouts) * new_tokens, generator=generator)
    batch, settings = TrainingBatch.of(rollouts, SAMPLES, advantages=advantages), config.settings_at(1)
    on_gpu = device.type == "cuda"

    def timed() -> tuple[float, dict[str, float]]:
        start = time.perf_counter()
        metrics = policy.update(batch, settings)  # which ends with what the GPU gives
        return time.perf_counter() - start, metrics

    with process_group(device):
        models = build_trained_models(config, FsdpOptions.of(config, device), checkpoint=None)
        policy = models.policy
        models.try_largest(config, config.optimizer.token_budget)
        timed()
        seconds, metrics = min(timed() for _ in range(2))
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
            profiled, _ = timed()
    kernels = {one.key: (one.self_device_time_total / 1e6, one.count) for one in profiler.key_averages() if on_gpu}
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    result = {"seconds": seconds, "profiled": profiled, "peak": peak, "norm": metrics["actor/grad_norm"]}
    print(json.dumps({**result, "kernels": kernels}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(json.loads(sys.argv[2]), sys.argv[3:])
    else:
        typer.run(main)
