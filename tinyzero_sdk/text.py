"""Parse a model's text: remove special tokens, and find its answer in tags, in a box or after `####`.

Always linear in the length of the text. No scores here.
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
    return _cut(text, _find_tagged(text, tag))


def last_boxed(text: str) -> str | None:
    """What the last complete `\\boxed{…}` after the last `</think>` holds, without surrounding space; or None.

    Braces inside must match; `\\{` and `\\}` are characters like any other.

    Example:
        >>> last_boxed(r"\\boxed{1} then \\boxed{\\frac{3}{4}} and \\boxed{5")
        '\\\\frac{3}{4}'
    """
    return _cut(text, _find_boxed(text))


def last_hashed(text: str) -> str | None:
    """What stands on its line behind the last `####` after the last `</think>` that gives a result; or None.

    Four hashes are a heading in Markdown too. They give a result where a digit follows on the line, which begins with
    no letter (or says "answer") and is no numbered heading, such as `#### 2. The price`. A `</answer>` ends it too.

    Example:
        >>> last_hashed("#### 42\\n#### Explanation\\n20 + 22 = 42")
        '42'
    """
    return _cut(text, _find_hashed(text))


def last_answer(text: str) -> str | None:
    """What the last answer after the last `</think>` holds, whichever form it has; or None.

    The forms are those of `last_tagged`, `last_boxed` and `last_hashed`; the one that begins last counts, so of one
    in another it is the inner one.

    Example:
        >>> last_answer(r"<answer>41</answer> No: \\boxed{42}.")
        '42'
    """
    span = _find_tagged(text, "answer")
    begin = 0 if span is None else span[0]
    # What begins before the tags does not count, and behind them there is little left to search.
    if text.find("\\boxed", begin) >= 0:
        span = _later(span, _find_boxed(text))
    if text.find("####", begin) >= 0:
        span = _later(span, _find_hashed(text))
    return _cut(text, span)


_Span = tuple[int, int]
"""Where what an answer holds begins and ends in the text."""

_BOX = re.compile(r"\\boxed[ \t]*+\{")
_DIGIT = re.compile(r"[0-9]")
_NUMBERED = re.compile(r"[0-9]{1,3}[.):][ \t]++[A-Za-z]")  # "2. The second step"
_BRACES = re.compile(r"(\\boxed[ \t]*+\{)|\\[{}]|[{}]")


def _cut(text: str, span: _Span | None) -> str | None:
    return None if span is None else text[span[0] : span[1]].strip()


def _later(one: _Span | None, other: _Span | None) -> _Span | None:
    return max(filter(None, (one, other)), default=None)


def _find_tagged(text: str, tag: str) -> _Span | None:
    opening, closing = f"<{tag}>", f"</{tag}>"
    # From the last closing tag back to the nearest opening one, then forward: `<a>1</a></a>` holds 1.
    end = text.rfind(closing)
    start = text.rfind(opening, 0, end) if end >= 0 else -1
    if start < 0 or text.find("</think>", start) >= 0:
        return None
    start += len(opening)
    return start, text.find(closing, start)


def _find_boxed(text: str) -> _Span | None:
    begin = text.rfind("</think>") + 1
    last = text.rfind("\\boxed", begin)
    if last < 0:
        return None
    # Nearly always the last one is complete; only where it is not, all are looked at.
    return _last_closed(text, last) or _last_closed(text, begin)


def _last_closed(text: str, begin: int) -> _Span | None:
    """The box from `begin` on that begins last among those that are closed, in one pass."""
    first, last = _BOX.search(text, begin), text.rfind("\\boxed", begin)
    found: _Span | None = None
    open_braces: list[int] = []  # where what a box holds begins; -1 for other braces
    for brace in _BRACES.finditer(text, len(text) if first is None else first.start()):
        if brace[1]:
            open_braces.append(brace.end())
        elif brace[0] == "{":
            open_braces.append(-1)
        elif brace[0] == "}" and open_braces:
            start = open_braces.pop()
            if start >= 0 and (found is None or start > found[0]):
                found = start, brace.start()
                if start > last:
                    break  # no other box begins later
    return found


def _find_hashed(text: str) -> _Span | None:
    begin = text.rfind("</think>") + 1
    end = len(text)
    while (marker := text.rfind("####", begin, end)) >= 0:
        start, stop = marker + 4, text.find("\n", marker, end)
        stop = end if stop < 0 else stop
        tag = text.find("</answer>", start, stop)
        stop = stop if tag < 0 else tag
        if _gives_result(text[start:stop].strip(" \t\r#*")):
            return start, stop
        end = marker
    return None


def _gives_result(line: str) -> bool:
    if not _DIGIT.search(line) or _NUMBERED.match(line):
        return False
    return not line[0].isalpha() or "answer" in line.lower()
