"""The engine `vllm` on a GPU: its weights through CUDA IPC, and its sleep. Needs a CUDA device and vLLM."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainer.configurations import changed
from tinyzero_trainer.executors.local.build import build_local_engine
from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.vllm.engine import VllmEngine

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

PROMPTS = [[20 + place, 5, 6, 7] for place in range(16)]
FREED = 2e9
"""Bytes that sleeping frees, of the 4 GB that it has."""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(
        **shape,
        vocab_size=len(tokenizer),
        intermediate_size=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    return from_parts("small", Qwen2ForCausalLM(config).cuda(), tokenizer)


@pytest.fixture(scope="module")
def engine(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartingEngine]:
    values = {
        "run": {"task": "countdown", "device": "cuda", "output": str(tmp_path_factory.mktemp("run"))},
        "data": {"max_prompt_tokens": 64},
        "rollout": {"engine": "vllm", "max_completion_tokens": 512, "max_num_seqs": 64},
        "vllm": {"gpu_memory_gb": 4.0, "sleep_mode": True, "verify_weights": True, "cuda_graphs": False},
    }
    engine = build_local_engine(changed(values, {}), model, lambda _: None)
    assert isinstance(engine, RestartingEngine)
    yield engine
    engine.close()


def test_new_weights_arrive_each_time(engine: RestartingEngine, model: LanguageModel) -> None:
    params = SamplingParams(8, ignore_eos=True)  # sampled: the greedy token of random weights hardly changes
    seen = []
    for _ in range(3):
        with torch.no_grad():
            weight = model.model.get_input_embeddings().weight
            weight.add_(weight.std() * torch.randn_like(weight))
        engine.load_weights()  # and are compared with the policy's
        seen.append(str(engine.generate(PROMPTS, 1, params, seed=0)))
    assert len(set(seen)) == 3


def test_asleep_it_frees_its_memory_and_awake_it_generates_the_same(engine: RestartingEngine) -> None:
    params = SamplingParams(16, ignore_eos=True)
    before = engine.generate(PROMPTS, 2, params, seed=1)
    awake = torch.cuda.mem_get_info()[0]
    engine.sleep()
    assert torch.cuda.mem_get_info()[0] - awake > FREED
    after = engine.generate(PROMPTS, 2, params, seed=1)
    pairs = [(a, b) for first, second in zip(before, after, strict=True) for a, b in zip(first, second, strict=True)]
    assert sum(a.token_ids == b.token_ids for a, b in pairs) > len(pairs) // 2  # except for rounding


def test_a_killed_engine_is_restarted(engine: RestartingEngine) -> None:
    before = engine.worker.worker
    assert isinstance(before, VllmEngine)
    (process,) = before._client._processes  # type: ignore[union-attr]
    threading.Timer(0.3, os.kill, (process.pid, 9)).start()
    groups = engine.generate(PROMPTS, 4, SamplingParams(500, ignore_eos=True), seed=1)
    assert {len(rollout.token_ids) for group in groups for rollout in group} == {500}
    assert engine.worker.worker is not before
    assert Path(f"/proc/{process.pid}/fd").exists() is False
