"""Groups of the configuration that say what is run, what scores and evaluates it, and what is kept of it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from tinyzero_trainer.config.values import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class RunConfig:
    """What is run, and where."""

    task: str = ""
    """Name of an installed task, or the path of a task file; several tasks stand in `tasks` instead."""

    output: str = ""
    """Run directory; created if missing."""

    seed: int = 0
    """Every random choice of the run derives from it."""

    steps: PositiveInt = 100
    """Training steps; each takes one batch of prompts."""

    executor: Literal["local"] = "local"
    """Where the roles run: `local` = in this process."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto` = a GPU where there is one."""

    recipe: str | None = None
    """Recipe whose settings stand below the user's own: its name (`tinyzero recipes` lists them), or a TOML file."""

    wrappers: tuple[str, ...] = ()
    """Score wrappers put around the task's reward in training, innermost first; one that needs a limit and is given
    none, such as `overlong`, takes rollout.max_tokens. Evaluation reports the unshaped score."""

    allow_unsafe_scorers: bool = False
    """Run a scorer that its task says must not be trusted with a model's text, in the worker processes."""


@dataclass(frozen=True)
class ModelConfig:
    """The language model to train."""

    path: str | None = None
    """Directory or Hub name of a transformers causal LM; none = the tiny model that comes with the trainer."""


@dataclass(frozen=True)
class RewardConfig:
    """How completions are scored."""

    workers: PositiveInt = 1
    """Scoring processes."""

    time_limit: PositiveFloat = 5.0
    """Seconds for one completion; then its worker is killed and replaced, and the completion scores 0."""

    memory_limit_gb: PositiveFloat = 4.0
    """Address space of a worker, in GiB."""

    max_failed_share: Fraction = 0.5
    """The run stops if more than this share of a batch ends in an error or a time-out of the scorer."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out problems, before, during and after training."""

    size: PositiveInt = 1024
    """Held-out problems before and after training."""

    during_size: PositiveInt = 256
    """Held-out problems during training: the first of the same ones, at most eval.size."""

    every: NonNegativeInt = 25
    """Steps between evaluations during training; 0 = none."""

    temperature: PositiveFloat = 1.0
    """Temperature of the sampled evaluation."""

    greedy: bool = True
    """Also evaluate with the likeliest token each time, before and after training."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run can go on from."""

    every: NonNegativeInt = 25
    """Steps between checkpoints; 0 = only at the end and when interrupted."""

    keep: Annotated[int, Ge(2)] = 2
    """Checkpoints kept; at least 2, so that one is whole while another is written."""


@dataclass(frozen=True)
class LogConfig:
    """Who is told."""

    trackers: tuple[Literal["wandb", "tensorboard"], ...] = ()
    """Observers beside `metrics.jsonl`; none of them can stop a run."""

    project: str = "tinyzero"
    """Project name for W&B."""

    rollouts_every: NonNegativeInt = 10
    """Steps between samples of rollouts written to `rollouts/`; 0 = none."""

    rollouts_count: PositiveInt = 16
    """Completions in such a sample."""
