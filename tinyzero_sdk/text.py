"""Reading a model's text: special tokens, and answers between tags.

Linear in the length of the text whatever it holds; nothing in here gives a verdict.
"""

import re

# As Qwen, Llama and GPT write them (<|im_end|>), DeepSeek (full-width bars), Llama 2 and Mistral (</s>), and Gemma.
_SPECIAL_TOKEN = re.compile(r"<[|｜][\w▁]+[|｜]>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")


def strip_special_tokens(text: str) -> str:
    """`text` without the markers that a decoder may leave in, such as `<|im_end|>`, `<|endoftext|>` and `</s>`.

    Example:
        >>> strip_special_tokens("<answer>42</answer><|im_end|>")
        '<answer>42</answer>'
    """
    # Searching costs a tenth of substituting, and nearly all texts hold no special token.
    return _SPECIAL_TOKEN.sub("", text) if "<" in text and _SPECIAL_TOKEN.search(text) else text


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What the last complete `<tag>…</tag>` after the last `</think>` holds, without surrounding space; or None.

    Example:
        >>> last_tagged("<think><answer>1</answer></think> so <answer>\\n2 </answer>")
        '2'
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    # From the last closing tag back to the nearest opening one, then forward: `<a>1</a></a>` holds 1.
    start = text.rfind(opening, 0, max(text.rfind(closing), 0))
    if start < 0 or text.find("</think>", start) >= 0:
        return None
    start += len(opening)
    return text[start : text.find(closing, start)].strip()
