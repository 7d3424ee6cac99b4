"""What runs in the actors: a training rank, a dedicated rollout engine. Scorers: reward_actor.py.

Constructors return at once; what takes time is done in methods, whose errors reach the caller as they are.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.utils.startup import without_collector

with without_collector():
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn

    from tinyzero_trainer.algorithms.schedules import settings_at
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.distributed.cuda_allocator import expand_segments
    from tinyzero_trainer.distributed.fsdp import FsdpOptions, cast_weights, compute_dtype
    from tinyzero_trainer.errors import EngineDiedError
    from tinyzero_trainer.estimate.workload import workload_on
    from tinyzero_trainer.executors.ray.reward_actor import BaseActor
    from tinyzero_trainer.executors.ray.weight_broadcast import Shapes, WeightGroup
    from tinyzero_trainer.models.device import choose_device
    from tinyzero_trainer.models.loading import LanguageModel, load_model
    from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_usage
    from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
    from tinyzero_trainer.rollout.build import build_engine
    from tinyzero_trainer.rollout.vllm.engine import START_SECONDS
    from tinyzero_trainer.rollout.vllm.sync_check import PARAMS, compare, probes
    from tinyzero_trainer.rollout.vllm.weight_transfer import Weights, buckets
    from tinyzero_trainer.rollout.weight_sync import named_weights
    from tinyzero_trainer.training.build import Learners, build_learners
    from tinyzero_trainer.types import Generation
    from tinyzero_trainer.utils.oom import catch_out_of_memory

BUCKET_BYTES = 2**26
"""Of weights in one object of Ray's store: small, since the store of 1 GiB holds two on their way and the batches."""

JOIN_SECONDS = 300
"""For all ranks to find each other; models are loaded afterwards."""


class BatchStopped(TinyZeroError):
    """A batch that is no longer wanted."""


class WeightGroupActor(BaseActor):
    """A member of the group in which weights go from GPU to GPU. `leave_group` may be called meanwhile."""

    _config: TrainConfig
    _device: torch.device
    weight_group: WeightGroup | None = None
    _group_store: dist.TCPStore | None = None

    def open_group(self, host: str, count: int) -> int:
        """Create the store by which the members find the sender; returns its port."""
        self._group_store = dist.TCPStore(host, 0, count, is_master=True, wait_for_workers=False)
        return self._group_store.port

    def join_group(self, host: str, port: int, index: int, count: int) -> None:
        """Join the group as member `index` of `count`."""
        wait = timedelta(seconds=JOIN_SECONDS)
        store = dist.TCPStore(host, port, count, is_master=False, timeout=wait) if index else self._group_store
        assert store is not None
        dtype = compute_dtype(self._config.model.dtype, self._device)
        self.weight_group = WeightGroup(store, index, count, self._device, dtype)

    def leave_group(self) -> None:
        """Abort it, so that no member waits in it."""
        if self.weight_group is not None:
            self.weight_group.abort()
            self.weight_group = None


class EngineActor(WeightGroupActor):
    """An actor with a rollout engine. `finished` and `stop` may be called while `generate` runs."""

    _engine: RolloutEngine | None = None
    _finished = 0
    _stopped = False

    def generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, seed: int, first: int
    ) -> list[list[Generation]]:
        """See `RolloutEngine`.

        Raises:
            BatchStopped: `stop` was called.
        """

        def on_progress(finished: int) -> None:
            self._finished += finished
            if self._stopped:
                raise BatchStopped

        self._stopped = False
        try:
            return self.engine.generate(prompts, samples, params, seed=seed, first=first, on_progress=on_progress)
        finally:
            self._finished = 0

    def finished(self) -> int:
        """Finished completions of the present batch."""
        return self._finished

    def stop(self) -> None:
        """End `generate` soon."""
        self._stopped = True

    def sleep(self) -> None:
        """See `RolloutEngine`."""
        self.engine.sleep()

    def close(self) -> None:
        """See `RolloutEngine`."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def engine(self) -> RolloutEngine:
        """It must have been built."""
        assert self._engine is not None
        return self._engine


class TrainerActor(EngineActor):
    """One of the ranks over which policy, reference and critic are sharded. All get the same calls at the same time.

    It may have a rollout engine, which time-shares the GPU with them.
    """

    def __init__(self, config: TrainConfig, index: int, count: int, device: str) -> None:
        """
        Args:
            config: the run's.
            index: of this rank.
            count: of all ranks.
            device: `cpu` or `cuda`.
        """
        if count > 1 and config.rollout.engine == "vllm":
            # All ranks have to take part in the comparison with the engine: see `check_engine`.
            config = replace(config, vllm=replace(config.vllm, verify_weights=False))
        self._config, self._index, self._count, self._device = config, index, count, torch.device(device)
        self._store: dist.TCPStore | None = None
        self._learners: Learners | None = None
        self._pass: Iterator[tuple[str, Tensor]] | None = None

    def set_visible_gpus(self, gpus: Sequence[str]) -> None:
        """Before CUDA is used: the GPUs that this process and its children see, its own first."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def open_store(self, host: str) -> int:
        """On the first rank: create the store by which the others find it; returns its port."""
        self._store = dist.TCPStore(host, 0, self._count, is_master=True, wait_for_workers=False)
        return self._store.port

    def join(self, host: str, port: int) -> None:
        """Initialize the process group of all ranks."""
        wait = timedelta(seconds=JOIN_SECONDS)
        store = self._store or dist.TCPStore(host, port, self._count, is_master=False, timeout=wait)
        backend = "gloo"
        if self._device.type == "cuda":
            self._device, backend = choose_device("cuda"), "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(self._device)
            expand_segments(self._config)
        # Ranks without an engine wait in a collective while others start vLLM, or send it weights.
        timeout = timedelta(seconds=START_SECONDS + self._config.vllm.timeout)
        dist.init_process_group(backend, store=store, rank=self._index, world_size=self._count, timeout=timeout)

    def build(self, checkpoint: Path | None) -> LanguageModel | None:
        """Load and shard the models; the first rank returns the policy's without its weights."""
        with catch_out_of_memory("the models were loaded"):
            placement = FsdpOptions.of(self._config, self._device)
            self._learners = build_learners(self._config, placement, checkpoint=checkpoint)
        if self._device.type == "cuda":
            with catch_out_of_memory("the largest micro-batch was tried out"):
                work = workload_on(self._config, self._config.data.max_prompt_tokens)
                self._learners.policy.warm_up(settings_at(self._config, 1), work.micro_batch * work.slices)
        return without_weights(self._learners.language_model) if self._index == 0 else None

    def critic_parameters(self) -> int:
        """Number of parameters of the critic."""
        assert self._learners is not None
        assert self._learners.critic is not None
        return self._learners.critic.parameters

    def gpu_memory(self) -> GpuMemoryUsage | None:
        """Of its GPU."""
        return memory_usage(self._device)

    def do(self, role: str, method: str, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call a method of `policy` or `critic`; the first rank returns its result."""
        result = getattr(getattr(self._learners, role), method)(*arguments[0], **arguments[1])
        return result if self._index == 0 else None

    # ---- weights: all ranks iterate over them together ---------------------------------------------------------------

    def build_engine(self) -> list[str]:
        """Start an engine with the present weights, in place of one that failed; returns messages for the user."""
        assert self._learners is not None
        notes = list[str]()
        with suppress(Exception):  # it may have failed
            self.close()
        with self._one_pass(), catch_out_of_memory("the rollout engine took over the weights"):
            self._engine = build_engine(
                self._config, self._learners.language_model, notes.append, source=self._full_weights, number=self._index
            )
        return notes

    def load_weights(self) -> EngineDiedError | None:
        """See `RolloutEngine`; returns the engine's failure, since raising it would not wait for the other ranks."""
        try:
            with self._one_pass(), catch_out_of_memory("the rollout engine took over the weights"):
                self.engine.load_weights()
        except EngineDiedError as error:
            return error
        return None

    def weights(self) -> Iterator[Weights]:
        """The policy's full weights on the CPU, gathered one after another by all ranks."""
        dtype = compute_dtype(self._config.model.dtype, self._device)
        for bucket in buckets(self._full_weights(), dtype, BUCKET_BYTES):
            yield [(name, tensor.cpu()) for name, tensor in bucket]

    def broadcast(self) -> Shapes:
        """Send the policy's weights to the engines of the group; returns their names and shapes."""
        sent: Shapes = []

        def recorded() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self._full_weights():
                sent.append((name, tuple(tensor.shape)))
                yield name, tensor

        assert self.weight_group is not None
        with self._one_pass():
            self.weight_group.send(recorded())
        return sent

    def help_with_weights(self) -> None:
        """Help to gather the weights that other ranks use."""
        with self._one_pass():
            pass

    def probe_engine(self) -> list[Generation]:
        """Its engine's completions of the probes, for `check_engine`."""
        prompts = probes(len(self._language_model.tokenizer))
        return [group[0] for group in self.engine.generate(prompts, 1, PARAMS, seed=0)]

    def check_engine(self, completions: list[Generation]) -> None:
        """Together with all other ranks: whether the engine of these completions has the policy's weights."""
        compare(self._language_model, compute_dtype(self._config.model.dtype, self._device), completions)

    def free_memory(self) -> None:
        """Return cached GPU memory to the driver: the engine of another rank needs it."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def _language_model(self) -> LanguageModel:
        assert self._learners is not None
        return self._learners.language_model

    def _full_weights(self) -> Iterator[tuple[str, Tensor]]:
        self._pass = named_weights(self._language_model.model)
        return self._pass

    @contextmanager
    def _one_pass(self) -> Iterator[None]:
        """One pass over the weights is completed in the context, whatever fails: the other ranks wait for this one."""
        self._pass = None
        try:
            yield
        finally:
            for _ in self._full_weights() if self._pass is None else self._pass:
                pass


class RolloutActor(EngineActor):
    """A dedicated rollout engine, with weights of its own."""

    def __init__(self, config: TrainConfig, index: int, device: str) -> None:
        """
        Args:
            config: the run's.
            index: of this engine.
            device: `cpu` or `cuda`.
        """
        self._config, self._index, self._device = config, index, torch.device(device)

    def build(self, source: str | None) -> list[str]:
        """Load a model of the policy's architecture, whose weights are sent later; returns messages for the user."""
        self._device = choose_device(self._device.type)
        language_model, notes = load_model(source, torch.device("cpu")), list[str]()
        cast_weights(language_model.model, compute_dtype(self._config.model.dtype, self._device))
        language_model.model.to(self._device)  # type: ignore[arg-type]  # transformers' decorator hides the signature
        self._state = language_model.model.state_dict()
        self._engine = build_engine(self._config, language_model, notes.append, number=self._index)
        return notes

    @torch.no_grad()
    def load_bucket(self, bucket: Weights) -> None:
        """Copy some of the policy's weights."""
        for name, tensor in bucket:
            self._state[name].copy_(tensor)

    def load_weights(self) -> None:
        """After the last bucket, give the weights to the engine."""
        self.engine.load_weights()

    def shapes(self) -> Shapes:
        """Names and shapes of its weights."""
        return [(name, tuple(tensor.shape)) for name, tensor in self._state.items()]

    def receive(self) -> None:
        """Receive all weights from the group."""
        assert self.weight_group is not None
        for bucket in self.weight_group.receive(self.shapes()):
            self.load_bucket(bucket)
        self.load_weights()


class _WeightlessModel(nn.Module):
    """A model's configuration and sizes without its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.config = copy.deepcopy(model.config)
        self._sizes = [(parameter.shape, parameter.requires_grad) for parameter in model.parameters()]

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Of the same shapes, on the meta device."""
        for shape, trained in self._sizes:
            yield nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained)


def without_weights(language_model: LanguageModel) -> LanguageModel:
    """The same without weights, for another process: tokenizer, sizes, and whether there is an adapter."""
    adapter = copy.copy(language_model.adapter)
    if adapter is not None:
        adapter.forget_model()
    return replace(language_model, model=cast(Any, _WeightlessModel(language_model.model)), adapter=adapter)
