"""Settings with which a run fits a card: what costs least is changed first, and nothing that is not needed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan import constants
from tinyzero_trainer.plan.memory import Memory, predict_memory
from tinyzero_trainer.plan.rollout import GB, needed_by_vllm, sequences_in_vllm
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.work import work_of

LEAST_TOKENS = 2048
"""Micro-batches are made no smaller: below it a GPU waits more than it computes."""

LEAST_SEQUENCES = 16
"""Nor are fewer sequences generated at a time."""

AWAKE = ("gen", "update_weights")
"""Phases in which the rollout engine cannot sleep."""

LORA_RANK = 32
"""Of the adapter that is proposed where nothing else helps."""

LORA_RATE = 10
"""Factor by which an adapter's learning rate is larger."""

COSTS = {
    "vllm.gpu_memory": "",
    "vllm.sleep": "",
    "rollout.max_sequences": "completions are generated in more rounds",
    "optimizer.micro_batch_tokens": "the update takes more passes, each a little less efficient",
    "memory.offload": "",
    "memory.checkpoint_activations": "the update computes a third more",
    "lora.rank": "small matrices are trained instead of all weights",
    "optimizer.learning_rate": "what suits lora.rank",
}
"""What a setting costs that takes less memory, the cheapest first."""

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

    @property
    def fits(self) -> bool:
        """Whether the proposal does."""
        return self.memory.peak <= self.limit


def make_plan(shape: ModelShape, config: TrainConfig, memory: int, prompt_tokens: int | None = None) -> Plan:
    """Make a configuration fit a card, if it does not already.

    Args:
        shape: the model's.
        config: what the user wants.
        memory: bytes of the card.
        prompt_tokens: see `work_of`.

    Returns:
        A plan that `fits`, if one was found; else the one that takes least.
    """
    return _Search(shape, config, usable(memory), prompt_tokens).plan()


def usable(memory: int) -> int:
    """Bytes of a card that a plan may take."""
    return int(memory * (1 - constants.MARGIN))


def settle(shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None = None) -> TrainConfig:
    """Decide what the configuration leaves to the rollout engine.

    The engine `torch` takes as many sequences at a time as have room. vLLM stays awake during the update where all
    its sequences have room beside it; else it sleeps, and has what is left beside the weights. Where even that does not
    hold a few, it asks for more than there is.
    """
    if config.rollout.engine == "vllm":
        return _settle_vllm(shape, config, limit, prompt_tokens)
    if config.rollout.max_sequences is not None:
        return config
    count, settled = work_of(config, prompt_tokens).at_a_time, config
    least = max(LEAST_SEQUENCES, config.rollout.samples_per_prompt)
    while count // 2 >= least and _while_awake(predict_memory(shape, settled, prompt_tokens)) > limit:
        count //= 2
        settled = replace(config, rollout=replace(config.rollout, max_sequences=count))
    return settled


def _settle_vllm(shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None) -> TrainConfig:
    vllm, work = config.vllm, work_of(config, prompt_tokens)
    most = needed_by_vllm(shape, config, work)
    least = needed_by_vllm(shape, config, work, sequences=LEAST_SEQUENCES)
    for sleep in (False, True) if vllm.sleep is None else (vllm.sleep,):
        given = _gigabytes(least) if vllm.gpu_memory is None else vllm.gpu_memory
        tight = replace(config, vllm=replace(vllm, gpu_memory=given, sleep=sleep))
        memory = predict_memory(shape, tight, prompt_tokens)
        awake = _while_awake(memory) if sleep else memory.peak
        room = given * GB + (limit - awake) / (1 if vllm.own_process else 1 + constants.SLACK)
        if vllm.gpu_memory is not None:
            settled, good = tight, memory.peak <= limit
        else:
            size = max(least, min(most + GB / 100, room))  # rounding down shall cost no sequence
            settled, good = replace(config, vllm=replace(tight.vllm, gpu_memory=_gigabytes(size))), room >= most
        if good:
            break
    return settled


def _while_awake(memory: Memory) -> int:
    """Bytes of the worst phase in which the rollout engine cannot sleep."""
    return max(phase.total for phase in memory.phases if phase.name in AWAKE)


def predict_within(shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None = None) -> Memory:
    """Memory of every phase, where the engine `torch` keeps what it has during the update if that fits."""
    kept = predict_memory(shape, config, prompt_tokens, keeps=True)
    return kept if kept.peak <= limit else predict_memory(shape, config, prompt_tokens)


def moves(config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Settings that may take less memory, the cheapest first; each halves something, or changes one thing for good."""
    vllm, work = config.rollout.engine == "vllm", work_of(config, prompt_tokens)
    if vllm and config.vllm.sleep is False:
        yield {"vllm.sleep": True}
    if vllm and config.vllm.gpu_memory is not None:
        yield {"vllm.gpu_memory": None}  # as much as there is room for
    fewer = min(config.rollout.max_sequences or work.at_a_time, work.at_a_time) // 2
    if fewer >= max(LEAST_SEQUENCES, config.rollout.samples_per_prompt):
        yield {"rollout.max_sequences": fewer}
    budget = min(config.optimizer.micro_batch_tokens, work.micro_batch)
    if budget // 2 >= LEAST_TOKENS and budget > work.sequence:
        yield {"optimizer.micro_batch_tokens": budget // 2}
    on_gpu = config.run.device != "cpu"
    if on_gpu and config.memory.offload is None:
        yield {"memory.offload": "idle"}
    if not config.memory.checkpoint_activations:
        yield {"memory.checkpoint_activations": True}
    if on_gpu and config.memory.offload != "always":
        yield {"memory.offload": "always"}
    if not config.lora.rank:
        rate = float(f"{LORA_RATE * config.optimizer.learning_rate:.6g}")
        yield {"lora.rank": LORA_RANK, "optimizer.learning_rate": rate}


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


class _Search:
    """For the cheapest settings that fit."""

    def __init__(self, shape: ModelShape, config: TrainConfig, limit: int, prompt_tokens: int | None) -> None:
        self.shape, self.config, self.limit, self.prompt_tokens = shape, config, limit, prompt_tokens

    def settled(self, settings: Settings) -> tuple[TrainConfig, Memory]:
        config = with_settings(self.config, settings)
        config = settle(self.shape, config, self.limit, self.prompt_tokens)
        return config, predict_within(self.shape, config, self.limit, self.prompt_tokens)

    def peak(self, settings: Settings) -> float:
        """Bytes; no number is too large for settings that do not go together."""
        try:
            return self.settled(settings)[1].peak
        except ValueError:
            return float("inf")

    def plan(self) -> Plan:
        wanted, needed = self.settled({})[1], self.smallest()
        if self.peak(needed) <= self.limit:
            needed = self.relaxed(self.pruned(needed))
        config, memory = self.settled(needed)
        return Plan(wanted, config, memory, tuple(self.changes(config)), self.limit)

    def changes(self, config: TrainConfig) -> Iterator[Change]:
        """What is other than the user wanted it."""
        for key, costs in COSTS.items():
            value, before = setting(config, key), setting(self.config, key)
            if value == before:
                continue
            if key == "vllm.gpu_memory":
                work = work_of(config, self.prompt_tokens)
                wanted = work.trained_at_a_time
                room = min(wanted, sequences_in_vllm(self.shape, config, work))
                costs = f"GB: room for {room:,} of {wanted:,} whole sequences at a time"
            yield Change(key, value, before, COSTS_OF_VALUE.get((key, value), costs))

    def smallest(self) -> dict[str, Any]:
        """The first settings that fit; or those that take least."""
        settings: dict[str, Any] = {}
        while (peak := self.peak(settings)) > self.limit:
            possible = moves(with_settings(self.config, settings), self.prompt_tokens)
            found = next((move for move in possible if self.peak({**settings, **move}) < peak), None)
            if found is None:
                break
            settings |= found
        return settings

    def pruned(self, settings: Settings) -> dict[str, Any]:
        """Without what later changes made needless, the dearest first."""
        needed = dict(settings)
        for key, cheaper in _CHEAPER:
            others = {other: value for other, value in needed.items() if other not in _TOGETHER.get(key, (key,))}
            fewer = others if cheaper is None else {**others, key: cheaper}
            if key in needed and self.peak(fewer) <= self.limit:
                needed = fewer
        return needed

    def relaxed(self, settings: Settings) -> dict[str, Any]:
        """With numbers as large as later changes allow again."""
        needed = dict(settings)
        for key in ("optimizer.micro_batch_tokens", "rollout.max_sequences"):
            while key in needed and (larger := 2 * needed[key]) < (setting(self.config, key) or float("inf")):
                if self.peak({**needed, key: larger}) > self.limit:
                    break
                needed[key] = larger
        return needed


_TOGETHER = {"lora.rank": ("lora.rank", "optimizer.learning_rate")}

_CHEAPER = (
    ("lora.rank", None),
    ("memory.offload", "idle"),
    ("memory.checkpoint_activations", None),
    ("memory.offload", None),
    ("optimizer.micro_batch_tokens", None),
    ("rollout.max_sequences", None),
    ("vllm.sleep", None),
    ("vllm.gpu_memory", None),
)
"""What may turn out to be needless, the dearest first; with a value, whether that will do; None = as it was."""


def _gigabytes(size: float) -> float:
    """Bytes as vllm.gpu_memory takes them, rounded down."""
    return max(0.01, int(size / GB * 100) / 100)
