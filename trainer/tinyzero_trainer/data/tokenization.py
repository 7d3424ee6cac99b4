"""Prompts from text to tokens, and completions from tokens to text.

A batch of completions is decoded in one call: a call for each would cost as much as scoring it.
"""

from collections.abc import Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tinyzero_trainer.models.loading import ModelError


def decode_texts(tokenizer: PreTrainedTokenizerBase, rows: Sequence[list[int]]) -> list[str]:
    """The text of each row, without special tokens, exactly as `tokenizer.batch_decode` gives it."""
    plain = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        # A subclass may do more, and so may a tokenizer that tidies spaces.
        and type(tokenizer)._decode is PreTrainedTokenizerFast._decode
        and not tokenizer.clean_up_tokenization_spaces
    )
    if plain:
        return tokenizer.backend_tokenizer.decode_batch(list(rows), skip_special_tokens=True)
    return tokenizer.batch_decode(list(rows), skip_special_tokens=True)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict[str, str]]) -> tuple[str, list[int]]:
    """A prompt as text and as tokens; chat messages go through the tokenizer's own chat template, if it has one."""
    if isinstance(prompt, str):
        return prompt, cast(list[int], tokenizer(prompt)["input_ids"])
    if not tokenizer.chat_template:
        raise ModelError(
            "the prompt has chat messages, but the model has no chat template; set data.prompt_template=base, or give "
            "a --model with one"
        )
    text = cast(str, tokenizer.apply_chat_template(cast(Any, prompt), tokenize=False, add_generation_prompt=True))
    # The template writes the special tokens itself.
    return text, cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])
