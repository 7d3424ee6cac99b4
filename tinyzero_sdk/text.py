"""Reading a model's text: special tokens, and answers between tags.

Linear in the length of the text whatever it holds; nothing in here gives a verdict.
"""

import re

# As Qwen, Llama and GPT write them (<|im_end|>), and DeepSeek (full-width bars).
_BARRED_TOKEN = re.compile(r"<[|｜][\w▁]{1,64}+[|｜]>")
# As Llama 2, Mistral and Gemma write them. Only what stops or pads a generation, so only at its end.
_END_TOKENS = ("</s>", "<eos>", "<end_of_turn>", "<pad>")
# Backwards, since a pattern finds the start of a text at once but its end only by trying every place.
_END_REVERSED = re.compile(f"(?:{'|'.join(token[::-1] for token in _END_TOKENS)})*+")


def strip_special_tokens(text: str) -> str:
    """`text` without what a decoder may leave in: `<|im_end|>` and its like anywhere, `</s>` and its like at the end.

    Example:
        >>> strip_special_tokens("<answer>42</answer><|im_end|>")
        '<answer>42</answer>'
    """
    if "|" in text or "｜" in text:  # looking for one character is many times faster than for a pattern
        text = _BARRED_TOKEN.sub("", text)
    if text.endswith(_END_TOKENS):
        end = _END_REVERSED.match(text[::-1])
        assert end is not None  # it matches the empty text too
        text = text[: len(text) - end.end()]
    return text


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What the last complete `<tag>…</tag>` after the last `</think>` holds, without surrounding space; or None.

    Example:
        >>> last_tagged("<think><answer>1</answer></think> so <answer>\\n2 </answer>")
        '2'
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    # From the last closing tag back to the nearest opening one, then forward: `<a>1</a></a>` holds 1.
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    if start < 0 or text.find("</think>", start) >= 0:
        return None
    start += len(opening)
    return text[start : text.find(closing, start)].strip()
