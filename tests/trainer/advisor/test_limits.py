"""What planning refuses because `train` would: no context for it, too few GPUs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.advisor.planned import HALF_B
from tests.trainer.configurations import call
from tinyzero_trainer.advisor import target_gpu
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.models.hub import config_of, find_spec
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.models.spec import context_in
from tinyzero_trainer.rollout.generation import check_context

TINY = ("plan", "--gpu-memory", "24GB", "--model", "tiny")
VLLM = ("plan", "--model", HALF_B, "rollout.engine=vllm", "vllm.tensor_parallel=2")


def test_the_plan_refuses_what_exceeds_the_context_in_the_words_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *TINY, "rollout.max_completion_tokens=100000")
    assert (code, out) == (2, "")
    model: Any = SimpleNamespace(context=2048, name="tiny")
    prompt: Any = SimpleNamespace(token_ids=[0] * 256)
    with pytest.raises(ModelError) as caught:
        check_context(model, [prompt], 100_000)
    sentence, _, advice = str(caught.value).partition(";")
    assert sentence.replace("that tiny", "that the tiny model that comes with the trainer") in " ".join(err.split())
    assert advice.strip() in " ".join(err.split())
    assert "--prompt-tokens" not in err  # which would be no help


@pytest.mark.slow
def test_prompts_count_as_the_plan_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TINY, "rollout.max_completion_tokens=2000")
    assert "lower rollout.max_completion_tokens, or give --prompt-tokens" in " ".join(call(capsys, *words)[2].split())
    assert call(capsys, *words, "--prompt-tokens", "48")[0] == 0
    code, _, err = call(capsys, *words, "--prompt-tokens", "49")
    assert (code, "a prompt of 49 tokens" in err, "--prompt-tokens" in err) == (2, True, False)
    code, _, err = call(capsys, "plan", "--gpu", "H200", "rollout.max_completion_tokens=4096")  # no --model
    assert (code, "2048 tokens" in err) == (2, True)


GPT2 = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 77}
QWEN2 = {"model_type": "qwen2", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN2 |= {"num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 9}


@pytest.mark.parametrize(
    ("content", "context"),
    [
        (GPT2, 77),  # which has another name for it
        *((QWEN2 | {"max_position_embeddings": given}, None) for given in (None, 0, -1, True, "2048", 1.5)),
    ],
)
def test_a_models_context(content: dict[str, Any], context: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert find_spec(str(tmp_path)).context == context_in(config_of(str(tmp_path))) == context


@pytest.mark.parametrize("content", ["{", "[1]", '"a"', None])
def test_a_broken_config_has_no_context(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert context_in(config_of(str(tmp_path))) is None


def test_train_refuses_before_anything_is_loaded(
    toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinyzero_trainer.controller import loop

    started = []
    monkeypatch.setattr(loop, "train", lambda config, **_: started.append(config))
    words = ("train", "--task", toy_task, "--model", "tiny", "run.device=cpu", "--output", str(tmp_path / "run"))
    code, _, err = call(capsys, *words, "rollout.max_completion_tokens=2048")
    refused = "a prompt of 1 token and rollout.max_completion_tokens=2048 exceed the 2048 tokens that "
    assert (code, refused in " ".join(err.split()), err.count("\n")) == (2, True, 1)
    assert not started
    assert call(capsys, *words, "rollout.max_completion_tokens=2047")[0] == 0
    assert len(started) == 1


@pytest.mark.slow
def test_vllm_on_several_gpus_needs_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GpuInfo(0, "NVIDIA GeForce RTX 4090", (8, 9), 24 * GIB)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(target_gpu, "nvidia_driver", lambda: Driver(gpus=(gpu,)))
    for count, expected in ((1, 2), (2, 0)):
        monkeypatch.setattr(target_gpu, "count_gpus", lambda count=count: count)
        code, out, _ = call(capsys, *VLLM)
        assert code == expected
    assert "vLLM is on 2 GPUs" in out
    assert call(capsys, *VLLM, "--gpu", "RTX 4090", "--gpus", "2")[0] == 0
