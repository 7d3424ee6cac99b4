"""Draws rollouts and writes them down, or learns from those that were: the same completions, however many GPUs learn.

    python benchmarks/several/replay.py record --batches DIR --output rows.json [KEY=VALUE …]
    python benchmarks/several/replay.py replay --batches DIR --output rows.json [KEY=VALUE …]

`parts.py` runs it, and tables.py compares the losses. Words are settings of `tinyzero train`. `record` takes whole
steps: it generates with the weights that it has by then, scores, writes the batch to DIR, and learns from it. `replay`
takes the same steps with the batches of DIR, and generates nothing.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from tinyzero_trainer.utils.threads import calm_threads

calm_threads()

from tinyzero_sdk.settings import parse_overrides  # noqa: E402  # before torch, see threads.py
from tinyzero_trainer.config.compose import make_config  # noqa: E402
from tinyzero_trainer.controller.pending_batch import RolloutBatch, from_json, to_json  # noqa: E402
from tinyzero_trainer.controller.state import TrainerState  # noqa: E402
from tinyzero_trainer.controller.step import TrainingStep  # noqa: E402
from tinyzero_trainer.executors.build import build_workers  # noqa: E402
from tinyzero_trainer.monitoring.progress import Progress  # noqa: E402
from tinyzero_trainer.types import Rollout  # noqa: E402
from tinyzero_trainer.utils.signals import StopFlag  # noqa: E402

SHOWN = {"loss": "actor/pg_loss", "KL": "actor/kl_loss", "gradient norm": "actor/grad_norm"}
"""What is kept of a step's metrics."""


def shortened(batch: RolloutBatch) -> RolloutBatch:
    """Its completions cut to many lengths, those that are right to shorter ones; the scores stay.

    A model with random weights never ends a completion. Of completions of one length the advantages of a group add up
    to nothing, and so does the loss before the policy has moved: there would be little to compare.
    """
    random = Random(batch.step)

    def cut(sample: Rollout) -> Rollout:
        rollout = sample.generation
        low, high = (0.1, 0.5) if sample.score.correct else (0.5, 1.0)
        length = max(1, round(random.uniform(low, high) * len(rollout.token_ids)))
        logprobs = None if rollout.logprobs is None else rollout.logprobs[:length]
        return replace(
            sample, generation=replace(rollout, token_ids=rollout.token_ids[:length], logprobs=logprobs, finished=False)
        )

    samples = [cut(sample) for sample in batch.rollouts]
    return replace(batch, rollouts=samples, kept=samples)


def batch_file(batches: Path, step: int) -> Path:
    """Where the batch of a step is."""
    return batches / f"step_{step}.json"


def main(
    what: Annotated[str, typer.Argument(help="record or replay")],
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    batches: Annotated[Path, typer.Option(help="directory of the rollouts")] = Path("batches"),
    output: Annotated[Path, typer.Option(help="JSON of what the steps showed, written after each")] = Path("rows.json"),
) -> None:
    """Take all steps of a run."""
    config = make_config(parse_overrides(words or []))
    assert config.data.max_refill_rounds == 0, "all that is sampled is kept"
    batches.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with Progress() as display, build_workers(config, display=display, training=True) as roles:
        training = TrainingStep(config, roles, TrainerState(), StopFlag(), batches)
        for step in range(1, config.run.steps + 1):
            file = batch_file(batches, step)
            if what == "record":
                if step > 1:
                    roles.engine.load_weights()
                file.write_bytes(to_json(shortened(training.collector.collect(step, step - 1, StopFlag()))))
            if what == "record" or step == 1:
                roles.engine.sleep()
            batch = from_json(file.read_bytes())
            began = time.perf_counter()
            _, metrics = training.learn(batch, training.settings_at(step))
            rows.append({"step": step, "seconds": time.perf_counter() - began})
            rows[-1] |= {name: metrics[key] for name, key in SHOWN.items() if key in metrics}
            print(json.dumps(rows[-1]), flush=True)
            output.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
