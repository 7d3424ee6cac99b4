"""Prompts from text to tokens, and completions from tokens to text.

A batch of completions is decoded in one call, by several threads: a call for each would cost as much as scoring it.
"""

from collections.abc import Collection, Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tinyzero_sdk.hookspecs import Message
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.models.loading import ModelError

THINK = "<think>"
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys under which messages have their reasoning apart."""


def decode_texts(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row, without special tokens, exactly as `tokenizer.batch_decode` gives it."""
    if (
        not isinstance(tokenizer, PreTrainedTokenizerFast)
        # A subclass may do more, and so may a tokenizer that tidies spaces.
        or type(tokenizer)._decode is not PreTrainedTokenizerFast._decode
        or tokenizer.clean_up_tokenization_spaces
    ):
        return tokenizer.batch_decode([list(row) for row in rows], skip_special_tokens=True)
    return tokenizer.backend_tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=True)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | list[Message]) -> tuple[str, list[int]]:
    """A prompt as text and as tokens; chat messages go through the tokenizer's own chat template.

    A text gets the BOS of tokenizers that add one, unless it begins with it; a template writes its own, or none.
    """
    is_chat = not isinstance(prompt, str)
    if is_chat and not tokenizer.chat_template:
        raise ModelError(
            "the prompt has chat messages, but the model has no chat template; set data.prompt_template=base, or give "
            "a --model with one"
        )
    text = prompt if isinstance(prompt, str) else _in_template(tokenizer, prompt, add_generation_prompt=True)
    try:
        ids = cast(list[int], tokenizer(text, add_special_tokens=not is_chat)["input_ids"])
    except (TypeError, ValueError) as error:  # of impossible settings in its tokenizer_config.json, or of surrogates
        raise ModelError(f"the model's tokenizer cannot read the prompt {text[:80]!r} ({first_line(error)})") from error
    if not is_chat and len(ids) > 1:
        ids = ids[ids[:2] == [tokenizer.bos_token_id] * 2 :]
        if ids[-1] == tokenizer.eos_token_id and not text.endswith(str(tokenizer.eos_token)):  # of `add_eos_token`
            ids = ids[:-1]
    return text, ids


def turn_text(tokenizer: PreTrainedTokenizerBase, prompt: str | list[Message], turn: Message) -> str:
    """What the assistant says in a turn: its reasoning as the chat template writes it, else between <think> tags."""
    reasoning = next(filter(None, map(turn.get, REASONING)), "")
    if not reasoning:
        return turn["content"]
    if not isinstance(prompt, str) and tokenizer.chat_template:
        before = _in_template(tokenizer, prompt, add_generation_prompt=True)
        whole = _in_template(tokenizer, [*prompt, turn], add_generation_prompt=False)
        thought = whole.removeprefix(before).rpartition(turn["content"])[0]
        if whole.startswith(before) and reasoning.strip() in thought:
            return thought + turn["content"]
    return f"{THINK}\n{reasoning}\n</think>\n\n{turn['content']}"


def continuing(prompt: str, completion: str) -> str:
    """A completion without its `<think>` where the prompt ends with one, as those of DeepSeek-R1's template do."""
    opened, said = prompt.rstrip(), completion.lstrip()
    if not (opened.endswith(THINK) and said.startswith(THINK)):
        return completion
    return said.removeprefix(THINK).removeprefix(prompt[len(opened) :])


def _in_template(tokenizer: PreTrainedTokenizerBase, messages: list[Message], **options: Any) -> str:
    try:
        return cast(str, tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # the border to a template, which is the model's code
        raise ModelError(
            f"the model's chat template fails ({first_line(error)}); repair it, or set data.prompt_template=base"
        ) from error


def end_token(tokenizer: PreTrainedTokenizerBase, eos_ids: Collection[int], *, chat: bool) -> int:
    """The token that ends a completion: after chat messages the one with which the chat template ends a turn.

    Of `eos_ids` that end generation; a base model's tokenizer may name another one than its chat template writes.
    """
    if chat and tokenizer.chat_template:
        turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        text = _in_template(tokenizer, turn, add_generation_prompt=False)
        tail = cast(list[int], tokenizer(text.rpartition("!")[2], add_special_tokens=False)["input_ids"])
        if tail and tail[0] in eos_ids:
            return tail[0]
    return tokenizer.eos_token_id if tokenizer.eos_token_id in eos_ids else min(eos_ids)
