"""Bytes of a GPU that each role holds in each phase of a step, at the phase's worst moment.

Phases are named as their times in the metrics (`timing_s/*`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import gcd
from typing import Any, Literal

from tinyzero_trainer.advisor import constants
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.run import compiles
from tinyzero_trainer.distributed.parallel_dims import GpuRole, ParallelDims, planned_dims
from tinyzero_trainer.distributed.sizes import CONTEXT, NCCL, SLACK
from tinyzero_trainer.distributed.workload import Workload, number_bytes, workload_of
from tinyzero_trainer.kinds import EngineMemory, find_engine
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.sizes import FLOAT8_LARGE, HEAD_ELEMENTS, HIDDEN_FORWARD, KEPT_ELEMENTS, MLP_FORWARD
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import WEIGHT_BUCKET

Role = Literal["policy", "critic", "reference", "teacher", "rollout", "process"]
ROLES: tuple[Role, ...] = ("policy", "critic", "reference", "teacher", "rollout", "process")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what is held, in bytes."""

    role: Role
    """Its owner; `process` = the CUDA context, NCCL, and what the allocator wastes."""

    what: str
    size: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step, at its worst moment."""

    name: str
    parts: tuple[Part, ...]
    gpu: GpuRole = "rank"

    @property
    def total(self) -> int:
        return sum(part.size for part in self.parts)

    def of(self, role: Role) -> int:
        return sum(part.size for part in self.parts if part.role == role)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a step."""

    phases: tuple[Phase, ...]

    @property
    def worst(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def peak(self) -> int:
        """Bytes of the GPU in use, all processes together."""
        return self.worst.total


def predict_memory(
    spec: ModelSpec,
    config: TrainConfig,
    prompt_tokens: int | None = None,
    *,
    keeps: bool = False,
    gpu: GpuRole | None = None,
) -> Memory:
    """Memory of every phase, with all completions at full length.

    Args:
        prompt_tokens: see `workload_of`.
        keeps: whether an engine that keeps its memory during the update where that fits does so.
        gpu: a rank's or a dedicated engine's; None = in each phase the one that holds more.
    """
    dims, work = planned_dims(config), workload_of(config, prompt_tokens)
    phases = list[Phase]()
    if gpu != "engine":
        engine = predictions_of(config).memory(spec, config, work, keeps=keeps) if dims.colocated else None
        phases += _Step(spec, config, work, engine, dims).phases()
    if gpu == "engine" or (gpu is None and not dims.colocated):
        phases += _engine_phases(spec, config, predictions_of(config).memory(spec, config, work, keeps=True))
    names = dict.fromkeys(phase.name for phase in phases)
    return Memory(
        tuple(max((phase for phase in phases if phase.name == name), key=lambda phase: phase.total) for name in names)
    )


def predictions_of(config: TrainConfig) -> Any:
    """The module that predicts the memory and the speed of the configuration's rollout engine."""
    return import_module(find_engine(config.rollout.engine).cost_model)


def host_bytes(spec: ModelSpec, config: TrainConfig) -> int:
    """Bytes that `memory.cpu_offload` keeps in host memory; 0 without it.

    These are float32 weights, AdamW's two moments, with `always` the gradients too, and what is frozen.
    """
    offload, algorithm = config.memory.offload, config.algorithm
    if offload is None:
        return 0
    weight_bytes = (4 if offload == "always" else 3) * constants.MASTER_BYTES
    adapter = spec.adapter(config.lora.rank, config.lora.target_modules)
    held = weight_bytes * (adapter or spec.parameters) + (constants.FROZEN_BYTES * spec.parameters if adapter else 0)
    if algorithm.needs("critic"):
        head = 0 if spec.tied else spec.embedding  # which the critic does not train
        held += weight_bytes * (spec.parameters - head) + constants.FROZEN_BYTES * head
    if algorithm.kl_coefficient > 0 and not adapter:
        held += number_bytes(config) * spec.parameters
    if (teacher := teacher_of(config)) is not None:
        held += number_bytes(config) * teacher.parameters
    dims = planned_dims(config)
    nodes = -(-dims.gpus // constants.GPUS_OF_A_NODE)
    return -(-held * dims.dp_replicate // nodes)


def _engine_phases(spec: ModelSpec, config: TrainConfig, engine: EngineMemory) -> Iterator[Phase]:
    """The phases on a dedicated engine's GPU, the first of several.

    Its process keeps a copy of the model to receive new weights, unless the engine computes with that itself.
    """
    number, copies = number_bytes(config), predictions_of(config).copies_model(spec)
    copy = [Part("rollout", "copy of the model", number * spec.parameters if copies else 0)]
    awake = [Part("rollout", what, size) for what, size in engine.awake.items()]
    coming = [Part("rollout", "weight bucket", max(WEIGHT_BUCKET, number * spec.embedding))]

    def phase(name: str, own: list[Part], of_engine: list[Part]) -> Phase:
        here = own if engine.separate_process else [*own, *of_engine]
        parts = (*own, *of_engine, *_process(here, several=True))
        return Phase(name, tuple(part for part in parts if part.size), "engine")

    yield phase("gen", copy, awake)
    if config.algorithm.needs("greedy"):
        yield phase("gen_greedy", copy, awake)
    yield phase("update_weights", [*copy, *coming], awake)


def _process(held: list[Part], *, several: bool) -> Iterator[Part]:
    """A process's overhead on top of what it holds."""
    yield Part("process", "CUDA context", CONTEXT)
    yield Part("process", "NCCL", NCCL if several else 0)
    yield Part("process", "allocator", int(SLACK * sum(part.size for part in held)))


def teacher_of(config: TrainConfig) -> ModelSpec | None:
    """The sizes of `model.teacher`; None = there is none."""
    return None if config.model.teacher is None else _find_spec(config.model.teacher)


_find_spec = cache(find_spec)


def mlp_in_float8(spec: ModelSpec, config: TrainConfig) -> bool:
    """Whether the products of the policy's MLPs are in float8, as `training.float8.use_float8` chooses them."""
    named = config.model.float8_modules
    if named is not None:
        return {"gate_proj", "up_proj", "down_proj"} <= set(named)
    return config.model.float8 is not None and spec.hidden * spec.mlp >= FLOAT8_LARGE


class _Step:
    """The parts of each phase of a step."""

    def __init__(
        self, spec: ModelSpec, config: TrainConfig, work: Workload, engine: EngineMemory | None, dims: ParallelDims
    ) -> None:
        self.spec, self.config, self.work, self.dims, self.engine = spec, config, work, dims, engine
        self.number, self.teacher = number_bytes(config), teacher_of(config)
        self.adapter = spec.adapter(config.lora.rank, config.lora.target_modules)
        self.frozen: Role = "policy" if self.adapter else "reference"  # the owner of the KL's reference weights
        self.kl = config.algorithm.kl_coefficient > 0
        self.in_loss = self.kl and config.algorithm.kl_placement == "loss"
        self.exact = self.in_loss and config.algorithm.kl_estimator == "exact"

    def phases(self) -> Iterator[Phase]:
        """In the order in which they happen."""
        yield self._phase("gen", [], awake=True)
        if self.config.old_logprobs_source == "policy":
            yield self._phase("old_log_prob", self._forward("policy"), "policy")
        if self.kl and not self.in_loss:
            yield self._phase("ref", self._forward(self.frozen), self.frozen)
        if self.teacher is not None:
            scoring = _Step(self.teacher, self.config, self.work, None, self.dims)
            yield self._phase("teacher", scoring._forward("teacher"), "teacher")
        if self.config.algorithm.needs("greedy"):
            yield self._phase("gen_greedy", [], awake=True)
        if self.config.algorithm.needs("critic"):
            yield self._phase("values", self._forward("critic"), "critic")
            yield self._worst("update_critic", self._update("critic"), "critic")
        active: tuple[Role, ...] = ("policy", "reference") if self.in_loss else ("policy",)
        yield self._worst("update_actor", self._update("policy"), *active)
        yield self._phase("update_weights", [self._sent()], "policy", awake=True)

    # ---- what is held --------------------------------------------------------------------------------------------

    def _phase(self, name: str, moment: list[Part], *active: Role, awake: bool = False) -> Phase:
        parts, of_engine = [*self._weights(name, active), *moment], list[Part]()
        if self.engine is not None:
            # What is sampled over several updates keeps its keys and values meanwhile.
            awake = awake or self.config.rollout.max_async_level > 0
            engine = self.engine.awake if awake else self.engine.asleep
            of_engine = [Part("rollout", what, size) for what, size in engine.items()]
        here = parts if self.engine is None or self.engine.separate_process else [*parts, *of_engine]
        process = _process(here, several=self.dims.gpus > 1)
        return Phase(name, tuple(part for part in (*parts, *of_engine, *process) if part.size))

    def _sent(self) -> Part:
        """A tensor for the engine: gathered in float32 if it is sharded, then cast."""
        size = (self.number + (constants.MASTER_BYTES if self.dims.dp_shard > 1 else 0)) * self.spec.embedding
        if not self.dims.colocated:
            size += self.number * self.spec.embedding + 2 * WEIGHT_BUCKET
        return Part("policy", "sent tensor", size)

    def _worst(self, name: str, moments: list[list[Part]], *active: Role) -> Phase:
        return max((self._phase(name, moment, *active) for moment in moments), key=lambda phase: phase.total)

    def _weights(self, phase: str, active: tuple[Role, ...]) -> Iterator[Part]:
        """Weights and optimiser states that are on the GPU."""
        offload, spec, algorithm = self.config.memory.offload, self.spec, self.config.algorithm
        if offload == "always":
            return
        stay = offload is None
        if stay or "policy" in active:
            yield from self._trained("policy", self.adapter or spec.parameters, stay or phase == "update_actor")
            frozen = self.dims.shard(spec.parameters) if self.adapter else 0
            yield Part("policy", "frozen weights", constants.FROZEN_BYTES * frozen)
        if algorithm.needs("critic") and (stay or "critic" in active):
            head = 0 if spec.tied else spec.embedding  # which the critic does not train
            trained = spec.parameters - head
            yield from self._trained("critic", trained, stay or phase == "update_critic")
            yield Part("critic", "frozen weights", constants.FROZEN_BYTES * self.dims.shard(head))
        if self.kl and not self.adapter and (stay or "reference" in active):
            yield Part("reference", "weights", self.number * self.dims.shard(spec.parameters))
        if self.teacher is not None and (stay or "teacher" in active):
            yield Part("teacher", "weights", self.number * self.dims.shard(self.teacher.parameters))

    def _trained(self, role: Role, count: int, moments: bool) -> Iterator[Part]:
        yield Part(role, "weights in float32", constants.MASTER_BYTES * self.dims.shard(count))
        if moments:
            yield Part(role, "AdamW's moments", 2 * constants.MASTER_BYTES * self.dims.shard(count))

    # ---- passes over a micro-batch -------------------------------------------------------------------------------

    def _reshards(self) -> bool:
        """Whether a pass gathers the weights of a layer for itself alone; see distributed/fsdp.py."""
        memory = self.config.memory
        if self.dims.dp_shard > 1:
            return memory.reshard_after_forward is not False
        return memory.activation_checkpointing is True or memory.offload is not None

    def _gathered(self, role: Role) -> Part:
        """Gathered weights of embedding, head and the layers in use, in the compute dtype."""
        several, memory = self.dims.dp_shard > 1, self.config.memory
        layers = self.spec.layers
        if self._reshards() or role in ("reference", "teacher"):
            layers = constants.LAYERS_GATHERED + (constants.LAYERS_ARRIVING if several else 0)
        size = self.spec.embeddings + layers * self.spec.layer
        staged = constants.MASTER_BYTES * self.dims.shard(self.spec.layer) if memory.offload == "always" else 0
        return Part(role, "unsharded weights", self.number * size + staged)

    def _forward(self, role: Role) -> list[Part]:
        """A pass without gradient."""
        return [self._gathered(role), self._layer(role), self._logits(role, models=int(role != "critic"))]

    def _layer(self, role: Role) -> Part:
        """A layer's activations without gradient."""
        layer = HIDDEN_FORWARD * self.spec.hidden + MLP_FORWARD * self.spec.mlp
        return Part(role, "activations of a layer", self.work.micro_batch * layer * self.number // 2)

    def _logits(self, role: Role, models: int = 1, *, kept: bool = False) -> Part:
        """A chunk of the logits of `models` models, or all; gradients replace them. See models/fused_logprobs.py."""
        if kept:  # of every token: completions that share their prompt leave little of a micro-batch to it
            return Part(role, "logits", self.number * self.work.micro_batch * models * self.spec.vocabulary)
        tokens = max(1, int(self.work.micro_batch * (self.work.completion / self.work.sequence)))
        count = min(HEAD_ELEMENTS[self.number], tokens * models * self.spec.vocabulary)
        return Part(role, "logits", self.number * count)

    def _head_in_float8(self, *, kept: bool) -> Part:
        """The gradient of a chunk of logits, and the head as the forward and the backward pass multiply by it."""
        chunk = KEPT_ELEMENTS if kept else HEAD_ELEMENTS[self.number]
        return Part(
            "policy",
            "head in float8",
            min(chunk, self.work.micro_batch * self.spec.vocabulary) + 2 * self.spec.embedding,
        )

    def _update(self, role: Role) -> list[list[Part]]:
        """The moments of an update that may be its worst."""
        spec, adapter = self.spec, self.adapter if role == "policy" else 0
        trained = self.dims.shard(adapter or spec.parameters)
        whole = 0 if self.config.memory.offload == "always" else constants.MASTER_BYTES * trained
        gradients = Part(role, "gradients in float32", whole if self.work.accumulates else 0)
        unreduced = 0
        several = self.dims.dp_shard * self.dims.dp_replicate > 1
        if self.work.accumulates and several and self.config.memory.reshard_after_forward is False:
            unreduced = constants.MASTER_BYTES * (adapter or spec.parameters)
        to_reduce = Part(role, "gradients to be reduced", unreduced)
        kept, layer = self._activations(role)
        held = [self._gathered(role), Part(role, "activations", kept), gradients, to_reduce]
        of_head = 0 if role == "critic" or adapter else spec.embedding
        of_layer = adapter // max(1, spec.layers) if adapter else spec.layer
        reducing = constants.LAYERS_REDUCED * (self.number + constants.MASTER_BYTES) * of_layer
        reducing = reducing if self.dims.dp_shard > 1 else 0
        backward = Part(role, "gradient buffers", layer + self.number * of_head + reducing)
        embedding = 0 if adapter else spec.embedding
        root = (self.number + 4) * embedding + 4 * self.dims.shard(embedding)
        reduced = [
            self._gathered(role),
            Part(role, "gradients in float32", whole),
            Part(role, "reducing", root),
            to_reduce,
        ]
        if role == "critic":
            return [[*held, backward], reduced]
        kept = self.config.memory.recompute_logits is False
        head = [
            self._logits(role, models=2 if self.exact else 1, kept=kept),
            *([self._logits(self.frozen)] if kept and self.in_loss and not self.exact else []),
            Part(role, "gradient of the head", 8 * of_head),
            *([self._head_in_float8(kept=kept)] if self.config.model.float8 else []),
        ]
        moments = [[*held, backward], [*held, *head], reduced]
        return self._with_reference(held, moments) if self.in_loss else moments

    def _with_reference(self, held: list[Part], moments: list[list[Part]]) -> list[list[Part]]:
        """The moments of the policy's update with the reference's memory, and the moment of the reference's pass."""
        # With `exact` its logits are computed with the policy's.
        passing = [*held, self._layer(self.frozen), self._logits(self.frozen, models=0 if self.exact else 1)]
        if self.adapter:  # the reference is the policy's own model
            return [*moments, passing]
        # Its layers are gathered in its pass only; the rest stays, since no backward pass frees it.
        rest = Part("reference", "unsharded weights", self.number * self.spec.embeddings)
        return [*([*moment, rest] for moment in moments), [*passing, self._gathered("reference")]]

    def _activations(self, role: Role) -> tuple[int, int]:
        """Bytes kept for the backward pass of all layers, and bytes within the layer in use."""
        spec, tokens = self.spec, self.work.micro_batch
        hidden, mlp = constants.HIDDEN_EAGER, constants.MLP_EAGER
        ranks = self.dims.sequence_parallel
        if ranks == 1 and compiles(self.config.model.compile, spec.parameters):
            hidden, mlp = constants.HIDDEN_COMPILED, constants.MLP_COMPILED
        if role == "policy" and mlp_in_float8(spec, self.config):
            mlp = constants.MLP_FLOAT8
        attention = 2 * (2 * spec.attention + 2 * spec.kv) + 4 * spec.heads
        if ranks > 1:
            # Attention's output is kept before and after Ulysses' exchange, and so are repeated key and value heads.
            repeated = ranks // gcd(spec.kv_heads, ranks)
            attention += 2 * (spec.attention + 2 * (repeated - 1) * spec.kv)
        layer = tokens * (hidden * spec.hidden + mlp * spec.mlp + attention) * self.number // 2
        adapted = 2 * tokens * self.config.lora.rank * len(spec.matrices) * self.number
        working = int(constants.LAYER_BACKWARD * layer)
        if self.config.memory.activation_checkpointing is True:
            return spec.layers * tokens * spec.hidden * self.number, layer + adapted + working
        return spec.layers * (layer + adapted), working
