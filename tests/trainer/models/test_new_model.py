import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tinyzero_trainer.config import NewModelConfig
from tinyzero_trainer.data.tokenization import encode_prompt
from tinyzero_trainer.models.loading import LanguageModel, ModelError
from tinyzero_trainer.models.new_model import build_tokenizer

TOKENIZER = build_tokenizer()
TEXTS = ["17 5 3=15\n17+5=22;<answer>17-5+3</answer>", "007 12345", "é 中文  x\n\n", "<think>so</think>", "-1.5e10"]


@given(st.integers(0, 999))
def test_numbers_up_to_999_are_one_token(number: int) -> None:
    assert len(TOKENIZER(f"{number}")["input_ids"]) == 1
    assert len(TOKENIZER(f"+{number}=")["input_ids"]) == 3


@pytest.mark.slow
@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Mn", "Mc"])))
def test_any_text_survives(text: str) -> None:
    # Qwen2's tokenizer normalises to NFC; everything else comes back as it was.
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"]) == unicodedata.normalize("NFC", text)


def test_a_saved_model_loads_as_it_stands(toy_model: LanguageModel, toy_model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(toy_model_path)
    assert [tokenizer(text)["input_ids"] for text in TEXTS] == [TOKENIZER(text)["input_ids"] for text in TEXTS]
    assert tokenizer.eos_token == "<|endoftext|>"
    model = AutoModelForCausalLM.from_pretrained(toy_model_path)
    assert model.config.model_type == "qwen2"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    for left, right in zip(model.parameters(), toy_model.model.parameters(), strict=True):
        assert left.equal(right)


def test_special_tokens_are_left_out_of_the_text_and_tags_are_kept() -> None:
    ids = TOKENIZER("<answer>5</answer><|endoftext|>")["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<answer>5</answer>"


def test_an_impossible_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_size=100 is not a multiple of head_size=32"):
        NewModelConfig(hidden_size=100)


def test_chat_messages_need_a_chat_template(toy_model: LanguageModel) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        encode_prompt(toy_model.tokenizer, [{"role": "user", "content": "1+1"}])
