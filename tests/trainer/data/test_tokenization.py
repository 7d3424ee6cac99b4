import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_trainer.data.tokenization import decode_texts, end_token
from tinyzero_trainer.models.new_model import build_tokenizer

TOKENIZER = build_tokenizer()
BYTES = [index for token, index in TOKENIZER.get_vocab().items() if len(token) == 1]

TOKENS = st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=12)
NO_TEXT = st.lists(st.sampled_from(BYTES), max_size=12)


@settings(max_examples=200)
@given(st.lists(TOKENS, max_size=6) | st.lists(NO_TEXT, max_size=6))
def test_texts_are_those_of_the_tokenizers_decode(rows: list[list[int]]) -> None:
    assert decode_texts(TOKENIZER, rows) == [TOKENIZER.decode(row, skip_special_tokens=True) for row in rows]


@pytest.mark.parametrize("kind", ["tidies spaces", "decodes in its own way"])
def test_a_tokenizer_that_does_more_decodes_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    if kind == "tidies spaces":
        tokenizer.clean_up_tokenization_spaces = True
    else:
        monkeypatch.setattr(type(tokenizer), "_decode", lambda self, *args, **options: "its own", raising=False)
    options_given = []
    monkeypatch.setattr(tokenizer, "batch_decode", lambda rows, **options: (options_given.append(options), ["text"])[1])
    assert decode_texts(tokenizer, [[1, 2]]) == ["text"]
    assert options_given == [{"skip_special_tokens": True}]


TURN = (
    "{% for m in messages %}BEGIN{{ m.role }}\n{{ m.content }}END\n{% endfor %}"
    "{% if add_generation_prompt %}BEGIN{% endif %}"
)


@pytest.mark.parametrize(
    ("begin", "end"),
    [("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|eot_id|>"), ("<start_of_turn>", "<end_of_turn>")],
    ids=["ChatML", "Llama 3", "Gemma"],
)
def test_after_chat_messages_a_turn_ends_with_the_templates_own_token(begin: str, end: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [begin, end]})
    tokenizer.chat_template = TURN.replace("BEGIN", begin).replace("END", end)
    turn, text = tokenizer.convert_tokens_to_ids(end), tokenizer.eos_token_id
    assert end_token(tokenizer, {turn, text}, chat=True) == turn
    assert end_token(tokenizer, {turn, text}, chat=False) == text
    assert end_token(tokenizer, {text}, chat=True) == text  # generation does not stop at the template's
    assert end_token(tokenizer, {turn}, chat=False) == turn  # nor at the tokenizer's
