"""Which engine a run gets, with which settings."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.trainer.configurations import changed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.models.hub import architecture
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.build import build_engine, require_engine
from tinyzero_trainer.rollout.torch import build

BASE = {"run": {"task": "countdown", "device": "cuda"}}


def test_a_run_gets_the_graph_engine_with_its_settings_or_a_line_that_says_why_not(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict[str, Any]()
    for module in ("rollout.build", "rollout.torch.build"):
        monkeypatch.setattr(f"tinyzero_trainer.{module}.device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(build, "GraphEngine", lambda *_, **values: options.update(values))
    in_fp8 = {"rollout__engine": "torch", "rollout__quantization": "fp8", "model__dtype": "bfloat16"}
    for changes, products, cache in ((in_fp8, True, False), ({"rollout__kv_cache_dtype": "fp8"}, False, True)):
        build_engine(changed(BASE, {"rollout__engine": "torch", **changes}), toy_model)
        assert (options["fp8_products"], options["fp8_cache"]) == (products, cache)
    with monkeypatch.context() as patch:
        patch.setattr(build.Fp8Weights, "misfit", lambda sizes: f"a {sizes.model_type}")
        with pytest.raises(TinyZeroError, match=r"=fp8 does not fit this model: a \w+; leave it"):
            require_engine(changed(BASE, in_fp8), torch.device("cuda"), partial(architecture, None))
    monkeypatch.setattr(build.FusedDecoder, "fits", lambda _: False)
    both = in_fp8 | {"rollout__kv_cache_dtype": "fp8"}
    with pytest.raises(TinyZeroError, match=r"kv_cache_dtype=fp8 and rollout\.quantization=fp8 needs CUDA graphs"):
        build_engine(changed(BASE, both), toy_model)


@pytest.mark.parametrize(
    ("engine", "key"), [("torch", "kv_cache_dtype"), ("vllm", "kv_cache_dtype"), ("torch", "quantization")]
)
def test_fp8_is_refused_on_the_cpu(engine: str, key: str) -> None:
    config = changed(BASE, {"rollout__engine": engine, f"rollout__{key}": "fp8"})
    with pytest.raises(TinyZeroError, match=rf"rollout\.{key}=fp8 has no effect on the CPU; leave it out"):
        require_engine(config, torch.device("cpu"), None)


def test_products_in_fp8_of_a_model_in_float32_are_refused() -> None:
    with pytest.raises(TinyZeroError, match=r"does not go with model\.dtype=float32; leave one of them out"):
        changed(BASE, {"model__dtype": "float32", "rollout__quantization": "fp8"})
    changed(BASE, {"model__dtype": "float32", "rollout__kv_cache_dtype": "fp8"})


@pytest.mark.parametrize("key", ["kv_cache_dtype", "quantization"])
def test_fp8_is_refused_on_a_gpu_without_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = changed(BASE, {"rollout__engine": "torch", f"rollout__{key}": "fp8"})
    for capability in [(9, 0), (8, 9), (8, 0)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        if capability >= (8, 9):
            require_engine(config, torch.device("cuda"), None)
            continue
        with pytest.raises(TinyZeroError, match=r"compute capability 8\.9 or more .* this one has 8\.0;"):
            require_engine(config, torch.device("cuda"), None)
