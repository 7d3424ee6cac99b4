"""Seconds and bytes of each phase of a GRPO step on a cluster.

On one GPU there are no links, and what is left is the plan's prediction with the driver's own work beside it, which was
measured: see `benchmarks/README.md`, "One GPU" and "Host work per step".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from statistics import fmean
from typing import Literal

from benchmarks.cluster.generation import Engines, Lengths
from benchmarks.cluster.host import DUMPS, LOADS, WIRE_BYTES, host_seconds
from benchmarks.cluster.memory import phase_bytes, places_for
from benchmarks.cluster.network import Cluster, Group, Traffic, broadcast
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.speed import decoding_step, predict_speed, reading
from tinyzero_trainer.estimate.workload import number_bytes, workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models.spec import ModelSpec

Sharding = Literal["full", "hybrid", "hybrid, reduced once"]
"""`full` = over all ranks; `hybrid` = within a node, with gradients added up across nodes after each micro-batch, or
once for each mini-batch."""

Way = Literal["beside", "object store"]
"""Of weights to engines: from each rank to the engine on its GPU, or from the first through Ray's object store."""

STORE = 107_374_182_400 / 29.7
"""Bytes a second into Ray's object store and out again on one node, of one large object:
https://github.com/ray-project/ray/blob/master/release/perf_metrics/scalability/single_node.json."""

STORE_OUT = 50 * 2**30 / 16.9
"""Bytes a second from one node's object store to all others together, where 1 GiB went to 50 nodes in 16.9 s:
https://github.com/ray-project/ray/blob/master/release/perf_metrics/scalability/object_store.json."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained, and where."""

    spec: ModelSpec
    """The model's."""

    config: TrainConfig
    """Of a run for which `refuse` has nothing to say."""

    cluster: Cluster
    """All GPUs."""

    lengths: Lengths
    """Of completions."""

    prompt: int = 256
    """Tokens of a prompt."""

    sharding: Sharding = "full"
    """Of policy and optimiser state."""

    way: Way = "beside"
    """Of weights to engines."""

    refills: bool | None = None
    """Whether an engine takes the next completion when one has ended; None = as the configured engine does."""

    queue: bool = False
    """Whether engines take completions from one queue, rather than each its share of the batch."""

    seed: int = 0
    """Of the lengths."""

    @property
    def completions(self) -> int:
        """Of a step."""
        return workload_of(self.config, self.prompt).completions

    def drawn(self) -> tuple[int, ...]:
        """Their lengths."""
        return self.lengths.draw(self.completions, self.seed)

    def on(self, cluster: Cluster) -> "Run":
        """The same on other GPUs."""
        return replace(self, cluster=cluster)

    @property
    def shards(self) -> Group:
        """GPUs that hold one copy of policy and optimiser state together."""
        cluster = self.cluster
        return Group(cluster, cluster.nodes if self.sharding == "full" else 1, cluster.gpus)


@dataclass(frozen=True, slots=True)
class Step:
    """A step."""

    phases: Mapping[str, Traffic]
    """In their order, by their names in `timing_s/*`; `object_store` is the transfer of completions."""

    seconds: float
    """Of the whole, in which phases may overlap."""

    tokens: int
    """Of prompts and completions."""

    gpus: int
    """Of the cluster."""

    idle: float
    """Share of the generation that the mean engine waits for the last."""

    @property
    def rate(self) -> float:
        """Tokens a second and GPU."""
        return self.tokens / self.seconds / self.gpus

    def sent(self, link: str) -> float:
        """Bytes a step that all send over a kind of link; see `Traffic`."""
        return sum(getattr(phase, link) for phase in self.phases.values())


def refuse(config: TrainConfig) -> None:
    """Stop at what is not simulated.

    Raises:
        ValueError: the run has it.
    """
    algorithm = config.algorithm
    beside = {
        "lora.rank": config.lora.rank,
        "memory.cpu_offload": config.memory.cpu_offload,
        "algorithm.kl_coefficient": algorithm.kl_coefficient,
        "a critic": algorithm.needs_critic,
        "algorithm.advantage_estimator=remax": algorithm.advantage_estimator == "remax",
    }
    if found := [name for name, value in beside.items() if value]:
        raise ValueError(f"{', '.join(found)}: not simulated; leave it out")


def synchronous(run: Run) -> Step:
    """One phase after another on the same GPUs."""
    lengths = run.drawn()
    gen, idle = generation(run, lengths)
    back, there = carrying(run, lengths)
    phases = {
        "gen": gen,
        "reward": Traffic(host_seconds("reward", lengths)),
        "driver": Traffic(host_seconds("driver", lengths)),
        "object_store": back + there,
        **passes(run, lengths),
        "update_weights": weights(run),
    }
    return Step(phases, sum(phase.seconds for phase in phases.values()), _tokens(run, lengths), run.cluster.size, idle)


def one_step_off(run: Run, engines: Cluster, learners: Cluster) -> Step:
    """Completions of the next step are generated and scored on nodes of their own while this one's are learnt from."""
    lengths = run.drawn()
    gen, idle = generation(run.on(engines), lengths, alone=True)
    back, there = carrying(run, lengths)
    size = number_bytes(run.config) * run.spec.parameters
    sent = broadcast(engines, engines.nodes, size)
    made = {"gen": gen, "reward": Traffic(host_seconds("reward", lengths)), "object_store": back}
    learnt = {
        "driver": Traffic(host_seconds("driver", lengths)),
        "object_store": there,
        **passes(run.on(learners), lengths),
    }
    taken = {"update_weights": weights(run.on(learners)) + sent}
    lanes = [sum(phase.seconds for phase in lane.values()) for lane in (made, learnt, taken)]
    phases = made | learnt | taken | {"object_store": back + there}
    return Step(phases, max(lanes[:2]) + lanes[2], _tokens(run, lengths), engines.size + learners.size, idle)


# ---- phases ----------------------------------------------------------------------------------------------------------


def engines_of(run: Run, *, alone: bool = False) -> Engines:
    """The engines of all GPUs, each over `vllm.tensor_parallel` of them, with as many places as there is room for.

    Args:
        run: where.
        alone: whether these GPUs hold nothing else.
    """
    spec, config, several = run.spec, run.config, run.config.vllm.tensor_parallel
    gpu = run.cluster.gpu
    together = replace(gpu, bandwidth=several * gpu.bandwidth, tflops=several * gpu.tflops)
    group = Group(run.cluster, 1, several)

    def step(sequences: int, length: float) -> float:
        seconds = decoding_step(spec, config, together, sequences, length)
        if several > 1:  # what attention gives, and what the MLP gives, is added up in each layer
            seconds += 2 * spec.layers * group.all_reduce(number_bytes(config) * sequences * spec.hidden).seconds
        return seconds

    count = run.cluster.size // several
    wanted = min(-(-run.completions // count), constants.VLLM_SEQUENCES if config.rollout.engine == "vllm" else 2**31)
    limit = (1 - constants.MARGIN) * gpu.memory * GIB
    prompt = reading(spec, config, together, run.prompt) / config.rollout.group_size
    places = places_for(spec, config, run.prompt, math.inf if alone else run.shards.size, wanted, limit)
    refills = config.rollout.engine == "vllm" if run.refills is None else run.refills
    return Engines(count, places, refills, step, run.prompt, prompt)


def generation(run: Run, lengths: Sequence[int], *, alone: bool = False) -> tuple[Traffic, float]:
    """Until the last engine is done; and the share of it that the mean engine waits."""
    done = engines_of(run, alone=alone).generate(lengths, shared=run.queue)
    return Traffic(max(done)), 1 - fmean(done) / max(done)


def carrying(run: Run, lengths: Sequence[int]) -> tuple[Traffic, Traffic]:
    """Completions from engines to the driver, and from it to all ranks, each of which is given the whole batch."""
    if run.cluster.size == 1:
        return Traffic(), Traffic()  # all are one process
    others, tokens = run.cluster.nodes - 1, sum(lengths)
    size = WIRE_BYTES * tokens
    calls = 2 if run.config.old_logprobs_source == "policy" else 1
    from_others = size * others / run.cluster.nodes
    back = Traffic(LOADS * tokens + from_others / STORE_OUT, hosts=from_others)
    there = Traffic((DUMPS + LOADS) * tokens + size * others / STORE_OUT, hosts=size * others)
    return back, there * calls


def passes(run: Run, lengths: Sequence[int]) -> dict[str, Traffic]:
    """Log-probabilities before the update, if it needs them, and the update."""
    speed = predict_speed(run.spec, run.config, run.cluster.gpu, run.prompt)
    of_a_token = speed.seconds["update_actor"] / speed.tokens / run.config.optimizer.update_epochs
    forward = of_a_token * 2 / (8 if run.config.memory.activation_checkpointing else 6)
    sequences = [run.prompt + length for length in lengths]
    found = {}
    if run.config.old_logprobs_source == "policy":
        tokens, count = _fullest(run, sequences)
        found["old_log_prob"] = _forward(run, forward * tokens / count) * count
    share, update = -(-len(sequences) // run.config.optimizer.num_mini_batches), Traffic()
    for first in range(0, len(sequences), share):
        tokens, count = _fullest(run, sequences[first : first + share])
        each = _forward(run, forward * tokens / count)
        backward = (of_a_token - forward) * tokens / count
        once = run.sharding == "hybrid, reduced once"
        update += (each + _backward(run, backward, across=not once)) * (count - 1)
        update += each + _backward(run, backward, across=True)
    return {**found, "update_actor": update * run.config.optimizer.update_epochs}


def weights(run: Run) -> Traffic:
    """New weights for the engines: each tensor is put together in float32 from its shards, then goes its way."""
    spec, config, cluster = run.spec, run.config, run.cluster
    tensors = constants.TENSORS_OF_A_LAYER * spec.layers + 3
    gathered = run.shards.gather(constants.MASTER_BYTES * spec.parameters / tensors) * tensors
    if run.way == "beside" or cluster.size == 1:
        copied = predict_speed(spec, config, cluster.gpu, run.prompt).seconds["update_weights"]
        return gathered + Traffic(copied)
    size, others = number_bytes(config) * spec.parameters, cluster.nodes - 1
    sending = gathered.seconds + size / constants.PCIE + size / STORE
    taking = size * others / STORE_OUT + size / constants.PCIE
    return replace(gathered, seconds=max(sending, taking), hosts=size * others)  # bucket after bucket, concurrently


def peak_bytes(run: Run) -> Mapping[str, int]:
    """Of a GPU in each phase, with as many sequences as `engines_of` has room for."""
    return phase_bytes(run.spec, run.config, run.prompt, run.shards.size, engines_of(run).places)


def _forward(run: Run, compute: float) -> Traffic:
    """A pass over a micro-batch: while a layer computes, the next is gathered; first and root are waited for."""
    spec, number = run.spec, number_bytes(run.config)
    layer, root = run.shards.gather(number * spec.layer), run.shards.gather(number * spec.embeddings)
    seconds = root.seconds + layer.seconds + max(compute, (spec.layers - 1) * layer.seconds)
    return replace(layer * spec.layers + root, seconds=seconds)


def _backward(run: Run, compute: float, *, across: bool) -> Traffic:
    """The same backwards: layers are gathered again, gradients reduced in float32; the root's are waited for.

    Args:
        run: where.
        compute: seconds of the computation.
        across: whether gradients are added up across nodes, where nodes hold copies.
    """
    spec, cluster = run.spec, run.cluster

    def reduced(parameters: int) -> Traffic:
        size = constants.MASTER_BYTES * parameters
        within = run.shards.gather(size)
        copies = Group(cluster, cluster.nodes, 1)  # those GPUs of each node that hold the same shard
        return within + copies.all_reduce(size / cluster.gpus) if across and run.sharding != "full" else within

    layers = (run.shards.gather(number_bytes(run.config) * spec.layer) + reduced(spec.layer)) * spec.layers
    root = reduced(spec.embeddings)
    return replace(layers + root, seconds=max(compute, layers.seconds) + root.seconds)


def _fullest(run: Run, sequences: Sequence[int]) -> tuple[int, int]:
    """Tokens of the rank that has most, and micro-batches of each: the longest go first, each to the emptiest rank."""
    loads = [0] * run.cluster.size
    for tokens in sorted(sequences, reverse=True):
        heapreplace(loads, loads[0] + tokens)
    return max(loads), -(-max(loads) // max(run.config.optimizer.micro_batch_tokens, *sequences))


def _tokens(run: Run, lengths: Sequence[int]) -> int:
    return sum(lengths) + run.prompt * len(lengths)
