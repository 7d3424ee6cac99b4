"""The host's work in a training step besides generation and update: everything that is done for each completion.

    python benchmarks/host.py [--workers 4] [--repeat 5]

Completions are random, from a fake engine: 4,096 of about 60 tokens, as from a small model on a GPU, and 1,024 and
2,048 of 1,024 tokens, as from a model of 0.5B parameters on one GPU and on two. The network is not run, but its
micro-batches are built. With Ray they also come "from engines", and go "to ranks".
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `tinyzero train` does, before torch is imported

import pickle
import statistics
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.common import print_machine, print_table
from tinyzero_sdk.settings import build
from tinyzero_trainer.algorithms.advantages import grpo
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.step_metrics import batch_metrics, timing_metrics
from tinyzero_trainer.executors.ray.remote_workers import without_scores
from tinyzero_trainer.executors.tasks import run_tasks, training_stream
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.monitoring.completion_log import CompletionLog
from tinyzero_trainer.rewards.score import score
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Generation, Prompt

TASK = "countdown"
FROM_ENGINES, TO_RANKS = "from engines", "to ranks"


@dataclass(frozen=True, slots=True)
class Load:
    """The completions of a step."""

    prompts: int
    samples: int  # completions per prompt
    shortest: int
    longest: int  # tokens of a completion; lengths are uniform


LOADS = {
    "4,096 × 60 tokens": Load(256, 16, shortest=20, longest=100),
    "1,024 × 1,024 tokens": Load(128, 8, shortest=1024, longest=1024),
    "2,048 × 1,024 tokens": Load(256, 8, shortest=1024, longest=1024),
}


def random_generations(prompts: list[Prompt], load: Load, end: int, seed: int) -> list[tuple[Prompt, Generation]]:
    """Random completions, group after group."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    generations = []
    for prompt in prompts:
        for _ in range(load.samples):
            length = random.randint(load.shortest, load.longest)
            tokens = torch.randint(1000, (length,), generator=generator).tolist()
            ids, logprobs = array("i", [*tokens[:-1], end]), array("d", [-1.0]) * length  # as of the engine `torch`
            generations.append((prompt, Generation(ids, logprobs, finished=True)))
    return generations


def measure(load: Load, *, workers: int, repeat: int) -> dict[str, float]:
    """Median milliseconds of each kind of work; the first step, which warms up, does not count."""
    values: dict[str, Any] = {
        "tasks": {TASK: {}},
        "data": {"prompts_per_step": load.prompts, "prompt_template": "compact"},
        "rollout": {"group_size": load.samples, "max_completion_tokens": load.longest},
        "optimizer": {"num_mini_batches": 4, "micro_batch_tokens": 65536},
        "reward": {"num_workers": workers},
    }
    config, tokenizer = build(TrainConfig, values), build_tokenizer()
    options: dict[str, Any] = {"token_budget": 65536, "pad_id": 0, "device": torch.device("cpu")}
    times: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        times[name].append(1000 * (time.perf_counter() - started))

    with run_tasks(config, load_tasks(config.task_specs), tokenizer) as tasks, TemporaryDirectory() as folder:
        stream = training_stream(config, tasks, {})
        pools, loaded = ({name: getattr(task, part) for name, task in tasks.items()} for part in ("pool", "task"))
        log = CompletionLog(Path(folder), config.log, loaded, tokenizer, print)
        for step in range(repeat + 1):
            with timed("sampling prompts"):
                prompts = [next(stream) for _ in range(load.prompts)]
            generations = random_generations(prompts, load, tokenizer.eos_token_id, step)
            with timed(FROM_ENGINES):
                (received,) = pickle.loads(pickle.dumps([[generation for _, generation in generations]]))
            with timed("decoding and scoring"):
                rollouts = score(generations, tokenizer, pools, group_size=load.samples)
            with timed("advantages and batch"):
                batch = TrainingBatch.of(rollouts, load.samples)
                batch.old_logprobs = batch.engine_logprobs
                batch.advantages = grpo(batch)
            arrived = [replace(one, generation=each) for one, each in zip(rollouts, received, strict=True)]
            with timed(TO_RANKS):
                pickle.loads(pickle.dumps(replace(batch, rollouts=without_scores(arrived))))
            for packing in ("packed", "padded"):
                with timed(f"micro-batches, {packing}"):
                    for mini_batch in batch.mini_batches(
                        config.optimizer.num_mini_batches, config.optimizer.update_epochs
                    ):
                        for micro_batch in micro_batches(mini_batch.rollouts, layout=packing, **options):
                            mini_batch.select(micro_batch.indices)
            with timed("metrics"):
                batch_metrics(loaded, rollouts, batch)
                timing_metrics({"gen": 1.0, "step": 1.0}, rollouts, rollouts)
            with timed("keeping completions"):
                log.train(step + 1, rollouts)
            with timed("writing them"):
                log.write()
    return {name: statistics.median(values[1:] or values) for name, values in times.items()}


def main(
    workers: Annotated[int, typer.Option(help="scoring processes")] = 4,
    repeat: Annotated[int, typer.Option(help="repetitions after a warm-up; medians are shown")] = 5,
) -> None:
    """Measure the host's work on the completions of a step."""
    print_machine("tinyzero-trainer", "torch", "transformers", "numpy")
    found = {title: measure(load, workers=workers, repeat=repeat) for title, load in LOADS.items()}
    rows = {
        name: {title: f"{times[name]:.1f} ms" for title, times in found.items()} for name in next(iter(found.values()))
    }
    other = ("micro-batches, padded", FROM_ENGINES, TO_RANKS)
    totals = {title: sum(times.values()) - sum(map(times.__getitem__, other)) for title, times in found.items()}
    rows["all, packed, in one process"] = {title: f"{total:.0f} ms" for title, total in totals.items()}
    print_table(f"median of {repeat}, {workers} scoring processes", rows)


if __name__ == "__main__":
    typer.run(main)
