"""What runs in the actors: a training rank, a dedicated rollout engine.

Constructors return at once; what takes time is done in methods, whose errors reach the caller as they are.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.utils.startup import set_torch_environment, without_collector

set_torch_environment()  # not in Ray's runtime_env, which would keep an actor from a process that has started already
with without_collector():
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn

    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.distributed.cuda_allocator import expand_segments
    from tinyzero_trainer.distributed.fsdp import FsdpOptions, cast_weights, compute_dtype
    from tinyzero_trainer.executors.ray.base_actor import BaseActor
    from tinyzero_trainer.executors.ray.watch import log_oom_kills
    from tinyzero_trainer.executors.ray.weight_broadcast import Shapes, WeightGroup
    from tinyzero_trainer.models.device import choose_device
    from tinyzero_trainer.models.loading import LanguageModel, load_model
    from tinyzero_trainer.models.lora import Adapter
    from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_usage
    from tinyzero_trainer.rollout.background_engine import BackgroundEngine
    from tinyzero_trainer.rollout.build import build_engine
    from tinyzero_trainer.rollout.engine import Completions, Group, PromptBatch, RolloutEngine, SamplingParams
    from tinyzero_trainer.rollout.vllm.engine import START_SECONDS
    from tinyzero_trainer.rollout.vllm.sync_check import SyncCheck
    from tinyzero_trainer.rollout.weight_source import named_weights, sent_weights
    from tinyzero_trainer.training.build import TrainedModels, build_trained_models
    from tinyzero_trainer.utils.oom import catch_out_of_memory

JOIN_SECONDS = 300
"""For processes to find each other; models are loaded afterwards."""

Address = tuple[str, int]
"""Host and port."""


class BatchStopped(TinyZeroError):
    """A batch that is no longer needed."""


class EngineActor(BaseActor):
    """An actor that may have a rollout engine, and takes part in broadcasts of weights to dedicated engines.

    `finished`, `stop` and `leave_group` may be called while another method runs.
    """

    engine: RolloutEngine
    weight_group: WeightGroup | None = None
    _store: dist.TCPStore
    _finished = 0
    _stopped = False

    def __init__(self, config: TrainConfig, index: int, device: str) -> None:
        """Actor `index` of its class; `device` is `cpu` or `cuda`."""
        log_oom_kills()
        self._config, self._index, self._device = config, index, torch.device(device)

    def open_store(self, count: int) -> Address:
        """Create the store by which `count` processes find each other; this one is the first of them."""
        host = self.host()
        self._store = dist.TCPStore(host, 0, count, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def _connect(self, address: Address, index: int, count: int) -> dist.TCPStore:
        """The store at an address, as process `index` of `count`."""
        wait = timedelta(seconds=JOIN_SECONDS)
        return dist.TCPStore(*address, count, is_master=False, timeout=wait) if index else self._store

    def join_group(self, address: Address, index: int, count: int) -> None:
        """Join a weight group as member `index` of `count`."""
        # An adapter is sent as it is, since the engine adds it to its own weights.
        dtype = torch.float32 if self._adapts else compute_dtype(self._config.model.dtype, self._device)
        self.weight_group = WeightGroup(self._connect(address, index, count), index, count, self._device, dtype)

    @property
    def _adapts(self) -> bool:
        return self._config.lora.rank > 0

    def leave_group(self) -> None:
        """Abort the weight group, so that no member waits in it."""
        if self.weight_group is not None:
            self.weight_group.abort()
            self.weight_group = None

    def generate(self, batch: PromptBatch) -> Completions:
        """The engine's completions of a batch.

        Raises:
            BatchStopped: `stop` was called.
        """

        def on_progress(finished: int) -> None:
            self._finished += finished
            if self._stopped:
                raise BatchStopped

        self._stopped = False
        try:
            return self.engine.generate_batch(batch, on_progress)
        finally:
            self._finished = 0

    def finished(self) -> int:
        """Number of finished completions of the current batch."""
        return self._finished

    def stop(self) -> None:
        """End `generate` soon."""
        self._stopped = True

    def submit(self, groups: Sequence[Group]) -> None:
        """Let the engine sample these groups, too."""
        self.engine.submit(groups)

    def advance(self, params: SamplingParams) -> tuple[list[Group], int]:
        """The groups that are complete, and the number of newly finished completions."""
        counts = list[int]()
        return list(self.engine.advance(params, counts.append)), sum(counts)

    def unfinished(self) -> list[Group]:
        return list(self.engine.unfinished())

    def sleep(self) -> None:
        self.engine.sleep()

    def close(self) -> None:
        self.engine.close()
        del self.engine


class TrainerActor(EngineActor):
    """One of the ranks over which policy, reference and critic are sharded. All get the same calls at the same time.

    It may have a rollout engine, which time-shares the GPU with them.
    """

    _models: TrainedModels
    _sync_check: SyncCheck
    _pass: Iterator[tuple[str, Tensor]] | None = None

    def __init__(self, config: TrainConfig, index: int, count: int, device: str) -> None:
        """Rank `index` of `count`."""
        if count > 1:
            # All ranks have to take part in the comparison with the engine: see `check_engine`.
            config = replace(config, vllm=replace(config.vllm, verify_weights=False))
        super().__init__(config, index, device)
        self._count = count

    def set_visible_gpus(self, gpus: Sequence[str]) -> None:
        """Before CUDA is used: the GPUs that this process and its children see, its own first."""
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)

    def join(self, address: Address) -> None:
        """Initialize the process group of all ranks."""
        store = self._connect(address, self._index, self._count)
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
            options = FsdpOptions.of(self._config, self._device)
            self._models = build_trained_models(self._config, options, checkpoint=checkpoint)
        self._sync_check = SyncCheck(self._models.language_model, options.dtype)
        return without_weights(self._models.language_model) if self._index == 0 else None

    def try_largest(self, micro_batch_tokens: int) -> None:
        """Run the largest micro-batch of at most so many tokens, as `TrainedModels.try_largest` does."""
        with catch_out_of_memory(""):
            self._models.try_largest(self._config, micro_batch_tokens)

    def gpu_memory(self) -> GpuMemoryUsage | None:
        return memory_usage(self._device)

    def do(self, role: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of `policy`, `critic` or `teacher`, or read a property; the first rank returns its result."""
        member = getattr(getattr(self._models, role), method)
        with catch_out_of_memory(""):
            result = member(*arguments) if callable(member) else member
        return result if self._index == 0 else None

    def free_memory(self) -> None:
        """Return cached GPU memory to the driver: the engine of another rank needs it."""
        torch.cuda.empty_cache()

    # ---- weights: all ranks iterate over them together ---------------------------------------------------------------

    def build_engine(self, version: int = 0) -> list[str]:
        """Start an engine with the current weights, in place of one that failed; returns messages for the user."""
        notes = list[str]()
        with suppress(Exception):  # there is none yet, or it failed
            self.close()
        with self._one_pass(), catch_out_of_memory("the rollout engine took over the weights"):
            self.engine = build_engine(
                self._config, self._models.language_model, notes.append, source=self._full_weights, number=self._index
            )
        self.engine.version = version
        return notes

    def load_weights(self, version: int = 0) -> None:
        with self._one_pass(), catch_out_of_memory("the rollout engine took over the weights"):
            self.engine.load_weights(version)

    def broadcast(self) -> Shapes:
        """Send `sent_weights` to the engines of the weight group; returns their names and shapes."""
        with self._one_pass(sent=True):
            group = self.weight_group
            assert group is not None, "an engine has died, and `leave_group` came first"
            self._pass = sent_weights(self._models.language_model.model)
            return group.send(self._pass)

    def help_with_weights(self, sent: bool = False) -> None:
        """Help to gather the weights that other ranks use, or that the first one sends."""
        with self._one_pass(sent=sent):
            pass

    def _full_weights(self) -> Iterator[tuple[str, Tensor]]:
        self._pass = named_weights(self._models.language_model.model)
        return self._pass

    @contextmanager
    def _one_pass(self, *, sent: bool = False) -> Iterator[None]:
        """One pass over the weights is completed in the context, whatever fails: the other ranks wait for this one."""
        self._pass = None
        try:
            yield
        finally:
            if self._pass is None:
                self._pass = (sent_weights if sent else named_weights)(self._models.language_model.model)
            for _ in self._pass:
                pass

    # ---- vllm.verify_weights -----------------------------------------------------------------------------------------

    def probe_engine(self) -> Completions:
        """Its engine's completions for `check_engine`."""
        return self.engine.generate_batch(self._sync_check.batch, lambda _: None)

    def check_engine(self, completions: Completions) -> None:
        """Together with all other ranks: whether the engine of these completions has the policy's weights."""
        self._sync_check.compare(completions)


class RolloutActor(EngineActor):
    """A dedicated rollout engine, with its own copy of the weights; with `rollout.max_async_level` in a thread."""

    def build(self, source: str | None) -> list[str]:
        """Load the starting model; weights or an adapter are sent later. Returns messages for the user."""
        self._device = choose_device(self._device.type)
        language_model, notes = load_model(source, torch.device("cpu")), list[str]()
        cast_weights(language_model.model, compute_dtype(self._config.model.dtype, self._device))
        language_model.model.to(self._device)  # type: ignore[arg-type]  # transformers' decorator hides the signature
        if self._adapts:
            Adapter(language_model.model, self._config.lora, seed=self._config.run.seed, start=source)
            for parameter in language_model.model.parameters():
                parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
        trained = {name for name, _ in sent_weights(language_model.model)}
        self._state = {name: value for name, value in language_model.model.state_dict().items() if name in trained}
        self.engine = build_engine(self._config, language_model, notes.append, number=self._index)
        if self._config.rollout.max_async_level and not self.engine.concurrent:
            self.engine = BackgroundEngine(self.engine, self._device)
        return notes

    @torch.no_grad()
    def receive(self, version: int = 0) -> Shapes:
        """Receive weights from the weight group, which have completed so many steps; returns names and shapes."""
        assert self.weight_group is not None
        shapes = [(name, tuple(tensor.shape)) for name, tensor in self._state.items()]
        # One that has a copy of its own samples on while they arrive.
        with self.engine.paused() if self.engine.shares_weights else nullcontext():
            for bucket in self.weight_group.receive(shapes):
                for name, tensor in bucket:
                    self._state[name].copy_(tensor)
            self.engine.load_weights(version)
        return shapes


class _WeightlessModel(nn.Module):
    """A model's configuration and sizes without its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.config = copy.deepcopy(model.config)
        self._sizes = [(parameter.shape, parameter.requires_grad) for parameter in model.parameters()]

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Parameters of the same shapes, on the meta device."""
        for shape, trained in self._sizes:
            yield nn.Parameter(torch.empty(shape, device="meta"), requires_grad=trained)


def without_weights(language_model: LanguageModel) -> LanguageModel:
    """The same without weights, for another process: tokenizer, sizes, and whether there is an adapter."""
    adapter = copy.copy(language_model.adapter)
    if adapter is not None:
        adapter.forget_model()
    return replace(language_model, model=cast(Any, _WeightlessModel(language_model.model)), adapter=adapter)
