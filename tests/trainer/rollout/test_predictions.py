"""What a rollout engine takes of a GPU: what its code reserves, and what vLLM is given."""

from typing import Any

import pytest
import torch

from tests.trainer.advisor.planned import GRPO, config_of, shape_like
from tests.trainer.rollout import reference_ops
from tests.trainer.rollout.engines import reserve
from tinyzero_trainer.advisor.memory import predictions_of
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.weight_source import named_weights


def engine_for(
    toy: LanguageModel, dtype: torch.dtype, params: SamplingParams, prompts: int, samples: int, **fp8: bool
) -> GraphEngine:
    """The graph engine with buffers for so many prompts of 40 tokens."""
    options: dict[str, Any] = {"dtype": dtype, "device": torch.device("cpu"), "kernels": reference_ops}
    engine = GraphEngine(toy, lambda: named_weights(toy.model), **options, **fp8)
    reserve(engine, [[1] * 40] * prompts, samples, params)
    return engine


@pytest.mark.parametrize(
    ("dtype", "fp8"),
    [(torch.bfloat16, ()), (torch.float32, ()), (torch.bfloat16, ("kv_cache_dtype", "quantization"))],
    ids=str,
)
@pytest.mark.parametrize("new", [24, 25])
def test_the_torch_engine_has_the_cache_and_the_weights_that_are_planned(
    dtype: torch.dtype, fp8: tuple[str, ...], new: int, toy_model: LanguageModel
) -> None:
    """A prompt of 40 tokens and 24 more fill a grid of 64 slots; one more takes the next."""
    model = toy_model.model
    config = config_of(
        f"model.dtype={str(dtype).removeprefix('torch.')}",
        f"rollout.max_completion_tokens={new}",
        "eval.num_problems=8",
        *(f"rollout.{key}=fp8" for key in fp8),
        *GRPO,
    )
    planned = predictions_of(config).memory(shape_like(model), config, workload_of(config, 40)).awake
    engine = engine_for(toy_model, dtype, SamplingParams(new), 32, 8, fp8_cache=bool(fp8), fp8_products=bool(fp8))
    cache = [tensor for layer in engine._cache.layers for tensor in layer[:2]]  # without fp8's few scales
    assert planned["KV cache"] == sum(tensor.nbytes for tensor in cache)
    assert cache[0].shape[2] == (64 if new == 24 else 128)
    weights = engine._weights.values()
    own = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in weights}
    # A parameter counts with one byte more in fp8, where embedding and attention's output have none.
    more = sum(engine._weights[name].numel() for name in ("embed", "0.out", "1.out")) if fp8 else 0
    assert planned["weights"] == pytest.approx(sum(own.values()) + more, rel=0.01)


@pytest.mark.parametrize(
    ("words", "params"),
    [
        (("eval.greedy=false", "eval.num_problems=256"), SamplingParams(24)),
        (("rollout.top_p=0.9", "eval.num_problems=256"), SamplingParams(24, top_p=0.9)),
        (("rollout.top_k=20", "rollout.temperature=0.7", "eval.num_problems=8"), SamplingParams(24, 0.7, top_k=20)),
        (("eval.num_problems=256",), SamplingParams(24, 0.0)),
    ],
    ids=["kernel", "top-p", "top-k", "greedy evaluation"],
)
def test_a_step_of_the_torch_engine_takes_what_it_reckons_with(
    words: tuple[str, ...], params: SamplingParams, toy_model: LanguageModel
) -> None:
    config = config_of(*words, "rollout.max_completion_tokens=24", *GRPO)  # 256 completions
    spec, engine = shape_like(toy_model.model), engine_for(toy_model, torch.bfloat16, params, 32, 8)
    planned = predictions_of(config).memory(spec, config, workload_of(config, 40)).awake["decoding"]
    assert planned == 256 * (engine._sequence_bytes(64, 24) - engine._model.cache_bytes(64) - 12 * 24)
