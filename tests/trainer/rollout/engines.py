"""The two engines of `rollout.engine=torch` around random models."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import torch

from tests.trainer.rollout import reference_ops
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams, TorchEngine
from tinyzero_trainer.rollout.engine import EMPTY, Group
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.torch.scheduler import Scheduler
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.types import Generation

ENDS = range(0, 97, 11)


def with_ends(model: Any, ends: Collection[int] = ENDS) -> LanguageModel:
    tokenizer: Any = None
    return LanguageModel("random", model, tokenizer, frozenset(ends), pad_id=0)


def graph(model: Any, ends: Collection[int] = ENDS, **changes: Any) -> GraphEngine:
    kernels = None if model.device.type == "cuda" else reference_ops
    arguments: dict[str, Any] = {"dtype": torch.float32, "device": model.device, "kernels": kernels} | changes
    return GraphEngine(with_ends(model, ends), lambda: named_weights(model), **arguments)


def plain(model: Any, ends: Collection[int] = ENDS, **changes: Any) -> TorchEngine:
    return TorchEngine(with_ends(model, ends), **changes)


def asked(prompts: Sequence[list[int]], samples: int, max_tokens: int, *, seed: int = 0, start: int = 0) -> list[Group]:
    """Groups of which nothing is sampled yet, with the random numbers that `generate` would give them."""
    nothing = (EMPTY,) * samples
    return [Group(start + i, prompt, nothing, max_tokens, seed, start + i) for i, prompt in enumerate(prompts)]


def reserve(engine: GraphEngine, prompts: Sequence[list[int]], samples: int, params: SamplingParams) -> None:
    """Let the engine allocate its buffers."""
    engine._params, scheduler = params, Scheduler(engine._read)
    scheduler.add(asked(prompts, samples, params.max_tokens))
    engine._reserve(scheduler)


def flat(groups: list[list[Generation]]) -> list[Generation]:
    return list(chain(*groups))
