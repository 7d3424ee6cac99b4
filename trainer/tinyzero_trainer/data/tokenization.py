"""Completions from tokens to text, all of a batch in one call: a call a completion costs as much as scoring it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


def decode_texts(tokenizer: PreTrainedTokenizerBase, rows: Sequence[list[int]]) -> list[str]:
    """The text of each row, without special tokens, exactly as `tokenizer.batch_decode` gives it."""
    plain = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        # A tokenizer of its own kind may do more, and so may one that tidies spaces.
        and type(tokenizer)._decode is PreTrainedTokenizerFast._decode
        and not tokenizer.clean_up_tokenization_spaces
    )
    if plain:
        return tokenizer.backend_tokenizer.decode_batch(list(rows), skip_special_tokens=True)
    return tokenizer.batch_decode(list(rows), skip_special_tokens=True)
