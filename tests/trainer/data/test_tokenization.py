import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.sft.tiny_model import build_tokenizer

TOKENIZER = build_tokenizer()


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=12), max_size=6))
def test_it_is_what_the_tokenizer_says_of_each(rows: list[list[int]]) -> None:
    assert decode_texts(TOKENIZER, rows) == [TOKENIZER.decode(row, skip_special_tokens=True) for row in rows]


@pytest.mark.parametrize("kind", ["tidies spaces", "decodes in its own way"])
def test_a_tokenizer_that_does_more_is_asked_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    if kind == "tidies spaces":
        tokenizer.clean_up_tokenization_spaces = True
    else:
        monkeypatch.setattr(type(tokenizer), "_decode", lambda self, *args, **options: "its own", raising=False)
    asked = []
    monkeypatch.setattr(tokenizer, "batch_decode", lambda rows, **options: (asked.append(options), ["said"])[1])
    assert decode_texts(tokenizer, [[1, 2]]) == ["said"]
    assert asked == [{"skip_special_tokens": True}]
