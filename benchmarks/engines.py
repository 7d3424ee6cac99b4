"""Both rollout engines side by side, without log-probabilities: the table by which `rollout.engine=auto` chooses.

Each engine generates all cases of a shape in a process of its own: vLLM with CUDA graphs for all batch sizes, prefix
caching and most of the GPU's memory, the engine `torch` as in a run. A case that both have finished is written at once.

python benchmarks/engines.py                          all shapes and cases, into the trainer's table
python benchmarks/engines.py --shape 7B --case few --limit 200 --output speeds.toml
python benchmarks/engines.py --write-docs             the table into benchmarks/README.md; measures nothing
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import tomli_w
import typer

from benchmarks.commands import KILLED, device_name, run, wait_until_idle
from benchmarks.common import print_machine, table, with_content
from benchmarks.rollout import DISTRIBUTIONS, ENGINES, random_prompts, start_torch, start_vllm
from benchmarks.shapes import QWEN, write_model
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.advisor.engine_choice import SPEEDS, EngineSpeed, read_speeds
from tinyzero_trainer.utils.vllm_version import require_vllm

README = Path(__file__).with_name("README.md")
WARM_UP = 32  # tokens of a completion in vLLM's first batch, since it has captured its graphs when it started


@dataclass(frozen=True, slots=True)
class Case:
    """A batch: prompts, completions of each, and the tokens of both."""

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int

    @property
    def completions(self) -> int:
        return self.prompts * self.samples

    def for_cpu(self) -> "Case":
        """A smaller one, which takes a second."""
        return Case(max(1, self.prompts // 64), 2, self.prompt_tokens // 32, self.new_tokens // 32)


CASES = {
    "long": Case(128, 8, 140, 1024),
    "short": Case(128, 8, 140, 256),
    "few": Case(8, 8, 140, 1024),
    "prompt": Case(32, 8, 2048, 512),
}
"""In this order the engine `torch` keeps the buffers of the first case until the last, whose prompts are longer."""


def main(
    shape: Annotated[list[str] | None, typer.Option(help="keys of benchmarks/shapes.py's QWEN, or 10M")] = None,
    case: Annotated[list[str] | None, typer.Option(help=f"{', '.join(CASES)}; default: all")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="batches after a warm-up; the median counts")] = 1,
    device: Annotated[str, typer.Option(help="cpu = small cases, to test this script")] = "cuda",
    limit: Annotated[float, typer.Option(help="seconds for each engine and shape")] = 300,
    output: Annotated[
        Path | None, typer.Option(help="table to add to; default: the trainer's, none on the CPU")
    ] = None,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="write the trainer's table to README.md")] = False,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure both engines, and add the results to a table."""
    if worker is not None:
        work(json.loads(worker))
        return
    if write_docs:
        page = with_content(README.read_text(encoding="utf-8"), {"engines": shown(read_speeds())})
        README.write_text(page, encoding="utf-8")
        return
    for given, known in ((shape or (), (*QWEN, "10M")), (case or (), (*CASES,))):
        if unknown := [one for one in given if one not in known]:
            raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
    on_cpu = device == "cpu"
    cases = {name: one.for_cpu() if on_cpu else one for name, one in CASES.items() if name in (case or CASES)}
    date, gpu = print_machine(*DISTRIBUTIONS)["date"], "CPU" if on_cpu else device_name().partition(",")[0]
    if gpu == "CPU" and not on_cpu:
        raise typer.BadParameter("there is no GPU; give --device cpu for small cases")
    rows: list[EngineSpeed] = []
    for name in shape or (["10M"] if on_cpu else list(QWEN)):
        rows += measure_shape(name, cases, gpu, date, limit, repeat, output or (None if on_cpu else SPEEDS))
    if rows:
        print("\n" + shown(rows), end="", flush=True)


def measure_shape(
    shape: str, cases: dict[str, Case], gpu: str, date: str, limit: float, repeat: int, output: Path | None
) -> list[EngineSpeed]:
    """The rows of a shape, which are added to the table at `output`."""
    found: dict[str, dict[str, Any]] = {name: {} for name in cases}
    versions: dict[str, Any] = {"torch_version": version("torch"), "vllm_version": vllm_version()}

    def rows() -> list[EngineSpeed]:
        return [
            EngineSpeed(
                gpu, parameters, one.completions, one.prompt_tokens, one.new_tokens, date, **found[name], **versions
            )
            for name, one in cases.items()
        ]

    with TemporaryDirectory() as folder:
        print(f"{shape}: writing a model with random weights", flush=True)
        try:
            parameters = write_model(Path(folder, "model"), shape)
        except (OSError, RuntimeError) as error:  # no room on the disk or the GPU
            print(f"{shape}: no number: {type(error).__name__}: {error}", flush=True)
            return []
        job: dict[str, Any] = {
            "model": str(Path(folder, "model")),
            "device": "cpu" if gpu == "CPU" else "cuda",
            "repeat": repeat,
        }
        job["cases"] = {name: asdict(one) for name, one in cases.items()}
        for engine in ENGINES:
            print(f"{shape}, {engine}: starting", flush=True)

            def report(case: str, rate: int, engine: str = engine) -> None:
                print(f"{shape}, {engine}, {case}: {rate:,} tokens/s", flush=True)
                found[case][engine] = rate
                save([row for row in rows() if row.is_complete], output)

            if failure := measure({**job, "engine": engine}, limit, report):
                missing = ", ".join(name for name in cases if engine not in found[name])
                print(
                    f"{shape}, {engine}: {f'no number for {missing}' if missing else 'fails at the end'}: {failure}",
                    flush=True,
                )
    save(rows(), output)
    return rows()


def measure(job: dict[str, Any], limit: float, report: Callable[[str, int], None]) -> str:
    """Run an engine in a process, which reports the tokens/s of each case; returns why it fails, or an empty text."""
    if job["engine"] == "vllm" and not vllm_version():
        return "vLLM is not installed"

    def read(_: float, line: str) -> None:
        if line.startswith('{"case": '):
            result = json.loads(line)
            report(result["case"], result["tokens_per_s"])

    command = [sys.executable, __file__, "--worker", json.dumps(job)]
    done = run(command, limit, on_line=read, env={"OMP_WAIT_POLICY": "PASSIVE"})
    if job["device"] != "cpu":
        wait_until_idle([None])
    return f"not done after {limit:g} s" if done.code == KILLED else done.output[-2000:] if done.code else ""


def work(job: dict[str, Any]) -> None:
    """In the separate process: start an engine, and time a batch of each case."""
    cases = {name: Case(**values) for name, values in job["cases"].items()}
    at_a_time = max(case.completions for case in cases.values())
    longest = max(case.prompt_tokens + case.new_tokens for case in cases.values())
    is_vllm, on_gpu = job["engine"] == "vllm", job["device"] != "cpu"
    best = {"enable_prefix_caching": True, "load_format": "dummy"}
    best |= (
        {"gpu_memory_utilization": 0.9, "max_cudagraph_capture_size": at_a_time} if on_gpu else {"enforce_eager": True}
    )
    settings = {**job, "overrides": [], "vllm": best}
    generate, _ = (start_vllm if is_vllm else start_torch)(settings, at_a_time, longest)
    for name, case in cases.items():
        seconds = []
        for batch in range(1 + job["repeat"]):
            prompts = random_prompts(case.prompts, case.prompt_tokens, seed=batch)  # others: those before are cached
            length = min(case.new_tokens, WARM_UP) if is_vllm and not batch else case.new_tokens
            began = time.perf_counter()
            tokens = generate(prompts, case.samples, length, False, batch)
            seconds.append(time.perf_counter() - began)
            assert tokens == case.completions * length, f"got {tokens} tokens, expected {case.completions * length}"
        rate = round(case.completions * case.new_tokens / median(seconds[1:]))
        print(json.dumps({"case": name, "tokens_per_s": rate}), flush=True)


def vllm_version() -> str:
    """The installed version of vLLM; empty if there is none."""
    try:
        return require_vllm()
    except TinyZeroError:
        return ""


def save(rows: Sequence[EngineSpeed], output: Path | None) -> None:
    """Add rows to a table, which begins as the trainer's."""
    if output is None or not rows:
        return
    table_ = merged(read_speeds(output if output.exists() else SPEEDS), rows)
    content = [{key: value for key, value in asdict(row).items() if value not in (None, "")} for row in table_]
    output.write_text(tomli_w.dumps({"speeds": content}), encoding="utf-8")


def merged(old: Iterable[EngineSpeed], new: Iterable[EngineSpeed]) -> list[EngineSpeed]:
    """Rows of which new ones replace old ones of the same GPU and sizes, unless a number that was there is missing."""
    rows = {(row.gpu, row.sizes): row for row in old}
    for row in new:
        before = rows.get((row.gpu, row.sizes))
        if row.is_complete or before is None or not before.is_complete:
            rows[row.gpu, row.sizes] = row
    return [rows[key] for key in sorted(rows)]


def shown(rows: Iterable[EngineSpeed]) -> str:
    """The rows as a Markdown table."""
    cells = {
        row.about: {
            "torch": f"{row.torch:,}" if row.torch else "none",
            "vLLM": f"{row.vllm:,}" if row.vllm else "none",
            "torch over vLLM": f"{row.torch / row.vllm:.2f}×" if row.torch and row.vllm else "",
            "versions, date": f"torch {row.torch_version}, vLLM {row.vllm_version or 'not installed'}, {row.date}",
        }
        for row in rows
    }
    return table("tokens/s", cells)


if __name__ == "__main__":
    typer.run(main)
