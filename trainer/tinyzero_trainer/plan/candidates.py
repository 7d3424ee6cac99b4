"""Settings with which a run fits a card. Which of them make the shortest step is found in search.py."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.spread import CardKind, spread_of
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_buffers import FEW_SEQUENCES
from tinyzero_trainer.estimate.engine_memory import GB, needed_by_vllm
from tinyzero_trainer.estimate.memory import Memory, predict_memory
from tinyzero_trainer.estimate.workload import Work, work_on
from tinyzero_trainer.models.spec import ModelShape

LEAST_TOKENS = 2048
"""Micro-batches are made no smaller: below it a GPU waits more than it computes."""

LEAST_SEQUENCES = 16
"""Nor are fewer sequences generated at a time."""

AWAKE = ("gen", "gen_greedy", "update_weights")
"""Phases in which the rollout engine cannot sleep."""

SETTLED = ("vllm.gpu_memory", "vllm.sleep", "rollout.max_sequences")
"""What the rollout engine decides by itself where it is not set."""

LORA_RANK = 32
"""Of the adapter that is proposed where nothing else helps."""

LORA_RATE = 10
"""Factor by which an adapter's learning rate is larger."""

COSTS = {
    "vllm.gpu_memory": "",
    "vllm.sleep": "",
    "rollout.max_sequences": "completions are generated in more rounds",
    "optimizer.micro_batch_tokens": "the update takes more passes, each a little less efficient",
    "ray.replicas": "weights are gathered, and gradients added up, over all ranks, in other nodes too",
    "ray.sequence_parallel": "ranks that share sequences exchange heads in every layer",
    "ray.engines": "those GPUs do not train",
    "vllm.tensor_parallel": "an engine's GPUs add up what they compute twice a layer, for each token",
    "memory.offload": "",
    "memory.checkpoint_activations": "the update computes a third more",
    "lora.rank": "small matrices are trained instead of all weights",
    "optimizer.learning_rate": "what suits lora.rank",
}
"""What a setting costs that takes less memory, as a rule the cheapest first."""

COSTS_OF_VALUE = {
    ("vllm.sleep", True): "its weights are loaded anew in every step, in about a second",
    ("vllm.sleep", False): "there is room for it beside the update",
    ("memory.offload", "idle"): "seconds a step: weights and optimiser state wait in the host's memory",
    ("memory.offload", "always"): "a much slower update: weights travel in every pass, and the CPU steps them",
}

Settings = Mapping[str, Any]
"""Values by the full names of settings."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that takes less memory."""

    key: str
    """Its full name."""

    value: Any
    """What to set."""

    before: Any
    """What it was."""

    costs: str
    """What that costs, in words."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration on a card."""

    wanted: Memory
    """Of what was asked for."""

    config: TrainConfig
    """What is proposed: vLLM's memory settled, and all changes made."""

    memory: Memory
    """Of what is proposed."""

    changes: tuple[Change, ...]
    """From the one to the other."""

    limit: int
    """Bytes that it may take."""

    lacking: int = 0
    """Bytes that vllm.gpu_memory is at the least, where what was asked for is too little; 0 = it is not."""

    @property
    def fits(self) -> bool:
        """Whether the proposal does."""
        return self.memory.peak <= self.limit


def usable(memory: int) -> int:
    """Bytes of a card that a plan may take."""
    return int(memory * (1 - constants.MARGIN))


def settle(shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None = None) -> TrainConfig:
    """Decide what the configuration leaves to the rollout engine.

    The engine `torch` takes as many sequences at a time as have room; without CUDA graphs `FEW_SEQUENCES`, room or not.
    vLLM stays awake during the update where all its sequences have room beside it; else it sleeps, and has what is left
    beside the weights. Where even that does not hold a few, it asks for more than there is. On cards of its own it has
    no reason to sleep.
    """
    if config.rollout.engine == "vllm":
        return _settle_vllm(shape, config, limit, prompt_tokens)
    if config.rollout.max_sequences is not None:
        return config
    if not shape.graphs:  # the engine asks nobody
        return with_settings(config, {"rollout.max_sequences": FEW_SEQUENCES})
    count, settled = work_on(config, prompt_tokens).at_a_time, config
    least = max(LEAST_SEQUENCES, config.rollout.samples_per_prompt)
    while count // 2 >= least and awake_bytes(shape, settled, prompt_tokens) > limit:
        count //= 2
        settled = replace(config, rollout=replace(config.rollout, max_sequences=count))
    return settled


def _settle_vllm(shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None) -> TrainConfig:
    vllm, work, spread = config.vllm, work_on(config, prompt_tokens), spread_of(config)
    most = needed_by_vllm(shape, config, work)
    least = needed_by_vllm(shape, config, work, sequences=LEAST_SEQUENCES)
    for sleep in (False, True) if vllm.sleep is None and not spread.apart else (vllm.sleep,):
        given = _gigabytes(least) if vllm.gpu_memory is None else vllm.gpu_memory
        tight = replace(config, vllm=replace(vllm, gpu_memory=given, sleep=sleep))
        memory = predict_memory(shape, tight, prompt_tokens, card=spread.generating)
        awake = while_awake(memory) if sleep else memory.peak
        room = given * GB + (limit - awake) / (1 if vllm.own_process else 1 + constants.SLACK)
        if vllm.gpu_memory is not None:
            settled, good = tight, memory.peak <= limit
        else:
            size = max(least, min(most + GB / 100, room))  # rounding down shall cost no sequence
            settled, good = replace(config, vllm=replace(tight.vllm, gpu_memory=_gigabytes(size))), room >= most
        if good:
            break
    return settled


def while_awake(memory: Memory) -> int:
    """Bytes of the worst phase in which the rollout engine cannot sleep."""
    return max(phase.total for phase in memory.phases if phase.name in AWAKE)


def awake_bytes(shape: ModelShape, config: TrainConfig, prompt_tokens: int | None = None) -> int:
    """The same of a configuration, on the card that a rollout engine is on."""
    return while_awake(predict_memory(shape, config, prompt_tokens, card=spread_of(config).generating))


def predict_within(
    shape: ModelShape,
    config: TrainConfig,
    limit: int,
    prompt_tokens: int | None = None,
    *,
    card: CardKind | None = None,
) -> Memory:
    """Memory of every phase, where the engine `torch` keeps what it has during the update if that fits.

    With `memory.offload` it never does. For `card` see `predict_memory`.
    """
    kept = predict_memory(shape, config, prompt_tokens, keeps=config.memory.offload is None, card=card)
    return kept if kept.peak <= limit else predict_memory(shape, config, prompt_tokens, card=card)


def moves(config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Settings that may take less memory, the cheapest first; each halves something, or changes one thing for good."""
    vllm, work = config.rollout.engine == "vllm", work_on(config, prompt_tokens)
    if vllm and config.vllm.sleep is False:
        yield {"vllm.sleep": True}
    if vllm and config.vllm.gpu_memory is not None:
        yield {"vllm.gpu_memory": None}  # as much as there is room for
    yield from islice(({"rollout.max_sequences": count} for count in fewer_sequences(config, work)), 1)
    yield from islice(({"optimizer.micro_batch_tokens": size} for size in smaller_micro_batches(config, work)), 1)
    on_gpu = config.run.device != "cpu"
    if config.ray.replicas > 1:
        yield {"ray.replicas": 1}
    if on_gpu and config.memory.offload is None:
        yield {"memory.offload": "idle"}
    if not config.memory.checkpoint_activations:
        yield {"memory.checkpoint_activations": True}
    if on_gpu and config.memory.offload != "always":
        yield {"memory.offload": "always"}
    if not config.lora.rank:
        rate = float(f"{LORA_RATE * config.optimizer.learning_rate:.6g}")
        yield {"lora.rank": LORA_RANK, "optimizer.learning_rate": rate}


def divisions(shape: ModelShape, config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Other ways to divide several cards, each with less on some of them; nothing on one card."""
    spread, work = spread_of(config), work_on(config, prompt_tokens)
    whole: dict[str, Any] = {"ray.replicas": 1} if spread.replicas > 1 else {}
    if whole:
        yield whole
    # Shorter ones go several at a time, and fewer tokens in a pass are the cheaper way.
    most = spread.ranks if work.sequence > LEAST_TOKENS else 1
    for slices in (count for count in (2, 4, 8) if spread.slices < count <= most):
        if not shape.heads % slices and not spread.ranks % slices:
            yield {**whole, "ray.sequence_parallel": slices}
    if config.rollout.engine == "vllm" and not spread.apart:
        for cards in (count for count in (2, 4, 8) if spread.of_engine < count <= spread.ranks):
            if not shape.heads % cards and not spread.ranks % cards:
                yield {**whole, "vllm.tensor_parallel": cards}
    if not spread.apart and config.ray.ranks is None:
        for engines in sorted({1, spread.engines // 4, spread.engines // 2} - {0}):
            ranks = spread.ranks - engines * spread.of_engine
            if ranks > 0 and not ranks % spread.slices:
                yield {**whole, "ray.engines": engines}


def fewer_sequences(config: TrainConfig, work: Work) -> Iterator[int]:
    """Halves of rollout.max_sequences, down to `LEAST_SEQUENCES`, which comes last."""
    count = min(config.rollout.max_sequences or work.at_a_time, work.at_a_time)
    least = max(LEAST_SEQUENCES, config.rollout.samples_per_prompt)
    while count > least:
        yield (count := max(count // 2, least))


def smaller_micro_batches(config: TrainConfig, work: Work) -> Iterator[int]:
    """Powers of two below optimizer.micro_batch_tokens, down to `LEAST_TOKENS`, or to where a sequence goes alone."""
    budget = min(config.optimizer.micro_batch_tokens, work.micro_batch)
    while budget * work.slices > work.sequence and (budget := 1 << (budget - 1).bit_length() - 1) >= LEAST_TOKENS:
        yield budget


def with_settings(config: TrainConfig, settings: Settings) -> TrainConfig:
    """A configuration with some settings changed.

    Raises:
        ValueError: they do not go together.
    """
    by_group = groupby(sorted(settings.items()), key=lambda item: item[0].partition(".")[0])
    groups = {name: {key.partition(".")[2]: value for key, value in items} for name, items in by_group}
    return replace(config, **{name: replace(getattr(config, name), **values) for name, values in groups.items()})


def setting(config: TrainConfig, key: str) -> Any:
    """The value that a full name stands for."""
    group, _, name = key.partition(".")
    return getattr(getattr(config, group), name)


def _gigabytes(size: float) -> float:
    """Bytes as vllm.gpu_memory takes them, rounded down."""
    return max(0.01, int(size / GB * 100) / 100)
