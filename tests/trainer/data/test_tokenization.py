import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_trainer.data.tokenization import decode_texts
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
