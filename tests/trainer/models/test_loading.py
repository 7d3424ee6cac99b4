import json
import pickle
from pathlib import Path

import pytest
import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.models.loading import LanguageModel, ModelError, from_parts, load_model

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


def test_pickled_weights_are_never_loaded(toy_model: LanguageModel, toy_model_path: Path) -> None:
    (toy_model_path / "model.safetensors").unlink()
    torch.save(toy_model.model.state_dict(), toy_model_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load the model"):
        load_model(str(toy_model_path), CPU)


def test_what_cannot_be_trained_is_named_before_weights_are_read(tmp_path: Path) -> None:
    """Others: `test_each_fault_is_one_line` in test_spec.py."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(TinyZeroError, match=r"'qwen2_5_vl' is multimodal, .*; give a text model"):
        load_model(str(tmp_path), CPU)


def test_a_directory_that_holds_no_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(pickle.dumps("no JSON"))
    with pytest.raises(ModelError, match="cannot load the model") as refused:
        load_model(str(tmp_path), CPU)
    assert "\n" not in str(refused.value)
