"""Which engine a run gets, with which settings."""

from typing import Any

import pytest
import torch

from tests.trainer.configurations import changed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import build
from tinyzero_trainer.rollout.build import build_engine, require_architecture

BASE = {"run": {"task": "countdown", "device": "cuda"}}


def test_a_run_gets_the_graph_engine_with_its_settings_or_a_line_that_says_why_not(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()
    monkeypatch.setattr(build, "device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(build, "_keeps_memory", lambda *_: True)
    monkeypatch.setattr(build, "GraphEngine", lambda *_, **given: asked.update(given))
    in_fp8 = {"rollout__engine": "torch", "rollout__quantization": "fp8", "model__dtype": "bfloat16"}
    for changes, products, cache in ((in_fp8, True, False), ({"rollout__kv_cache_dtype": "fp8"}, False, True)):
        build_engine(changed(BASE, {"rollout__engine": "torch", **changes}), toy_model)
        assert (asked["fp8_products"], asked["fp8_cache"]) == (products, cache)
    exact = changed(BASE, in_fp8 | {"model__dtype": "float32"})
    require_architecture(changed(BASE, in_fp8), None)
    # Before the built-in model is loaded, and after one is.
    for build_one in (lambda: require_architecture(exact, None), lambda: build_engine(exact, toy_model)):
        with pytest.raises(TinyZeroError, match=r"=fp8 does not fit this model: it computes in float32, .*; leave it"):
            build_one()
    monkeypatch.setattr(build.FusedDecoder, "fits", lambda _: False)
    both = in_fp8 | {"rollout__kv_cache_dtype": "fp8"}
    with pytest.raises(TinyZeroError, match=r"kv_cache_dtype=fp8 and rollout\.quantization=fp8 .* needs CUDA graphs"):
        build_engine(changed(BASE, both), toy_model)
    with pytest.raises(TinyZeroError, match=r"leave it out, or use rollout\.engine=vllm$"):
        build_engine(changed(BASE, {"rollout__engine": "torch", "rollout__kv_cache_dtype": "fp8"}), toy_model)
