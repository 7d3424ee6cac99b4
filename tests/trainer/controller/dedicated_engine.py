"""A run in one process whose engine has its own weights, as an actor has."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from tinyzero_trainer.config import RayConfig, TrainConfig
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.types import Generation


class DedicatedEngine:
    """A rollout engine that has the policy's weights as of the last `load_weights`."""

    def __init__(self, config: TrainConfig, policy: LanguageModel) -> None:
        self._policy, copied = policy, load_model(config.model.path, torch.device("cpu"))
        self._state, self._engine = copied.model.state_dict(), build_engine(config, copied)
        self._generating = threading.Lock()
        self.load_weights()

    @torch.no_grad()
    def load_weights(self) -> None:
        assert not self._generating.locked(), "weights were sent to an engine that generates"
        for name, tensor in named_weights(self._policy.model):
            self._state[name].copy_(tensor)
        self._engine.load_weights()

    def sleep(self) -> None:
        self._engine.sleep()

    def close(self) -> None:
        self._engine.close()

    def generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, *, seed: int, **options: Any
    ) -> list[list[Generation]]:
        with self._generating:
            return self._engine.generate(prompts, samples, params, seed=seed, **options)


@contextmanager
def dedicated_workers(config: TrainConfig, **given: Any) -> Iterator[Workers]:
    """The workers of a run on Ray, without it."""
    here = replace(config.run, executor="local")
    config = replace(config, run=here, ray=RayConfig(), rollout=replace(config.rollout, max_async_level=0))
    with build_workers(config, **given) as workers:
        engine: RolloutEngine = DedicatedEngine(config, workers.language_model)
        yield replace(workers, engine=engine)
