"""What a training step costs the host beside generation and update: everything that is done for each completion.

    python benchmarks/host.py [--workers 4] [--repeat 5]

Completions are random, of a fake engine: 4,096 of about 60 tokens, as a small model on a GPU makes them, and 1,024 of
1,024 tokens, as one of 0.5B parameters does. The network is left out; what is laid out for it is counted.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `tinyzero train` does, before torch is imported

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.common import print_machine, print_table
from tinyzero_sdk.settings import build
from tinyzero_trainer.algorithms.advantages import ESTIMATORS
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.heldout_eval import write_samples
from tinyzero_trainer.controller.step_metrics import batch_metrics, timing_metrics
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.tasks import RunTask, run_tasks, training_stream
from tinyzero_trainer.rewards.score import score
from tinyzero_trainer.sft.tiny_model import build_tokenizer
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Generation, Prompt

TASK = "countdown"


@dataclass(frozen=True, slots=True)
class Load:
    """A step's worth of completions."""

    prompts: int
    """Problems."""

    samples: int
    """Completions of each."""

    shortest: int
    """Tokens of the shortest completion."""

    longest: int
    """Tokens of the longest; lengths are spread evenly."""

    step_seconds: float
    """A whole step of this kind on one H200, of which the share is shown."""


LOADS = {
    "4,096 × 60 tokens": Load(256, 16, shortest=20, longest=100, step_seconds=1.3),
    "1,024 × 1,024 tokens": Load(128, 8, shortest=1024, longest=1024, step_seconds=14.7),
}


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds of the parts, one value for each repetition."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    """By the name of the part."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge what is done within to `name`."""
        started = time.perf_counter()
        yield
        self.parts.setdefault(name, []).append(1000 * (time.perf_counter() - started))

    def medians(self) -> dict[str, float]:
        """Of each part; the first repetition, which warms up, is left out where there are more."""
        return {name: statistics.median(values[1:] or values) for name, values in self.parts.items()}


def rollouts(
    prompts: list[Prompt], load: Load, vocabulary: int, end: int, seed: int
) -> list[tuple[Prompt, Generation]]:
    """Random completions, group after group."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    drawn = []
    for prompt in prompts:
        for _ in range(load.samples):
            length = random.randint(load.shortest, load.longest)
            tokens = torch.randint(vocabulary, (length,), generator=generator).tolist()
            drawn.append((prompt, Generation([*tokens[:-1], end], [-1.0] * length, finished=True)))
    return drawn


def one_step(
    config: TrainConfig, roles: Any, stream: Iterator[Prompt], load: Load, watch: Stopwatch, folder: Path, seed: int
) -> None:
    """All that a step does beside generation and update."""
    tokenizer, group_size = roles.language_model.tokenizer, load.samples
    with watch.part("drawing prompts"):
        prompts = [next(stream) for _ in range(load.prompts)]
    drawn = rollouts(prompts, load, 1000, tokenizer.eos_token_id, seed)
    with watch.part("decoding and scoring"):
        samples = score(drawn, tokenizer, {name: role.pool for name, role in roles.tasks.items()})
    with watch.part("advantages and batch"):
        experience = TrainingBatch.of(samples, group_size)
        experience.old_logprobs = experience.engine_logprobs
        experience.advantages = ESTIMATORS["grpo"](experience)
    for layout in ("packed", "padded"):
        with watch.part(f"micro-batches, {layout}"):
            lay_out_all(experience, config, layout)
    with watch.part("metrics"):
        tasks = {name: role.task for name, role in roles.tasks.items()}
        batch_metrics(tasks, samples, experience)
        timing_metrics({"gen": 1.0, "step": 1.0}, samples, samples)
    with watch.part("writing 16 samples"):
        write_samples(folder / "samples.jsonl", samples[:16])


def lay_out_all(experience: TrainingBatch, config: TrainConfig, layout: Any) -> None:
    """What the update does before each forward pass."""
    for part in experience.mini_batches(config.optimizer):
        for batch in micro_batches(
            part.rollouts,
            token_budget=config.optimizer.micro_batch_tokens,
            pad_id=0,
            device=torch.device("cpu"),
            layout=layout,
        ):
            part.select(batch.rows)


def measure(load: Load, *, workers: int, repeat: int) -> dict[str, float]:
    """Milliseconds of each part."""
    values: dict[str, Any] = {
        "tasks": {TASK: {}},
        "data": {"prompts_per_step": load.prompts, "prompt_template": "compact"},
        "rollout": {"group_size": load.samples, "max_completion_tokens": load.longest},
        "optimizer": {"num_mini_batches": 4, "micro_batch_tokens": 65536},
        "reward": {"num_workers": workers},
    }
    config, tokenizer, watch = build(TrainConfig, values), build_tokenizer(), Stopwatch()
    with run_tasks(config, load_tasks(config.task_specs), tokenizer) as tasks, TemporaryDirectory() as folder:
        stream = training_stream(config, tasks, {})
        for number in range(repeat + 1):
            one_step(config, _roles(tasks, tokenizer), stream, load, watch, Path(folder), number)
    return watch.medians()


def _roles(tasks: dict[str, RunTask], tokenizer: Any) -> Any:
    """What `score` needs of a run's roles."""

    @dataclass
    class Model:
        tokenizer: Any

    return Workers(tasks, Model(tokenizer), None, None, None, None)  # type: ignore[arg-type]


def main(
    workers: Annotated[int, typer.Option(help="scoring processes")] = 4,
    repeat: Annotated[int, typer.Option(help="repetitions after one that warms up; medians are shown")] = 5,
) -> None:
    """Measure the host's work on a step's completions, part by part."""
    print_machine("tinyzero-trainer", "torch", "transformers", "numpy")
    found = {name: measure(load, workers=workers, repeat=repeat) for name, load in LOADS.items()}
    parts = next(iter(found.values()))
    rows = {part: {name: f"{found[name][part]:.1f} ms" for name in found} for part in parts}
    totals = {
        name: sum(value for part, value in of.items() if not part.endswith("padded")) for name, of in found.items()
    }
    rows["all, packed"] = {name: f"{total:.0f} ms" for name, total in totals.items()}
    rows["share of a step on an H200"] = {
        name: f"{total / 10 / LOADS[name].step_seconds:.1f} % of {LOADS[name].step_seconds:g} s"
        for name, total in totals.items()
    }
    print_table(f"median of {repeat}, {workers} scoring processes", rows)


if __name__ == "__main__":
    typer.run(main)
