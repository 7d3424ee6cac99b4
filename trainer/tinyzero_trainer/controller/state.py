"""State of a run other than weights and optimizers: counters, stream positions, adapted values; saved as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter

from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.rewards.audit import AuditState
from tinyzero_trainer.types import Rollout

STATE_FILE = "state.json"


@dataclass(slots=True)
class TrainerState:
    """What one step leaves to the next; in a checkpoint, `state.json`."""

    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="constants")  # by default NaN metrics become null
    step: NonNegativeInt = 0  # completed steps
    pending_metrics: dict[str, float] | None = field(default_factory=dict)
    """Metrics of this step until its evaluation is done and its line in `metrics.jsonl` is written; None afterwards."""

    elapsed_s: float = 0.0  # of training, over all sessions
    cumulative_reward: float = 0.0
    prompt_tokens: int = 0  # each prompt counted once per completion
    response_tokens: int = 0
    progress: dict[str, StreamState] = field(default_factory=dict)  # position of each task's training stream
    kl_coefficient: float | None = None  # adaptive KL coefficient; None before the first adaptation
    length_control: LengthControlState = field(default_factory=LengthControlState)
    audit: dict[str, AuditState] = field(default_factory=dict)  # what the audit has found, by task

    def add_totals(self, rollouts: Sequence[Rollout], seconds: float) -> dict[str, float]:
        """Add a step's completions and wall-clock seconds; the totals as metrics."""
        self.prompt_tokens += sum(len(rollout.prompt.token_ids) for rollout in rollouts)
        self.response_tokens += sum(len(rollout.generation.token_ids) for rollout in rollouts)
        self.cumulative_reward += sum(rollout.score.value for rollout in rollouts)
        self.elapsed_s += seconds
        return {
            "tokens/prompt_total": float(self.prompt_tokens),
            "tokens/response_total": float(self.response_tokens),
            "tokens/overall_total": float(self.prompt_tokens + self.response_tokens),
            "train/cumulative_reward": self.cumulative_reward,
            "time/elapsed_s": self.elapsed_s,
        }

    def save(self, directory: Path) -> None:
        """Write `state.json`."""
        (directory / STATE_FILE).write_bytes(_STATE.dump_json(self))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what `save` wrote; a DamagedCheckpointError if it is anything else."""
        file = directory / STATE_FILE
        with damage_in_one_line(file):
            return _STATE.validate_json(file.read_bytes())  # type: ignore[return-value]


_STATE = TypeAdapter(TrainerState)
