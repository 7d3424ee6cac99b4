"""What runs in the actors: a rank of those that learn, a rollout engine of its own. Scorers: reward_actor.py.

Each is made at once and does what takes time in a method, so that its errors reach the caller as they are.
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
    from tinyzero_trainer.estimate.workload import workload_on
    from tinyzero_trainer.executors.ray.weight_broadcast import Shapes, WeightGroup
    from tinyzero_trainer.executors.ray.worker import Worker
    from tinyzero_trainer.models.device import choose_device
    from tinyzero_trainer.models.loading import LanguageModel, load_model
    from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_usage
    from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
    from tinyzero_trainer.rollout.build import build_engine
    from tinyzero_trainer.rollout.vllm.client import VllmError
    from tinyzero_trainer.rollout.vllm.engine import START_LIMIT
    from tinyzero_trainer.rollout.vllm.sync_check import PARAMS, compare, probes
    from tinyzero_trainer.rollout.vllm.weight_transfer import Weights, parcels
    from tinyzero_trainer.rollout.weight_sync import named_weights
    from tinyzero_trainer.training.build import Learners, build_learners
    from tinyzero_trainer.types import Generation
    from tinyzero_trainer.utils.oom import catch_out_of_memory

PARCEL_BYTES = 2**26
"""Of weights that are on their way at a time."""

JOIN_SECONDS = 300
"""For all ranks to find each other; a model is loaded after it."""


class Stopped(TinyZeroError):
    """A batch was given up."""


class InWeightGroup(Worker):
    """An end of the group through which weights go from GPU to GPU. `leave_group` may be called while they do."""

    _config: TrainConfig
    _device: torch.device
    _group: WeightGroup | None = None
    _group_store: dist.TCPStore | None = None

    def open_group(self, host: str, count: int) -> int:
        """For the sender, before all join: where the others find it; the port."""
        self._group_store = dist.TCPStore(host, 0, count, is_master=True, wait_for_workers=False)
        return self._group_store.port

    def join_group(self, host: str, port: int, index: int, count: int) -> None:
        """See `WeightGroup`."""
        wait = timedelta(seconds=JOIN_SECONDS)
        store = dist.TCPStore(host, port, count, is_master=False, timeout=wait) if index else self._group_store
        assert store is not None
        dtype = compute_dtype(self._config.model.dtype, self._device)
        self._group = WeightGroup(store, index, count, self._device, dtype)

    def leave_group(self) -> None:
        """Free whoever waits in it."""
        if self._group is not None:
            self._group.cut()
            self._group = None

    @property
    def weight_group(self) -> WeightGroup:
        """The one that it has joined."""
        assert self._group is not None
        return self._group


class Generating(InWeightGroup):
    """An actor with a rollout engine. `finished` and `stop` may be asked while `generate` is at work."""

    _engine: RolloutEngine | None = None
    _finished = 0
    _stopped = False

    def generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, seed: int, first: int
    ) -> list[list[Generation]]:
        """See `RolloutEngine`.

        Raises:
            Stopped: nobody wants the completions any more.
        """
        self._stopped = False
        try:
            return self.engine.generate(prompts, samples, params, seed=seed, first=first, on_progress=self._note)
        finally:
            self._finished = 0

    def finished(self) -> int:
        """Completions so far, of those that are under way."""
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
        """The one that it has."""
        assert self._engine is not None
        return self._engine

    def _note(self, finished: int) -> None:
        self._finished += finished
        if self._stopped:
            raise Stopped


class TrainerActor(Generating):
    """One of the ranks over which policy, reference and critic are sharded. All are asked the same at the same time.

    It may have a rollout engine, which takes turns with them.
    """

    def __init__(self, config: TrainConfig, index: int, count: int, device: str) -> None:
        """
        Args:
            config: the run's.
            index: which of the ranks it is.
            count: how many there are.
            device: of this one.
        """
        if count > 1 and config.rollout.engine == "vllm":
            # One that is started anew takes its weights from all ranks, and all compare them: they must be told.
            config = replace(config, vllm=replace(config.vllm, max_restarts=0, verify_weights=False))
        self._config, self._index, self._count, self._device = config, index, count, torch.device(device)
        self._store: dist.TCPStore | None = None
        self._learners: Learners | None = None
        self._pass: Iterator[tuple[str, Tensor]] | None = None

    def see(self, gpus: Sequence[str]) -> None:
        """Before CUDA is used: which GPUs this process and those that it starts see, its own first."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def open_store(self, host: str) -> int:
        """On the first rank: where the others find it; the port."""
        self._store = dist.TCPStore(host, 0, self._count, is_master=True, wait_for_workers=False)
        return self._store.port

    def join(self, host: str, port: int) -> None:
        """Meet the other ranks."""
        wait = timedelta(seconds=JOIN_SECONDS)
        store = self._store or dist.TCPStore(host, port, self._count, is_master=False, timeout=wait)
        backend = "gloo"
        if self._device.type == "cuda":
            self._device, backend = choose_device("cuda"), "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(self._device)
            expand_segments(self._config)
        # Ranks without an engine wait in a collective while others start vLLM, or have it take weights.
        patience = timedelta(seconds=START_LIMIT + self._config.vllm.timeout)
        dist.init_process_group(backend, store=store, rank=self._index, world_size=self._count, timeout=patience)

    def build(self, checkpoint: Path | None) -> LanguageModel | None:
        """Load and shard the models; of the first rank, what it takes to speak of the policy's without its weights."""
        with catch_out_of_memory("the models were loaded"):
            placement = FsdpOptions.of(self._config, self._device)
            self._learners = build_learners(self._config, placement, checkpoint=checkpoint)
        if self._device.type == "cuda":
            with catch_out_of_memory("the largest micro-batch was tried out"):
                work = workload_on(self._config, self._config.data.max_prompt_tokens)
                self._learners.policy.warm_up(settings_at(self._config, 1), work.micro_batch * work.slices)
        return outline(self._learners.language_model) if self._index == 0 else None

    def count_of_critic(self) -> int:
        """Parameters of the critic."""
        assert self._learners is not None
        assert self._learners.critic is not None
        return self._learners.critic.parameters

    def card_use(self) -> GpuMemoryUsage | None:
        """Of its GPU."""
        return memory_usage(self._device)

    def do(self, role: str, method: str, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call a method of `policy` or `critic`; its result is the first rank's to return."""
        found = getattr(getattr(self._learners, role), method)(*given[0], **given[1])
        return found if self._index == 0 else None

    # ---- weights: all ranks go through them together -----------------------------------------------------------------

    def build_engine(self) -> list[str]:
        """Start an engine with the present weights, in place of one that has failed; what the user should know."""
        assert self._learners is not None
        notes = list[str]()
        with suppress(Exception):  # it may be what has failed
            self.close()
        with self._helping(), catch_out_of_memory("the rollout engine took over the weights"):
            self._engine = build_engine(
                self._config, self._learners.language_model, notes.append, source=self._begin_pass, number=self._index
            )
        return notes

    def load_weights(self) -> VllmError | None:
        """See `RolloutEngine`; why vLLM could not, if so, once the other ranks are through the weights too."""
        try:
            with self._helping(), catch_out_of_memory("the rollout engine took over the weights"):
                self.engine.load_weights()
        except VllmError as fault:
            return fault
        return None

    def weights(self) -> Iterator[Weights]:
        """The policy's weights, put together one after another by all ranks; here is what to do with them."""
        dtype = compute_dtype(self._config.model.dtype, self._device)
        for parcel in parcels(self._begin_pass(), dtype, PARCEL_BYTES):
            yield [(name, tensor.cpu()) for name, tensor in parcel]

    def broadcast(self) -> Shapes:
        """Send the policy's weights to the engines of the group, and tell which they were."""
        sent: Shapes = []

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self._begin_pass():
                sent.append((name, tuple(tensor.shape)))
                yield name, tensor

        with self._helping():
            self.weight_group.send(noted())
        return sent

    def help_with_weights(self) -> None:
        """What ranks do meanwhile that have no use for them."""
        with self._helping():
            pass

    def probe_engine(self) -> list[Generation]:
        """What its engine answers to the probes of `check_engine`."""
        prompts = probes(len(self._language_model.tokenizer))
        return [group[0] for group in self.engine.generate(prompts, 1, PARAMS, seed=0)]

    def check_engine(self, answers: list[Generation]) -> None:
        """With all other ranks: whether the engine that gave these answers has the policy's weights."""
        compare(self._language_model, compute_dtype(self._config.model.dtype, self._device), answers)

    def free_memory(self) -> None:
        """Give the GPU what this process only keeps: the engine of another rank needs it."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def _language_model(self) -> LanguageModel:
        assert self._learners is not None
        return self._learners.language_model

    def _begin_pass(self) -> Iterator[tuple[str, Tensor]]:
        self._pass = named_weights(self._language_model.model)
        return self._pass

    @contextmanager
    def _helping(self) -> Iterator[None]:
        """Within, one pass through the weights is gone to its end, whatever happens: the others wait for this rank."""
        self._pass = None
        try:
            yield
        finally:
            for _ in self._begin_pass() if self._pass is None else self._pass:
                pass


class RolloutActor(Generating):
    """A rollout engine with weights of its own."""

    def __init__(self, config: TrainConfig, index: int, device: str) -> None:
        """
        Args:
            config: the run's.
            index: which of the engines it is.
            device: of this one.
        """
        self._config, self._index, self._device = config, index, torch.device(device)

    def build(self, source: str | None) -> list[str]:
        """Load a model of the policy's architecture; its weights are sent before anything is generated.

        Returns:
            What the user should know.
        """
        self._device = choose_device(self._device.type)
        language_model, notes = load_model(source, torch.device("cpu")), list[str]()
        cast_weights(language_model.model, compute_dtype(self._config.model.dtype, self._device))
        language_model.model.to(self._device)  # type: ignore[arg-type]  # transformers' decorator hides the signature
        self._state = language_model.model.state_dict()
        self._engine = build_engine(self._config, language_model, notes.append, number=self._index)
        return notes

    @torch.no_grad()
    def take(self, parcel: Weights) -> None:
        """Some of the policy's weights."""
        for name, tensor in parcel:
            self._state[name].copy_(tensor)

    def load_weights(self) -> None:
        """All weights have been taken."""
        self.engine.load_weights()

    def shapes(self) -> Shapes:
        """The weights that it takes."""
        return [(name, tuple(tensor.shape)) for name, tensor in self._state.items()]

    def receive(self) -> None:
        """Take all of them from the group."""
        for parcel in self.weight_group.receive(self.shapes()):
            self.take(parcel)
        self.load_weights()


class _Outline(nn.Module):
    """A model's sizes and configuration without its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.config = copy.deepcopy(model.config)
        self._sizes = [(parameter.shape, parameter.requires_grad) for parameter in model.parameters()]

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """On no device."""
        for shape, trained in self._sizes:
            yield nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained)


def outline(language_model: LanguageModel) -> LanguageModel:
    """The same without weights, for a process that has none: tokenizer, sizes, and whether there is an adapter."""
    adapter = copy.copy(language_model.adapter)
    if adapter is not None:
        adapter.forget_model()
    return replace(language_model, model=cast(Any, _Outline(language_model.model)), adapter=adapter)
