"""Settings with which a run fits a card. Which of them make the shortest step is found in search.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.spread import spread_of
from tinyzero_trainer.estimate.fit import LEAST_SEQUENCES, LEAST_TOKENS, Settings
from tinyzero_trainer.estimate.memory import Memory
from tinyzero_trainer.estimate.workload import Workload, workload_on
from tinyzero_trainer.models.spec import ModelSpec

SETTLED = ("vllm.gpu_memory_gb", "vllm.sleep_mode", "rollout.max_num_seqs")
"""What the rollout engine decides by itself where it is not set."""

LORA_RANK = 32
"""Of the adapter that is proposed where nothing else helps."""

LORA_RATE = 10
"""Factor by which an adapter's learning rate is larger."""

COSTS = {
    "vllm.gpu_memory_gb": "",
    "vllm.sleep_mode": "",
    "rollout.max_num_seqs": "completions are generated in more rounds",
    "optimizer.micro_batch_tokens": "the update takes more passes, each a little less efficient",
    "parallel.dp_replicate": "weights are gathered, and gradients added up, over all ranks, in other nodes too",
    "parallel.sequence_parallel": "ranks that share sequences exchange heads in every layer",
    "rollout.num_engines": "those GPUs do not train",
    "vllm.tensor_parallel": "an engine's GPUs add up what they compute twice a layer, for each token",
    "memory.cpu_offload": "",
    "memory.activation_checkpointing": "the update computes a third more",
    "lora.rank": "small matrices are trained instead of all weights",
    "optimizer.learning_rate": "what suits lora.rank",
}
"""What a setting costs that takes less memory, as a rule the cheapest first."""

COSTS_OF_VALUE = {
    ("vllm.sleep_mode", True): "its weights are loaded anew in every step, in about a second",
    ("vllm.sleep_mode", False): "there is room for it beside the update",
    ("memory.cpu_offload", "idle"): "seconds a step: weights and optimiser state wait in the host's memory",
    ("memory.cpu_offload", "always"): "a much slower update: weights travel in every pass, and the CPU steps them",
}


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
    """Bytes that vllm.gpu_memory_gb is at the least, where what was asked for is too little; 0 = it is not."""

    @property
    def fits(self) -> bool:
        """Whether the proposal does."""
        return self.memory.peak <= self.limit


def moves(config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Settings that may take less memory, the cheapest first; each halves something, or changes one thing for good."""
    vllm, work = config.rollout.engine == "vllm", workload_on(config, prompt_tokens)
    if vllm and config.vllm.sleep_mode is False:
        yield {"vllm.sleep_mode": True}
    if vllm and config.vllm.gpu_memory_gb is not None:
        yield {"vllm.gpu_memory_gb": None}  # as much as there is room for
    yield from islice(({"rollout.max_num_seqs": count} for count in fewer_sequences(config, work)), 1)
    yield from islice(({"optimizer.micro_batch_tokens": size} for size in smaller_micro_batches(config, work)), 1)
    on_gpu = config.run.device != "cpu"
    if config.parallel.dp_replicate > 1:
        yield {"parallel.dp_replicate": 1}
    if on_gpu and config.memory.cpu_offload is None:
        yield {"memory.cpu_offload": "idle"}
    if not config.memory.activation_checkpointing:
        yield {"memory.activation_checkpointing": True}
    if on_gpu and config.memory.cpu_offload != "always":
        yield {"memory.cpu_offload": "always"}
    if not config.lora.rank:
        rate = float(f"{LORA_RATE * config.optimizer.learning_rate:.6g}")
        yield {"lora.rank": LORA_RANK, "optimizer.learning_rate": rate}


def divisions(shape: ModelSpec, config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Other ways to divide several cards, each with less on some of them; nothing on one card."""
    spread, work = spread_of(config), workload_on(config, prompt_tokens)
    whole: dict[str, Any] = {"parallel.dp_replicate": 1} if spread.replicas > 1 else {}
    if whole:
        yield whole
    # Shorter ones go several at a time, and fewer tokens in a pass are the cheaper way.
    most = spread.ranks if work.sequence > LEAST_TOKENS else 1
    for slices in (count for count in (2, 4, 8) if spread.slices < count <= most):
        if not shape.heads % slices and not spread.ranks % slices:
            yield {**whole, "parallel.sequence_parallel": slices}
    if config.rollout.engine == "vllm" and not spread.apart:
        for cards in (count for count in (2, 4, 8) if spread.of_engine < count <= spread.ranks):
            if not shape.heads % cards and not spread.ranks % cards:
                yield {**whole, "vllm.tensor_parallel": cards}
    if not spread.apart and config.parallel.world_size is None:
        for engines in sorted({1, spread.engines // 4, spread.engines // 2} - {0}):
            ranks = spread.ranks - engines * spread.of_engine
            if ranks > 0 and not ranks % spread.slices:
                yield {**whole, "rollout.num_engines": engines}


def fewer_sequences(config: TrainConfig, work: Workload) -> Iterator[int]:
    """Halves of rollout.max_num_seqs, down to `LEAST_SEQUENCES`, which comes last."""
    count = min(config.rollout.max_num_seqs or work.at_a_time, work.at_a_time)
    least = max(LEAST_SEQUENCES, config.rollout.group_size)
    while count > least:
        yield (count := max(count // 2, least))


def smaller_micro_batches(config: TrainConfig, work: Workload) -> Iterator[int]:
    """Powers of two below optimizer.micro_batch_tokens, down to `LEAST_TOKENS`, or to where a sequence goes alone."""
    budget = min(config.optimizer.micro_batch_tokens, work.micro_batch)
    while budget * work.slices > work.sequence and (budget := 1 << (budget - 1).bit_length() - 1) >= LEAST_TOKENS:
        yield budget
