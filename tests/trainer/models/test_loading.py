import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.faults import Faults
from tests.trainer.configurations import call
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.models.loading import (
    LanguageModel,
    ModelError,
    from_parts,
    load_model,
    require_finite,
    save_model,
)

CPU = torch.device("cpu")


def test_every_end_token_is_known(toy_model: LanguageModel) -> None:
    toy_model.model.generation_config.eos_token_id = [7, 8]
    parts = from_parts("toy", toy_model.model, toy_model.tokenizer)
    assert parts.eos_ids == {7, 8, toy_model.tokenizer.eos_token_id}


def test_a_model_without_end_tokens_is_refused(toy_model: LanguageModel) -> None:
    toy_model.model.generation_config.eos_token_id = None
    toy_model.tokenizer.eos_token = None
    with pytest.raises(ModelError, match="names no end token"):
        from_parts("toy", toy_model.model, toy_model.tokenizer)


def test_what_cannot_be_trained_is_named_before_weights_are_read(tmp_path: Path) -> None:
    """Others: `test_each_fault_is_one_line` in test_spec.py."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(TinyZeroError, match=r"'qwen2_5_vl' is multimodal, .*; give a text model"):
        load_model(str(tmp_path), CPU)


def add(model: LanguageModel, template: str = "", **words: Any) -> None:
    """A token that the embeddings have no row for."""
    model.tokenizer.add_tokens(["<|extra|>"], **words)
    model.tokenizer.chat_template = template or None


CONTRADICTIONS: dict[str, tuple[Callable[[LanguageModel], object], str]] = {
    "a word": (add, "has 1,252 embeddings, and its tokenizer '<|extra|>' as number 1,252"),
    "a special token of its template": (lambda m: add(m, "{{ '<|extra|>' }}", special_tokens=True), "'<|extra|>'"),
    "a special token that nothing writes": (lambda m: add(m, special_tokens=True), ""),  # Gemma 3 has one of images
    "a BOS": (lambda m: m.tokenizer.add_special_tokens({"bos_token": "<s>"}), "its tokenizer '<s>'"),
    "a padding token": (lambda m: m.tokenizer.add_special_tokens({"pad_token": "[PAD]"}), ""),
    "an end": (lambda m: setattr(m.model.generation_config, "eos_token_id", [3, 9999]), "and the end token 9,999"),
    "one below 0": (lambda m: setattr(m.model.generation_config, "eos_token_id", -1), "and the end token -1"),
}


@pytest.mark.parametrize("beyond", CONTRADICTIONS)
def test_tokens_without_an_embedding_are_refused_where_they_can_come_up(beyond: str, toy_model: LanguageModel) -> None:
    change, message = CONTRADICTIONS[beyond]
    change(toy_model)
    with pytest.raises(ModelError, match=re.escape(message)) if message else nullcontext():
        assert from_parts("toy", toy_model.model, toy_model.tokenizer).pad_id < 1252


@settings(max_examples=40)
@given(st.data(), st.sampled_from([torch.nan, torch.inf, -torch.inf, 3e38]))
def test_a_weight_that_is_no_number_is_found_wherever_it_is(data: st.DataObject, value: float) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.LayerNorm(4)).to(dtype)
    name, parameter = data.draw(st.sampled_from(list(model.named_parameters())))
    place = data.draw(st.integers(0, parameter.numel() - 1))
    with torch.no_grad():
        parameter.view(-1)[place] = parameter.view(-1)[place - 1] = value  # whose sum may be infinite, too
    refused = pytest.raises(ModelError, match=rf"toy has NaN or infinite values in {name};")
    with nullcontext() if parameter.isfinite().all() else refused:
        require_finite("toy", model)


@pytest.mark.slow
@pytest.mark.fault(
    "model",
    "A model contradicts itself: weights that are NaN or infinite, tokens or an end token without an embedding",
    made="a weight is set to NaN, and the model given to `train` (also as the teacher), `sft` and `eval`",
    seen="error: …/model has NaN or infinite values in model.embed_tokens.weight; give an intact model",
    kept="everything: nothing has run",
    code=2,
)
@pytest.mark.parametrize("command", ["train --model", "train model.teacher=", "sft --model", "eval --model"])
def test_a_model_that_contradicts_itself_is_refused_before_anything_runs(
    fault_row: Faults, command: str, toy_model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        next(toy_model.model.parameters())[7, 7] = torch.nan
    save_model(tmp_path / "model", toy_model)
    model = f"{command} {tmp_path}/model".replace("= ", "=")
    words = f"{model} --task multiply --output {tmp_path}/out.jsonl rollout.max_completion_tokens=8".split()
    if "model.teacher" in command:
        words += ["algorithm.advantage_estimator=on_policy_distillation", "algorithm.policy_loss=reinforce"]
    code, _, error = call(capsys, *words)
    fault_row.check(error.splitlines()[-1], code)
    assert not (tmp_path / "out.jsonl").exists()
