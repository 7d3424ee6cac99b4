"""Settings with which a run fits a GPU: what is left to the run is chosen by auto.py, and what the user gave is changed
by a greedy ladder. What no GPU can run is in limits.py."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS, choose, left_open
from tinyzero_trainer.advisor.constants import COMMON_GPU
from tinyzero_trainer.advisor.fit import LEAST_TOKENS
from tinyzero_trainer.advisor.memory import Memory, host_bytes, predictions_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.algorithm import MICRO_BATCH_TOKENS
from tinyzero_trainer.config.settings import SMALLER, Settings, setting, with_settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import Workload, workload_of
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import LEAST_SEQUENCES
from tinyzero_trainer.utils.bounds import unless_auto

LORA_RANK = 32
LORA_RATE = 10  # factor by which an adapter's learning rate is larger
WORTHWHILE = 1.05  # factor by which the step must get shorter to change a configuration that fits

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
    """Of the requested configuration; `memory` is that of the proposed one."""

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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A configuration with some settings changed, and its memory and seconds a step."""

    settings: Settings
    config: TrainConfig
    memory: Memory
    seconds: float


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

    While it does not fit, take the change that costs the least time for each byte it saves. Then undo or exchange
    changes while that shortens the step; a requested configuration that fits is changed only where that is
    `WORTHWHILE`. An adapter (LoRA) is the last resort, because it trains something else.

    Args:
        memory: bytes of the GPU.
        prompt_tokens: see `workload_of`.
        gpu: its data sheet; None = unknown, so times are predicted for a common GPU.
        host: bytes of host memory that `memory.cpu_offload` may use; None = unknown.

    Returns:
        A plan that `fits`, if one was found; otherwise the one that takes the least memory.
    """
    gpu = gpu or find_gpu_spec(COMMON_GPU)
    assert gpu is not None
    ladder = _Ladder(spec, config, usable(memory), prompt_tokens, gpu, host)
    requested = ladder.tried({})
    assert requested is not None
    start = requested
    work = workload_of(requested.config, prompt_tokens)
    shortfall = predictions_of(requested.config).shortfall(spec, requested.config, work)
    if shortfall:  # as if it had not been set
        start = ladder.tried({"vllm.gpu_memory_gb": "auto"}) or requested
    current = ladder.descend(start)
    if current.memory.peak > ladder.limit and not config.lora.rank:
        adapter = ladder.tried({**start.settings, **_adapter(config)})
        current = (
            current
            if adapter is None
            else min(current, ladder.descend(adapter), key=lambda candidate: candidate.memory.peak)
        )
    if current.memory.peak <= ladder.limit:
        current = ladder.improved(current, {"lora.rank", "optimizer.learning_rate", *start.settings})
    differences = list(ladder.differences(current.config))
    values, changes = (
        tuple(change for change in differences if (change.before == "auto") == left) for left in (True, False)
    )
    return Plan(requested.memory, current.config, current.memory, values, changes, ladder.limit, shortfall)


@dataclass(frozen=True)
class _Ladder:
    """The search of `make_plan`; for the fields see there."""

    spec: ModelSpec
    config: TrainConfig
    limit: int
    prompt_tokens: int | None
    gpu: GpuSpec
    host: int | None

    def tried(self, settings: Settings) -> _Candidate | None:
        """The requested configuration with some settings changed; None if they conflict or host memory is too small."""
        try:
            changed = with_settings(self.config, settings)
        except ValueError:
            return None
        choice = choose(self.spec, changed, self.limit, self.gpu, self.prompt_tokens, host=self.host)
        config = choice.config
        size, asked = unless_auto(config.vllm.gpu_memory_gb), unless_auto(self.config.vllm.gpu_memory_gb)
        if "vllm.gpu_memory_gb" in settings and size is not None and asked is not None and size >= asked:
            work = workload_of(self.config, self.prompt_tokens)
            if not predictions_of(self.config).shortfall(self.spec, self.config, work):
                return None  # no less than requested
        if "memory.cpu_offload" in settings and self.host is not None and host_bytes(self.spec, config) > self.host:
            return None
        return _Candidate(settings, config, choice.memory, choice.seconds)

    def neighbours(self, current: _Candidate) -> Iterator[_Candidate]:
        """Candidates with one change more to what the user gave."""
        candidates = candidate_changes(current.config, self.prompt_tokens)
        left = {"lora.rank", *left_open(self.config)}
        changes = [change for change in candidates if left.isdisjoint(change)]
        if self.config.vllm.gpu_memory_gb != "auto":
            changes.append({"vllm.gpu_memory_gb": "auto"})  # as much as fits
        yield from filter(None, (self.tried({**current.settings, **change}) for change in changes))

    def descend(self, current: _Candidate) -> _Candidate:
        """Take change after change, until it fits or nothing takes less memory."""

        def price(candidate: _Candidate) -> float:
            needed = current.memory.peak - max(candidate.memory.peak, self.limit)
            return (candidate.seconds - current.seconds) / needed

        while current.memory.peak > self.limit:
            smaller = [
                candidate for candidate in self.neighbours(current) if candidate.memory.peak < current.memory.peak
            ]
            if not smaller:
                break
            current = min(smaller, key=price)
        return current

    def relaxed(self, current: _Candidate, kept: AbstractSet[str]) -> Iterator[_Candidate]:
        """Candidates without one change, or with a larger micro-batch; changes of `kept` stay."""
        for key in current.settings:
            rest = {other: value for other, value in current.settings.items() if other != key}
            size = 2 * current.settings[key] if key == "optimizer.micro_batch_tokens" else None
            larger = [{**rest, key: size}] if size and size < self.config.optimizer.token_budget else []
            yield from filter(None, map(self.tried, [] if key in kept else [rest, *larger]))

    def improved(self, current: _Candidate, kept: AbstractSet[str]) -> _Candidate:
        """The fastest that fits, one step at a time: a change undone, one made, or both; of equals, the simplest."""
        while True:
            threshold = 1 + 1e-9 if current.settings.keys() - kept else WORTHWHILE
            near = [current, *self.relaxed(current, kept)]
            near += [candidate for start in near for candidate in self.neighbours(start)]
            fitting = [candidate for candidate in near if candidate.memory.peak <= self.limit]
            fastest = min(candidate.seconds for candidate in fitting) * (1 + 1e-9)
            best = min((each for each in fitting if each.seconds <= fastest), key=lambda each: len(each.settings))
            simpler = best.seconds <= current.seconds * (1 + 1e-9) and len(best.settings) < len(current.settings)
            if not simpler and best.seconds * threshold >= current.seconds:
                return current
            current = best

    def differences(self, config: TrainConfig) -> Iterator[Change]:
        """How a configuration differs from the requested one."""
        for key in (*MEMORY_SETTINGS, *ADAPTER):
            value, before = setting(config, key), setting(self.config, key)
            if value == before:
                continue
            trade_off = ADAPTER.get(key) or MEMORY_SETTINGS[key].cost(value)
            work, chunk = workload_of(config, self.prompt_tokens), planned_dims(config).largest_chunk
            of_engine = chunk(config.data.prompts_per_step) * config.rollout.group_size
            if key == "rollout.max_num_seqs" and value >= of_engine:
                trade_off = "evaluations are generated in more rounds"
            free = {
                "rollout.max_num_seqs": max(of_engine, chunk(config.eval.num_problems)),
                "optimizer.micro_batch_tokens": MICRO_BATCH_TOKENS,
            }
            if before == "auto" and key in free and value >= free[key]:
                trade_off = ""
            if key == "vllm.gpu_memory_gb":
                count = predictions_of(config).sequences_at_a_time(self.spec, config, work)
                trade_off = f"GB: enough for {count:,} of {work.trained_at_a_time:,} whole sequences at a time"
            yield Change(key, value, before, trade_off)


def candidate_changes(config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Settings that may take less memory, the cheapest first, for a configuration that `settle` has filled in."""
    work, changes = workload_of(config, prompt_tokens), list[tuple[int, str, object]]()
    for key, trade in MEMORY_SETTINGS.items():
        present = trade.place(setting(config, key))
        changes += [(option.rank, key, option.value) for option in trade.options[present + 1 :]]
    for _, key, value in sorted(changes, key=lambda change: change[0]):
        if value is SMALLER:
            value = SMALLER_NUMBERS[key](config, work)
        if value is not None:
            yield {key: value}
    if not config.lora.rank:
        yield _adapter(config)


def fewer_sequences(config: TrainConfig, work: Workload) -> int | None:
    """Half of rollout.max_num_seqs; None = that are too few."""
    count = min(unless_auto(config.rollout.max_num_seqs) or work.at_a_time, work.at_a_time)
    least = max(LEAST_SEQUENCES, config.rollout.group_size)
    return max(count // 2, least) if count > least else None


def smaller_micro_batch(config: TrainConfig, work: Workload) -> int | None:
    """The power of two below optimizer.micro_batch_tokens; None = too few, or each sequence goes alone already."""
    budget = min(config.optimizer.token_budget, work.micro_batch)
    size = 1 << (budget - 1).bit_length() - 1
    return size if budget * work.sequence_parallel > work.sequence and size >= LEAST_TOKENS else None


SMALLER_NUMBERS = {
    "rollout.max_num_seqs": fewer_sequences,
    "optimizer.micro_batch_tokens": smaller_micro_batch,
}


def _adapter(config: TrainConfig) -> Settings:
    rate = float(f"{LORA_RATE * config.optimizer.learning_rate:.6g}")
    return {"lora.rank": LORA_RANK, "optimizer.learning_rate": rate}
