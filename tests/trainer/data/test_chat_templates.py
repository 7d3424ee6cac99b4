"""Chat templates and tokenizers of the shapes in use: one BOS, one opening <think>, all reasoning."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tinyzero_trainer.data.tokenization import encode_prompt, end_token, turn_text
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.sft.examples import Encoder

B = "{% if loop.first %}{{ bos_token }}{% endif %}"
TEMPLATES = {  # a message, and what begins an answer
    "Qwen3": (  # without reasoning ChatML, as of Qwen2.5 and SmolLM2
        "<|im_start|>{{ m.role }}\n{% if m.reasoning_content is string and loop.last %}<think>\n"
        "{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n",
        "<|im_start|>assistant\n",
    ),
    "Llama 3": (B + "<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>", "<|start|>assistant<|end|>\n\n"),
    "Gemma": (
        B + "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end>\n",
        "<turn>model\n",
    ),
    "Mistral": (
        B + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}",
        "",
    ),
    "Magistral": (
        B + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{% if m.reasoning_content %}[THINK]"
        "{{ m.reasoning_content }}[/THINK]{% endif %}{{ m.content }}{{ eos_token }}{% endif %}",
        "",
    ),
    "DeepSeek-R1": (
        B + "{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>"
        "{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}",
        "<｜Assistant｜><think>\n",
    ),
    "none": ("", ""),
}
BOS, EOS = "<s>", "<|endoftext|>"


@cache
def tokenizer_of(template: str, adds: str) -> PreTrainedTokenizerFast:
    """A tokenizer that adds these special tokens to a text."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": BOS})
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (BOS, EOS)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=adds, special_tokens=ids)
    message, opening = TEMPLATES[template]
    if message:
        loop = f"{{% for m in messages %}}{message}{{% endfor %}}"
        tokenizer.chat_template = f"{loop}{{% if add_generation_prompt %}}{opening}{{% endif %}}"
    return tokenizer


KINDS = st.tuples(st.sampled_from(sorted(TEMPLATES)), st.sampled_from(["$A", "<s> $A", "<s> $A <|endoftext|>"]))
TEXT = st.text("ab1 \n<é", min_size=1, max_size=8).filter(str.strip)
TALK = st.lists(st.tuples(TEXT, TEXT), max_size=2)


def messages_of(earlier: list[tuple[str, str]], last: str) -> list[dict[str, str]]:
    turns = [(role, text) for pair in earlier for role, text in zip(("user", "assistant"), pair, strict=True)]
    return [{"role": role, "content": text} for role, text in (*turns, ("user", last))]


@pytest.mark.parametrize(
    ("template", "end"), [("Qwen3", "<|im_end|>"), ("Llama 3", "<|eot|>"), ("Gemma", "<end>"), ("Mistral", "</s>")]
)
def test_after_chat_messages_a_turn_ends_with_the_templates_own_token(template: str, end: str) -> None:
    tokenizer = tokenizer_of.__wrapped__(template, "$A")
    tokenizer.add_special_tokens({"additional_special_tokens": [end]})
    turn, text = tokenizer.convert_tokens_to_ids(end), tokenizer.eos_token_id
    assert [end_token(tokenizer, {turn, text}, chat=chat) for chat in (True, False)] == [turn, text]
    assert end_token(tokenizer, {text}, chat=True) == text  # generation does not stop at the template's
    assert end_token(tokenizer, {turn}, chat=False) == turn  # nor at the tokenizer's


@pytest.mark.slow
@settings(max_examples=150)
@given(KINDS, TALK, TEXT, st.booleans())
def test_a_prompt_begins_with_one_bos_and_ends_open(kind: Any, earlier: Any, last: str, is_text: bool) -> None:
    """A text has that of the tokenizer, or its own if a template was applied to it already."""
    tokenizer, prompt = tokenizer_of(*kind), messages_of(earlier, last)
    writes = TEMPLATES[kind[0]][0].startswith(B)
    text, ids = encode_prompt(tokenizer, last if kind[0] == "none" else prompt)
    if is_text and kind[0] != "none":
        before = [] if writes or kind[1] == "$A" else [tokenizer.bos_token_id]
        assert encode_prompt(tokenizer, text)[1] == [*before, *ids]
    adds = kind[0] == "none" and kind[1] != "$A"
    assert ids.count(tokenizer.bos_token_id) == (writes or adds)
    assert tokenizer.decode(ids).removeprefix(BOS) == text.removeprefix(BOS)


@pytest.mark.slow
@settings(max_examples=150)
@given(KINDS, TALK, TEXT, TEXT, st.booleans(), st.booleans())
def test_an_example_thinks_once(
    kind: Any, earlier: Any, last: str, reasoning: str, written: bool, given_apart: bool
) -> None:
    """Reasoning that a message has apart is learned as the template writes it, else as DeepSeek-R1 and Qwen3 do."""
    tokenizer = tokenizer_of(*kind)
    encoder, prompt = Encoder(tokenizer, {tokenizer.eos_token_id}), messages_of(earlier, last)
    thought = f"<think>\n{reasoning}\n</think>\n\n42"
    turn = {"role": "assistant", "content": "42", "reasoning_content": reasoning}
    given = prompt if kind[0] != "none" else f"{last} <think>" * written or last
    completion = turn_text(tokenizer, given, turn) if given_apart else thought
    example = encoder.prompt(given, None, "")
    (rollout,) = encoder.examples([example], [completion], [kind[0] != "none"])
    whole = tokenizer.decode([*rollout.prompt.token_ids, *rollout.generation.token_ids])
    opens, closes = ("[THINK]", "[/THINK]") if kind[0] == "Magistral" and given_apart else ("<think>", "</think>")
    assert whole.count(opens) == whole.count(closes) == 1
    assert reasoning.strip() in whole.partition(opens)[2].partition(closes)[0]
    assert whole.endswith(f"42{EOS}")
    if given_apart and kind[0] in ("Qwen3", "Magistral"):
        rendered = tokenizer.apply_chat_template([*prompt, turn], tokenize=False)
        assert rendered.startswith(whole.removesuffix(EOS))
