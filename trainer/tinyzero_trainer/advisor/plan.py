"""Settings with which a run fits a GPU: what is left to the run is chosen by auto.py, and so is as much as necessary of
what the user gave. What no GPU can run is in limits.py."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS, Choice, choose
from tinyzero_trainer.advisor.memory import Memory, predictions_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.algorithm import MICRO_BATCH_TOKENS
from tinyzero_trainer.config.settings import Settings, setting, with_settings
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.models.spec import ModelSpec

LORA_RANK = 32
LORA_RATE = 10  # factor by which an adapter's learning rate is larger

ADAPTER = {
    "lora.rank": "small matrices are trained instead of all weights",
    "optimizer.learning_rate": "an adapter needs a larger one",
}
"""What an adapter changes, and what it costs in exchange for memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that differs from the requested one, and what it costs."""

    key: str
    value: Any
    before: Any
    trade_off: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration that fits a GPU, if one was found."""

    requested: Memory
    """Predicted memory of the requested configuration; `memory` is that of the proposed one."""

    config: TrainConfig
    """The proposed configuration, with values for what is left to the run."""

    memory: Memory
    chosen: tuple[Change, ...]
    """These values; a run chooses them by itself."""

    changes: tuple[Change, ...]
    """Settings to give."""

    limit: int
    """Bytes of the GPU that may be used."""

    shortfall: int = 0
    """Fewest bytes for vllm.gpu_memory_gb, if the requested value is too small; otherwise 0."""

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.limit


def make_plan(
    spec: ModelSpec,
    config: TrainConfig,
    memory: int,
    prompt_tokens: int | None = None,
    *,
    gpu: GpuSpec | None = None,
    host: int | None = None,
) -> Plan:
    """Make a configuration fit each GPU that it uses, if it does not already.

    What the user gave for memory is left to the run, too; then given back setting by setting as long as it fits, each
    time the one with which a step is shortest. An adapter (LoRA) is the last resort, as it trains something else.

    Args:
        memory: bytes of the GPU.
        prompt_tokens: see `workload_of`.
        gpu: its data sheet; None = unknown, so times are predicted for a common GPU.
        host: bytes of host memory that `memory.cpu_offload` may use; None = unknown.

    Returns:
        A plan that `fits`, if one was found; otherwise the one that takes the least memory.
    """
    limit = usable(memory)

    def chosen(settings: Settings) -> Choice:
        return choose(spec, with_settings(config, settings), limit, gpu, prompt_tokens, host=host)

    def shortfall(choice: Choice) -> int:
        work = workload_of(choice.config, prompt_tokens)
        return int(predictions_of(choice.config).shortfall(spec, choice.config, work))

    def fits(choice: Choice) -> bool:
        return choice.memory.peak <= limit and not shortfall(choice)

    requested = best = chosen({})
    if not fits(requested):
        # What the user gave for memory, left to the run or at its least.
        default, keys = TrainConfig(), [key for key in MEMORY_SETTINGS if setting(config, key) != "auto"]
        ends = {key: kind.options[-1].value for key, kind in MEMORY_SETTINGS.items() if kind.options}
        settings: Settings = {key: "auto" if setting(default, key) == "auto" else ends[key] for key in keys}
        best = chosen(settings)
        if not fits(best) and not config.lora.rank:
            adapter = {**settings, **adapter_settings(config)}
            with suppress(ValueError):  # other settings may refuse an adapter
                if (adapted := chosen(adapter)).memory.peak < best.memory.peak:
                    best, settings = adapted, adapter
        while fits(best):
            fitting = [
                (choice, fewer)
                for key in settings
                if key not in ADAPTER
                and fits(choice := chosen(fewer := {other: settings[other] for other in settings if other != key}))
            ]
            if not fitting:
                break
            best, settings = min(fitting, key=lambda option: option[0].seconds)
    differences = list(_differences(spec, config, best.config, prompt_tokens))
    choices = tuple(change for change in differences if change.before == "auto")
    changes = tuple(change for change in differences if change.before != "auto")
    return Plan(requested.memory, best.config, best.memory, choices, changes, limit, shortfall(requested))


def _differences(
    spec: ModelSpec, requested: TrainConfig, config: TrainConfig, prompt_tokens: int | None
) -> Iterator[Change]:
    """How a configuration differs from the requested one."""
    work = workload_of(config, prompt_tokens)
    plenty = {"rollout.max_num_seqs": work.at_a_time, "optimizer.micro_batch_tokens": MICRO_BATCH_TOKENS}
    for key in (*MEMORY_SETTINGS, *ADAPTER):
        value, before = setting(config, key), setting(requested, key)
        if value == before:
            continue
        trade_off = ADAPTER.get(key) or MEMORY_SETTINGS[key].cost(value)
        if before == "auto" and key in plenty and value >= plenty[key]:
            trade_off = ""
        if key == "vllm.gpu_memory_gb":
            count = predictions_of(config).sequences_at_a_time(spec, config, work)
            trade_off = f"GB: enough for {count:,} of {work.trained_at_a_time:,} whole sequences at a time"
        yield Change(key, value, before, trade_off)


def adapter_settings(config: TrainConfig) -> Settings:
    rate = float(f"{LORA_RATE * config.optimizer.learning_rate:.6g}")
    return {"lora.rank": LORA_RANK, "optimizer.learning_rate": rate}
