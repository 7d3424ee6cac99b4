"""Tokens per second of the rollout engine `torch` and of vLLM's offline generation: same model, same requests.

All completions are of equal length, and then (`long tail`) of log-normal lengths: four times as many, with a mean of a
quarter of --new-tokens, which is the limit. As many sequences are generated at a time as before, so this measures
whether slots are refilled. There each completion is a request with its own limit, and as many have a prompt in common
as before.

python benchmarks/rollout.py                  a model of about ten million parameters, 4,096 × 256 tokens
python benchmarks/rollout.py --shape 0.5B --prompts 128 --samples 8 --prompt-tokens 140 --new-tokens 1024
python benchmarks/rollout.py --engine torch --profile …      and which kernels the time of a batch goes to
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from math import log
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import KILLED, run
from benchmarks.common import print_machine, print_table
from benchmarks.shapes import write_model
from tinyzero_trainer.utils.startup import without_collector

ENGINES = ("torch", "vllm")
KINDS = ("without", "with log-probs", "long tail")
SIGMA = 1.0
"""Of the logarithm of a length: a tenth of all completions have 2.2 times the mean or more."""

MORE = 4
"""Times as many completions with lengths of a long tail, and the limit of a length over their mean."""
DISTRIBUTIONS = ("torch", "transformers", "tinyzero-trainer")
VOCABULARY = 1000  # prompts are random tokens below this number
Prompts = list[list[int]]
Generate = Callable[..., int]
"""Generates completions for (prompts, completions of each, their length, whether with log-probabilities, seed, lengths
of all completions instead); returns the number of their tokens."""


def main(
    shape: Annotated[str, typer.Option(help="10M, or a key of benchmarks/shapes.py's QWEN")] = "10M",
    prompts: Annotated[int | None, typer.Option(help="256, and 8 on the CPU")] = None,
    samples: Annotated[int | None, typer.Option(help="completions of each: 16, and 4 on the CPU")] = None,
    prompt_tokens: int = 24,
    new_tokens: Annotated[int | None, typer.Option(help="of each completion: 256, and 32 on the CPU")] = None,
    repeat: Annotated[int, typer.Option(help="repetitions after a warm-up; the median counts")] = 3,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if there is one")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="torch, vllm; default: both")] = None,
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of a run, for the engine torch")] = None,
    vllm_option: Annotated[list[str] | None, typer.Option(help="KEY=JSON for vLLM's LLM")] = None,
    profile: Annotated[bool, typer.Option(help="kernels of a batch without log-probs, of the engine torch")] = False,
    limit: Annotated[float, typer.Option(help="seconds for each engine")] = 600,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure each engine in a separate process, with log-probabilities and without."""
    if worker is not None:
        work(json.loads(worker))
        return
    if device is None:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    few = device == "cpu"
    job = {
        "prompts": prompts or (8 if few else 256),
        "samples": samples or (4 if few else 16),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens or (32 if few else 256),
        "repeat": repeat,
        "device": device,
        "overrides": override or [],
        "profile": profile,
        "vllm": {key: json.loads(value) for key, _, value in (one.partition("=") for one in vllm_option or [])},
    }
    found: dict[str, Any] = {"machine": print_machine(*DISTRIBUTIONS), "shape": shape, "job": job, "engines": {}}
    with TemporaryDirectory() as folder:
        found["parameters"] = write_model(Path(folder, "model"), shape)
        for name in engine or ENGINES:
            found["engines"][name] = measure(name, {**job, "model": str(Path(folder, "model"))}, limit)
            print(json.dumps({name: found["engines"][name]}), flush=True)
            if output is not None:
                output.write_text(json.dumps(found, indent=2))
    show(found)


def measure(name: str, job: dict[str, Any], limit: float) -> dict[str, Any]:
    """What a process with this engine measures, or why it fails."""
    if name == "vllm" and find_spec("vllm") is None:
        return {"error": "vLLM is not installed"}
    command = [sys.executable, __file__, "--worker", json.dumps({**job, "engine": name})]
    done = run(command, limit, env={"OMP_WAIT_POLICY": "PASSIVE"})
    if done.code == KILLED:
        return {"error": f"not done after {limit:g} s"}
    if done.code:
        return {"error": done.output[-2000:]}
    found: dict[str, Any] = next(json.loads(line)["found"] for _, line in done.lines if line.startswith('{"found": '))
    return found


def work(job: dict[str, Any]) -> None:
    """In the separate process: start an engine, and time it."""
    started = time.perf_counter()
    prompts = random_prompts(MORE * job["prompts"], job["prompt_tokens"])
    fixed_prompts, samples, new_tokens = prompts[: job["prompts"]], job["samples"], job["new_tokens"]
    start = start_torch if job["engine"] == "torch" else start_vllm
    generate, about = start(job, len(fixed_prompts) * samples, job["prompt_tokens"] + new_tokens)
    about["start_s"] = time.perf_counter() - started
    fixed, tail = job["prompts"] * job["samples"] * job["new_tokens"], long_tail(job)
    for logprobs, kind in zip((False, True, True), KINDS, strict=True):
        lengths, expected = (tail, sum(tail)) if kind == "long tail" else (None, fixed)
        seconds, tokens = [], 0
        for number in range(job["repeat"] + 1):
            began = time.perf_counter()
            asked = fixed_prompts if lengths is None else prompts
            tokens = generate(asked, samples, new_tokens, logprobs, number, lengths)
            seconds.append(time.perf_counter() - began)
        assert tokens == expected, f"got {tokens} tokens, expected {expected}"
        about[kind] = {"seconds": seconds, "tokens_per_s": tokens / median(seconds[1:] or seconds)}
    if job["profile"] and job["engine"] == "torch":
        about["kernels"] = kernels_of(lambda: generate(fixed_prompts, samples, new_tokens, False, 0), job["device"])
    print(json.dumps({"found": about}), flush=True)


def kernels_of(call: Callable[[], Any], device: str) -> dict[str, tuple[float, int]]:
    """Seconds and calls of each kernel, or on the CPU of each operator, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    on_cpu = device == "cpu"
    with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as profiler:
        call()
    found = profiler.key_averages()
    seconds = {one.key: (one.self_cpu_time_total if on_cpu else one.self_device_time_total) / 1e6 for one in found}
    return {one.key: (seconds[one.key], one.count) for one in sorted(found, key=lambda one: -seconds[one.key])}


def long_tail(job: dict[str, Any]) -> list[int]:
    """The lengths of `MORE` times as many completions, the same for each engine.

    Example:
        >>> lengths = long_tail({"prompts": 100, "samples": 10, "new_tokens": 400})
        >>> len(lengths), max(lengths), 80 < sum(lengths) / len(lengths) < 100
        (4000, 400, True)
    """
    random, mean = Random(1), job["new_tokens"] / MORE
    drawn = (
        random.lognormvariate(log(mean) - SIGMA**2 / 2, SIGMA) for _ in range(MORE * job["prompts"] * job["samples"])
    )
    return [max(1, min(job["new_tokens"], round(length))) for length in drawn]


def random_prompts(count: int, tokens: int, seed: int = 0) -> Prompts:
    """Prompts of random tokens, all of the same length."""
    random = Random(seed)
    return [[random.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(count)]


def start_torch(job: dict[str, Any], at_a_time: int, longest: int) -> tuple[Generate, dict[str, Any]]:
    """The engine of a run with default settings, for `at_a_time` sequences of at most `longest` tokens."""
    from tinyzero_sdk.settings import build, merge, parse_overrides
    from tinyzero_trainer.config import TrainConfig

    with without_collector():  # as `tinyzero train` does; vLLM too excludes what it has imported
        import torch

        from tinyzero_trainer.models.device import choose_device
        from tinyzero_trainer.models.loading import load_model
        from tinyzero_trainer.rollout import SamplingParams
        from tinyzero_trainer.rollout.build import build_engine
        from tinyzero_trainer.rollout.engine import EMPTY, Group
        from tinyzero_trainer.rollout.torch.batched_engine import BatchedEngine

    device, notes = choose_device(job["device"]), list[str]()
    settings = {"run": {"device": job["device"]}, "rollout": {"max_num_seqs": at_a_time}}
    config = build(TrainConfig, merge(settings, parse_overrides(job["overrides"])))
    model = replace(load_model(job["model"], device), eos_ids=frozenset())  # looked for, and never found
    engine: Any = build_engine(config, model, notes.append)
    assert isinstance(engine, BatchedEngine)

    def generate(
        prompts: Prompts, samples: int, new_tokens: int, logprobs: bool, seed: int, lengths: list[int] | None = None
    ) -> int:
        params = SamplingParams(new_tokens, ignore_eos=lengths is None, logprobs=logprobs)
        if lengths is not None:
            requests = [
                Group(number, prompts[number // samples], (EMPTY,), length, seed, number)
                for number, length in enumerate(lengths)
            ]
            engine.submit(requests)
            complete: list[Group] = []
            while len(complete) < len(requests):
                complete += engine.advance(params)
            return sum(len(completion.token_ids) for group in complete for completion in group.completions)
        groups = engine.generate(prompts, samples, params, seed=seed)
        return sum(len(rollout.token_ids) for group in groups for rollout in group)

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return generate, {"device": name, "class": type(engine).__name__, "version": version("torch"), "notes": notes}


def start_vllm(job: dict[str, Any], at_a_time: int, longest: int) -> tuple[Generate, dict[str, Any]]:
    """vLLM in this process, with CUDA graphs; tokens are not decoded, as with the other engine."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it needs flashinfer, which may be missing
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    import vllm

    on_gpu = job["device"] != "cpu"
    settings = {
        "dtype": "bfloat16" if on_gpu else "float32",
        "max_model_len": longest,
        "max_num_seqs": min(1024, at_a_time),
        "enforce_eager": False,
        **({"gpu_memory_utilization": 0.6} if on_gpu else {}),
        **job["vllm"],
    }
    engine = vllm.LLM(job["model"], **settings)

    def generate(
        prompts: Prompts, samples: int, new_tokens: int, logprobs: bool, seed: int, lengths: list[int] | None = None
    ) -> int:
        def params(samples: int, length: int) -> Any:
            return vllm.SamplingParams(
                n=samples, max_tokens=length, temperature=1.0, ignore_eos=True, detokenize=False,
                logprobs=0 if logprobs else None,
            )  # fmt: skip

        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        if lengths is None:
            results = engine.generate(requests, params(samples, new_tokens), use_tqdm=False)
        else:
            each = [requests[number // samples] for number in range(len(lengths))]
            results = engine.generate(each, [params(1, length) for length in lengths], use_tqdm=False)
        return sum(len(completion.token_ids) for result in results for completion in result.outputs)

    return generate, {"version": vllm.__version__, "settings": settings}


def show(found: dict[str, Any]) -> None:
    """Print a table, and the errors."""
    rows = {}
    for name, engine in found["engines"].items():
        if "error" in engine:
            print(f"{name}: {engine['error']}")
            continue
        rows[f"{name} {engine['version']}"] = {
            **{kind: f"{engine[kind]['tokens_per_s']:,.0f}" for kind in KINDS},
            "of fixed": f"{engine['long tail']['tokens_per_s'] / engine['with log-probs']['tokens_per_s']:.0%}",
            "starts in": f"{engine['start_s']:.1f} s",
            "first batch": f"{engine['without']['seconds'][0]:.1f} s",
        }
    if not rows:
        raise typer.Exit(1)
    if len(rows) == len(ENGINES):
        rates = {kind: [found["engines"][name][kind]["tokens_per_s"] for name in ENGINES] for kind in KINDS}
        times = {kind: f"{ours / theirs:.2f}×" for kind, (ours, theirs) in rates.items()}
        rows["torch over vllm"] = {**times, "of fixed": "", "starts in": "", "first batch": ""}
    job = found["job"]
    load = f"{job['prompts']} × {job['samples']} × ({job['prompt_tokens']} + {job['new_tokens']})"
    for engine in found["engines"].values():
        longest = list(engine.get("kernels", {}).items())[:20]
        cells = {name[:100]: {"seconds": f"{one:.3f}", "calls": str(calls)} for name, (one, calls) in longest}
        if cells:
            print_table("kernel", cells)
    print_table(f"tokens/s, {found['parameters'] / 1e6:.1f} M parameters, {load} tokens, {job['device']}", rows)


if __name__ == "__main__":
    typer.run(main)
