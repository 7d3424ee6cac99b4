"""What runs in the actors: a rank of those that learn, a rollout engine, a scorer.

Each is made at once and does what takes time in a method, so that its errors reach the caller as they are.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_trainer.config import RewardConfig, TrainConfig
from tinyzero_trainer.learners import Learners, build_learners
from tinyzero_trainer.models import LanguageModel, load_model
from tinyzero_trainer.records import Rollout
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.vllm.transfer import Weights, parcels
from tinyzero_trainer.sharding import Placement, compute_dtype
from tinyzero_trainer.tasks import scoring_pool
from tinyzero_trainer.weights import named_weights

PARCEL_BYTES = 2**26
"""Of weights that are on their way at a time."""

JOIN_SECONDS = 300
"""For all ranks to find each other; a model is loaded after it."""


class Worker:
    """What every actor can tell."""

    def host(self) -> str:
        """Its machine's address, as others of the cluster reach it."""
        import ray

        return str(ray.util.get_node_ip_address())


class LearnerRank(Worker):
    """One of the ranks over which policy, reference and critic are sharded. All are asked the same at the same time."""

    def __init__(self, config: TrainConfig, index: int, count: int, device: str) -> None:
        """
        Args:
            config: the run's.
            index: which of the ranks it is.
            count: how many there are.
            device: of this one.
        """
        self._config, self._index, self._count, self._device = config, index, count, torch.device(device)
        self._store: dist.TCPStore | None = None
        self._learners: Learners | None = None

    def open_store(self, host: str) -> int:
        """On the first rank: where the others find it; the port."""
        self._store = dist.TCPStore(host, 0, self._count, is_master=True, wait_for_workers=False)
        return self._store.port

    def join(self, host: str, port: int) -> None:
        """Meet the other ranks."""
        wait = timedelta(seconds=JOIN_SECONDS)
        store = self._store or dist.TCPStore(host, port, self._count, is_master=False, timeout=wait)
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self._index, world_size=self._count)

    def build(self, checkpoint: Path | None) -> LanguageModel | None:
        """Load and shard the models; of the first rank, what it takes to speak of the policy's without its weights."""
        placement = Placement.of(self._config, self._device)
        self._learners = build_learners(self._config, placement, checkpoint=checkpoint)
        return outline(self._learners.language_model) if self._index == 0 else None

    def count_of_critic(self) -> int:
        """Parameters of the critic."""
        assert self._learners is not None
        assert self._learners.critic is not None
        return self._learners.critic.parameters

    def do(self, role: str, method: str, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call a method of `policy` or `critic`; its result is the first rank's to return."""
        found = getattr(getattr(self._learners, role), method)(*given[0], **given[1])
        return found if self._index == 0 else None

    def weights(self) -> Iterator[Weights]:
        """The policy's weights, put together one after another by all ranks; here is what to do with them."""
        dtype = compute_dtype(self._config.model.dtype, self._device)
        for parcel in parcels(self._named_weights(), dtype, PARCEL_BYTES):
            yield [(name, tensor.cpu()) for name, tensor in parcel]

    def help_with_weights(self) -> None:
        """What the other ranks do meanwhile."""
        for _ in self._named_weights():
            pass

    def _named_weights(self) -> Iterator[tuple[str, Tensor]]:
        assert self._learners is not None
        return named_weights(self._learners.language_model.model)


class EngineWorker(Worker):
    """A rollout engine with weights of its own. `finished` may be asked while `generate` is at work."""

    def __init__(self, config: TrainConfig, device: str) -> None:
        self._config, self._device = config, torch.device(device)
        self._engine: RolloutEngine | None = None
        self._finished = 0

    def build(self, source: str | None) -> list[str]:
        """Load a model of the policy's architecture; its weights are sent before anything is generated.

        Returns:
            What the user should know.
        """
        language_model, notes = load_model(source, self._device), list[str]()
        self._state = language_model.model.state_dict()
        self._engine = build_engine(self._config, language_model, notes.append)
        return notes

    @torch.no_grad()
    def take(self, parcel: Weights) -> None:
        """Some of the policy's weights."""
        for name, tensor in parcel:
            self._state[name].copy_(tensor)

    def load_weights(self) -> None:
        """All weights have been taken."""
        self._do.load_weights()

    def generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, seed: int
    ) -> list[list[Rollout]]:
        """See `RolloutEngine`."""
        self._finished = 0
        return self._do.generate(prompts, samples, params, seed=seed, on_progress=self._count)

    def finished(self) -> int:
        """Completions of the present batch so far."""
        return self._finished

    def sleep(self) -> None:
        """See `RolloutEngine`."""
        self._do.sleep()

    def close(self) -> None:
        """See `RolloutEngine`."""
        self._do.close()

    @property
    def _do(self) -> RolloutEngine:
        assert self._engine is not None
        return self._engine

    def _count(self, finished: int) -> None:
        self._finished += finished


class Scorer(Worker):
    """A task's scoring processes, on the machine that this actor is on."""

    def start(self, config: RewardConfig, task: Task) -> None:
        """Begin; the task was found by its name when it got here, and would not have been in another version."""
        self._pool = scoring_pool(config, task)

    def score(self, completions: list[Completion], ground_truths: list[Json]) -> tuple[list[Score], str | None]:
        """The verdicts in the order given, and the pool's first error so far."""
        return self._pool.score(completions, ground_truths), self._pool.first_error

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


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
