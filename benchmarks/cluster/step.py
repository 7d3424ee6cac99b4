"""Seconds and bytes of each phase of a GRPO step on a cluster.

On one GPU there are no links: a step is the plan's prediction and the controller's measured work
(`benchmarks/README.md`, "One GPU" and "Host work per step").
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from statistics import fmean
from typing import Literal

from benchmarks.cluster.generation import Engines, Lengths
from benchmarks.cluster.host import FROM_ENGINES, TO_RANKS, host_seconds
from benchmarks.cluster.network import Cluster, Group, Traffic, broadcast
from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.memory import predict_memory, predictions_of
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.sizes import CONTEXT, MARGIN, SLACK
from tinyzero_trainer.distributed.workload import number_bytes, workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.kinds import find_engine
from tinyzero_trainer.models.spec import ModelSpec

Sharding = Literal["full", "hybrid", "hybrid, reduced once"]
"""`full` = over all ranks; `hybrid` = within a node, with gradients reduced across nodes after each micro-batch, or
once per mini-batch."""

Way = Literal["colocated", "object store"]
"""Of weights to engines: from each rank to the engine on its GPU, or from rank 0 through Ray's object store."""

TENSORS_OF_A_LAYER = 12  # as in Qwen2: four of attention with three biases, three of the MLP, two norms

STORE = 107_374_182_400 / 29.7
"""Bytes per second into Ray's object store and out again on one node, for one large object:
https://github.com/ray-project/ray/blob/master/release/perf_metrics/scalability/single_node.json."""

STORE_OUT = 50 * 2**30 / 16.9
"""Bytes per second from one node's object store to all others together; 1 GiB went to 50 nodes in 16.9 s:
https://github.com/ray-project/ray/blob/master/release/perf_metrics/scalability/object_store.json."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained, and where."""

    spec: ModelSpec
    config: TrainConfig  # accepted by `refuse`
    cluster: Cluster
    lengths: Lengths
    prompt: int = 256  # tokens of a prompt
    sharding: Sharding = "full"  # of policy and optimizer states
    way: Way = "colocated"
    refills: bool = True  # whether engines refill slots, as both do on a GPU
    queue: bool = False  # whether engines take completions from one queue, instead of an equal number each
    seed: int = 0  # of the lengths

    def sample_lengths(self) -> tuple[int, ...]:
        """The lengths of a step's completions."""
        return self.lengths.sample(workload_of(self.config, self.prompt).completions, self.seed)

    def on(self, cluster: Cluster) -> "Run":
        """The same on other GPUs."""
        return replace(self, cluster=cluster)

    @property
    def shards(self) -> Group:
        """GPUs that together hold one copy of policy and optimizer states."""
        cluster = self.cluster
        return Group(cluster, cluster.nodes if self.sharding == "full" else 1, cluster.gpus)


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated step."""

    phases: Mapping[str, Traffic]
    """In order, by their names in `timing_s/*`; `object_store` is the transfer of completions."""

    seconds: float  # in total; phases may overlap
    tokens: int  # of prompts and completions
    gpus: int
    idle: float  # fraction of the generation in which the mean engine waits for the last

    @property
    def rate(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens / self.seconds / self.gpus

    def sent(self, link: str) -> float:
        """Bytes that all GPUs send in a step over a type of link; see `Traffic`."""
        return sum(getattr(phase, link) for phase in self.phases.values())


def refuse(config: TrainConfig) -> None:
    """Raise a ValueError for settings that are not simulated."""
    algorithm = config.algorithm
    present = {
        "lora.rank": config.lora.rank,
        "memory.cpu_offload": config.memory.offload,
        "algorithm.kl_coefficient": algorithm.kl_coefficient,
        "a critic": algorithm.needs("critic"),
        "algorithm.advantage_estimator=remax": algorithm.needs("greedy"),
    }
    if found := [name for name, value in present.items() if value]:
        raise ValueError(f"{', '.join(found)}: not simulated; remove it")


def synchronous(run: Run) -> Step:
    """One phase after another on the same GPUs."""
    lengths = run.sample_lengths()
    gen, idle = generation(run, lengths)
    to_controller, to_ranks = object_store(run, lengths)
    reward, controller = (Traffic(host_seconds(work, lengths)) for work in ("reward", "controller"))
    phases = {"gen": gen, "reward": reward, "controller": controller, "object_store": to_controller + to_ranks}
    phases |= {**passes(run, lengths), "update_weights": weights(run)}
    tokens = sum(lengths) + run.prompt * len(lengths)
    return Step(phases, sum(phase.seconds for phase in phases.values()), tokens, run.cluster.size, idle)


def one_step_off(run: Run, engines: Cluster, ranks: Cluster) -> Step:
    """Completions of the next step are generated and scored on other nodes while this one's are trained on."""
    lengths = run.sample_lengths()
    gen, idle = generation(run.on(engines), lengths, alone=True)
    to_controller, to_ranks = object_store(run, lengths)
    size = number_bytes(run.config) * run.spec.parameters
    sent = broadcast(engines, engines.nodes, size)
    reward, controller = (Traffic(host_seconds(work, lengths)) for work in ("reward", "controller"))
    rollout = {"gen": gen, "reward": reward, "object_store": to_controller}
    training = {"controller": controller, "object_store": to_ranks, **passes(run.on(ranks), lengths)}
    sync = {"update_weights": weights(run.on(ranks)) + sent}
    lanes = [sum(phase.seconds for phase in lane.values()) for lane in (rollout, training, sync)]
    phases = rollout | training | sync | {"object_store": to_controller + to_ranks}
    tokens = sum(lengths) + run.prompt * len(lengths)
    return Step(phases, max(lanes[:2]) + lanes[2], tokens, engines.size + ranks.size, idle)


# ---- phases ----------------------------------------------------------------------------------------------------------


def engines_of(run: Run, *, alone: bool = False) -> Engines:
    """The engines of all GPUs, each on `vllm.tensor_parallel` of them, with as many slots as fit in memory: next to the
    ranks, or `alone`.
    """
    spec, config, several = run.spec, run.config, run.config.vllm.tensor_parallel
    gpu = run.cluster.gpu
    together = replace(gpu, bandwidth=several * gpu.bandwidth, tflops=several * gpu.tflops)
    group, engine = Group(run.cluster, 1, several), predictions_of(config)

    def step(sequences: int, length: float) -> float:
        read = engine.tokens_read(spec, run.prompt, length - run.prompt, config.rollout.group_size)
        seconds: float = engine.step_seconds(spec, config, together, sequences, read)
        if several > 1:  # each layer reduces the outputs of attention and of the MLP
            seconds += 2 * spec.layers * group.all_reduce(number_bytes(config) * sequences * spec.hidden).seconds
        return seconds

    count = run.cluster.size // several
    completions = workload_of(config, run.prompt).completions
    wanted = min(-(-completions // count), find_engine(config.rollout.engine).max_sequences or 2**31)
    limit = (1 - MARGIN) * gpu.memory * GIB
    prefill = engine.prefill_seconds(spec, config, together, run.prompt) / config.rollout.group_size
    slots = slots_for(spec, config, run.prompt, math.inf if alone else run.shards.size, wanted, limit)
    return Engines(count, slots, run.refills, step, run.prompt, prefill)


def generation(run: Run, lengths: Sequence[int], *, alone: bool = False) -> tuple[Traffic, float]:
    """The time until the last engine is done, and the fraction of it in which the mean engine waits."""
    done = engines_of(run, alone=alone).generate(lengths, shared=run.queue)
    return Traffic(max(done)), 1 - fmean(done) / max(done)


def object_store(run: Run, lengths: Sequence[int]) -> tuple[Traffic, Traffic]:
    """Completions from engines to the controller, and from it to all ranks, each of which gets the whole batch."""
    if run.cluster.size == 1:
        return Traffic(), Traffic()  # one process
    others, tokens = run.cluster.nodes - 1, sum(lengths)
    calls = 2 if run.config.old_logprobs_source == "policy" else 1
    from_others, to_others = FROM_ENGINES.bytes * tokens * others / run.cluster.nodes, TO_RANKS.bytes * tokens * others
    to_controller = Traffic(FROM_ENGINES.loads * tokens + from_others / STORE_OUT, hosts=from_others)
    to_ranks = Traffic((TO_RANKS.dumps + TO_RANKS.loads) * tokens + to_others / STORE_OUT, hosts=to_others)
    return to_controller, to_ranks * calls


def passes(run: Run, lengths: Sequence[int]) -> dict[str, Traffic]:
    """The forward pass for old log-probabilities, if needed, and the update."""
    speed = predict_speed(run.spec, run.config, run.cluster.gpu, run.prompt)
    per_token = speed.seconds["update_actor"] / speed.tokens / run.config.optimizer.update_epochs
    forward = per_token * 2 / (8 if run.config.memory.activation_checkpointing is True else 6)
    sequences = [run.prompt + length for length in lengths]
    found = {}
    if run.config.old_logprobs_source == "policy":
        tokens, count = _fullest(run, sequences)
        found["old_log_prob"] = _forward(run, forward * tokens / count) * count
    share, update = -(-len(sequences) // run.config.optimizer.num_mini_batches), Traffic()
    for first in range(0, len(sequences), share):
        tokens, count = _fullest(run, sequences[first : first + share])
        each = _forward(run, forward * tokens / count)
        backward = (per_token - forward) * tokens / count
        once = run.sharding == "hybrid, reduced once"
        update += (each + _backward(run, backward, across=not once)) * (count - 1)
        update += each + _backward(run, backward, across=True)
    return {**found, "update_actor": update * run.config.optimizer.update_epochs}


def weights(run: Run) -> Traffic:
    """Weight sync: each tensor is gathered in float32 from its shards, then sent."""
    spec, config, cluster = run.spec, run.config, run.cluster
    tensors = TENSORS_OF_A_LAYER * spec.layers + 3
    gathered = run.shards.gather(constants.MASTER_BYTES * spec.parameters / tensors) * tensors
    if run.way == "colocated" or cluster.size == 1:
        copied = predict_speed(spec, config, cluster.gpu, run.prompt).seconds["update_weights"]
        return gathered + Traffic(copied)
    size, others = number_bytes(config) * spec.parameters, cluster.nodes - 1
    sending = gathered.seconds + size / constants.PCIE + size / STORE
    taking = size * others / STORE_OUT + size / constants.PCIE
    return replace(gathered, seconds=max(sending, taking), hosts=size * others)  # bucket after bucket, concurrently


def _forward(run: Run, compute: float) -> Traffic:
    """A pass over a micro-batch: the next layer is gathered while one computes; only root and first layer delay it."""
    spec, number = run.spec, number_bytes(run.config)
    layer, root = run.shards.gather(number * spec.layer), run.shards.gather(number * spec.embeddings)
    seconds = root.seconds + layer.seconds + max(compute, (spec.layers - 1) * layer.seconds)
    return replace(layer * spec.layers + root, seconds=seconds)


def _backward(run: Run, compute: float, *, across: bool) -> Traffic:
    """The backward pass: layers are gathered again, gradients reduced in float32; only the root's delay it.

    Gradients are reduced `across` nodes too, if each node holds a copy.
    """
    spec, cluster = run.spec, run.cluster

    def reduced(parameters: int) -> Traffic:
        size = constants.MASTER_BYTES * parameters
        within = run.shards.gather(size)
        copies = Group(cluster, cluster.nodes, 1)  # the GPUs that hold the same shard
        return within + copies.all_reduce(size / cluster.gpus) if across and run.sharding != "full" else within

    layers = (run.shards.gather(number_bytes(run.config) * spec.layer) + reduced(spec.layer)) * spec.layers
    root = reduced(spec.embeddings)
    return replace(layers + root, seconds=max(compute, layers.seconds) + root.seconds)


def _fullest(run: Run, sequences: Sequence[int]) -> tuple[int, int]:
    """Most tokens of a rank, and micro-batches of each: longest first, each to the rank with the fewest tokens."""
    loads = [0] * run.cluster.size
    for tokens in sorted(sequences, reverse=True):
        heapreplace(loads, loads[0] + tokens)
    return max(loads), -(-max(loads) // max(run.config.optimizer.token_budget, *sequences))


# ---- memory: the plan's items for one GPU, divided if sharded --------------------------------------------------------
# Ranks and engines are separate processes; on one GPU they are one process.

SHARDED = ("weights in float32", "AdamW's moments", "gradients in float32")
"""Items of the plan that are divided by the number of shards."""


def phase_bytes(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, slots: int) -> Mapping[str, int]:
    """Bytes that a GPU holds in each phase, time-shared by rank and engine.

    Args:
        prompt: tokens of a prompt.
        shards: GPUs that share weights and states; infinity = an engine has this GPU alone.
        slots: sequences that an engine generates at a time.
    """
    memory = predict_memory(spec, with_settings(config, {"rollout.max_num_seqs": slots}), prompt)
    contexts = CONTEXT * (1 if shards == 1 else 2)
    found = {}
    for phase in memory.phases:
        held = 0.0
        for item in phase.parts:
            if item.role == "process":
                continue
            if shards > 1 and item.what in SHARDED:
                held += item.size / shards
            elif shards > 1 and item.what == "unsharded weights":  # layers are gathered one after another
                held += number_bytes(config) * (spec.embeddings + constants.LAYERS_GATHERED * spec.layer)
            else:
                held += item.size
        found[phase.name] = int(held * (1 + SLACK)) + contexts
    return found


def slots_for(spec: ModelSpec, config: TrainConfig, prompt: int, shards: float, most: int, limit: float) -> int:
    """Sequences of full length for which an engine has memory next to the shards, at most `most`.

    Raises:
        ValueError: there is not enough memory for one.
    """

    def fit(slots: int) -> bool:
        found = phase_bytes(spec, config, prompt, shards, slots)
        return max(found["gen"], found["update_weights"]) <= limit

    if not fit(1):
        raise ValueError(f"{spec.name} in {shards} shards leaves no memory for a sequence on a GPU")
    return bisect_left(range(2, most + 1), True, key=lambda slots: not fit(slots)) + 1


def peak_bytes(run: Run) -> Mapping[str, int]:
    """Of a GPU in each phase, with the slots of `engines_of`."""
    return phase_bytes(run.spec, run.config, run.prompt, run.shards.size, engines_of(run).slots)
