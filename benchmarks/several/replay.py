"""Samples and records rollouts, or trains on recorded ones: the same completions on any number of GPUs.

    python benchmarks/several/replay.py record --batches DIR --output rows.json [KEY=VALUE …]
    python benchmarks/several/replay.py replay --batches DIR --output rows.json [KEY=VALUE …]

Suite `parity` of several_gpus.py runs it. KEY=VALUE are settings of `tinyzero train`. `record` takes whole steps: it
generates with the current weights, scores, writes the batch to DIR, and trains on it. `replay` takes the same steps
with the batches of DIR, and generates nothing.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from tinyzero_trainer.utils.startup import set_torch_environment

set_torch_environment()

from tinyzero_sdk.settings import parse_overrides  # noqa: E402  # before torch, see threads.py
from tinyzero_trainer.config.compose import make_config  # noqa: E402
from tinyzero_trainer.controller.rollout_batch import RolloutBatch, from_json, to_json  # noqa: E402
from tinyzero_trainer.controller.state import TrainerState  # noqa: E402
from tinyzero_trainer.controller.step import TrainingStep  # noqa: E402
from tinyzero_trainer.executors.build import build_workers  # noqa: E402
from tinyzero_trainer.monitoring.progress import Progress  # noqa: E402
from tinyzero_trainer.types import Rollout  # noqa: E402
from tinyzero_trainer.utils.signals import StopFlag  # noqa: E402

METRICS = {"loss": "actor/pg_loss", "KL": "actor/kl_loss", "gradient norm": "actor/grad_norm"}


def shortened(batch: RolloutBatch) -> RolloutBatch:
    """The batch with its completions cut to many lengths, the correct ones shorter; the scores stay.

    A model with random weights never ends a completion. With completions of equal length the advantages of a group sum
    to zero, and so does the loss before the first update: there would be little to compare.
    """
    random = Random(batch.step)

    def cut(rollout: Rollout) -> Rollout:
        generation = rollout.generation
        low, high = (0.1, 0.5) if rollout.score.correct else (0.5, 1.0)
        length = max(1, round(random.uniform(low, high) * len(generation.token_ids)))
        logprobs = None if generation.logprobs is None else generation.logprobs[:length]
        shorter = replace(generation, token_ids=generation.token_ids[:length], logprobs=logprobs, finished=False)
        return replace(rollout, generation=shorter)

    rollouts = [cut(rollout) for rollout in batch.rollouts]
    return replace(batch, rollouts=rollouts, kept=rollouts)


def main(
    mode: Annotated[str, typer.Argument(help="record or replay")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    batches: Annotated[Path, typer.Option(help="directory of the rollouts")] = Path("batches"),
    output: Annotated[Path, typer.Option(help="JSON of each step's metrics, written after each")] = Path("rows.json"),
) -> None:
    """Take all steps of a run."""
    config = make_config(parse_overrides(overrides or []))
    assert config.data.max_refill_rounds == 0, "all that is sampled is kept"
    batches.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with Progress() as display, build_workers(config, display=display, training=True) as workers:
        training = TrainingStep(config, workers, TrainerState(), StopFlag())
        for step in range(1, config.run.steps + 1):
            file = batches / f"step_{step}.json"
            if mode == "record":
                if step > 1:
                    workers.engine.load_weights()
                file.write_bytes(to_json(shortened(training.collector.collect(step, StopFlag()))))
            if mode == "record" or step == 1:
                workers.engine.sleep()
            batch = from_json(file.read_bytes())
            began = time.perf_counter()
            _, metrics = training.learn(batch, training.settings_at(step))
            rows.append({"step": step, "seconds": time.perf_counter() - began})
            rows[-1] |= {name: metrics[key] for name, key in METRICS.items() if key in metrics}
            print(json.dumps(rows[-1]), flush=True)
            output.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
