"""Parse a model's text: remove special tokens, and find its answer in tags, in a box or after `####`.

Always linear in the length of the text, of which an answer is looked for in the last `READ` characters only. What is
between `<think>` and `</think>` is no answer, nor is what stands in a thought that never ends. No scores here.
"""

import re

READ = 2**16
"""Characters at the end of a text among which its answer must begin; reasoning before it may be of any length."""

# As Qwen, Llama and GPT write them (<|im_end|>), and DeepSeek (full-width bars).
_BARRED_TOKEN = re.compile(r"<[|｜][\w▁]{1,64}+[|｜]>")
# As Llama 2, Mistral and Gemma write them. Only what stops or pads a generation, so only at its end.
_END_TOKENS = ("</s>", "<eos>", "<end_of_turn>", "<pad>")
# Backwards, since a pattern finds the start of a text at once but its end only by trying every place.
_END_REVERSED = re.compile(rf"(?:\s*+(?:{'|'.join(token[::-1] for token in _END_TOKENS)}))*+")


def strip_special_tokens(text: str) -> str:
    """`text` without what a decoder may leave in: `<|im_end|>` and its like anywhere, `</s>` and its like at the end.

    Example:
        >>> strip_special_tokens("<answer>42</answer><|im_end|>")
        '<answer>42</answer>'
    """
    if "|" in text or "｜" in text:  # looking for one character is many times faster than for a pattern
        text = _BARRED_TOKEN.sub("", text)
    if text.rstrip().endswith(_END_TOKENS):  # a space or a line break may follow it
        text = _END_REVERSED.sub("", text[::-1], count=1)[::-1]
    return text


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What the last complete `<tag>…</tag>` after the last `</think>` holds, without surrounding space; or None.

    Example:
        >>> last_tagged("<think><answer>1</answer></think> so <answer>\\n2 </answer>")
        '2'
        >>> last_tagged("<think>Perhaps <answer>1</answer>? Let me see whether")
    """
    text = _after_thought(text)
    opening, closing = _TAGS if tag == "answer" else (f"<{tag}>", f"</{tag}>")
    span = _find_tagged(text, opening, closing)
    return None if span is None else text[span[0] : span[1]].strip()


def last_boxed(text: str) -> str | None:
    """What the last complete `\\boxed{…}` after the last `</think>` holds, without surrounding space; or None.

    Braces inside must match; `\\{` and `\\}` are characters like any other.

    Example:
        >>> last_boxed(r"\\boxed{1} then \\boxed{\\frac{3}{4}} and \\boxed{5")
        '\\\\frac{3}{4}'
    """
    text = _after_thought(text)
    return _cut(text, _find_boxed(text, text.rfind("</think>") + 1))


def last_hashed(text: str) -> str | None:
    """What stands on its line behind the last `####` after the last `</think>` that gives a result; or None.

    Four hashes are a heading too. They give a result where a digit follows on the line, and before it no letter but
    those of LaTeX, a currency (`US$42`), `x =` or `minus`; or where an "answer" is announced. Numbered headings give
    none (`#### 2. The price`; `#### 3.1 Details` if any other line does). `</answer>` or `**` may end the line, too.

    Example:
        >>> last_hashed("#### 42\\n#### Explanation\\n20 + 22 = 42")
        '42'
    """
    text = _after_thought(text)
    return _cut(text, _find_hashed(text, text.rfind("</think>") + 1))


def last_answer(text: str) -> str | None:
    """What the last answer after the last `</think>` holds, whichever form it has; or None.

    The forms are those of `last_tagged`, `last_boxed` and `last_hashed`; the one that begins last counts, so of one
    in another it is the inner one.

    Example:
        >>> last_answer(r"<answer>41</answer> No: \\boxed{42}.")
        '42'
    """
    text = _after_thought(text)
    span = _find_tagged(text, *_TAGS)
    # What begins before the tags does not count, and behind them there is little left to search.
    begin = text.rfind("</think>") + 1 if span is None else span[0]
    for find in (_find_boxed, _find_hashed):
        other = find(text, begin)
        if other is not None and (span is None or other > span):
            span = other
    return _cut(text, span)


_Span = tuple[int, int]
"""Where what an answer holds begins and ends in the text."""

_TAGS = ("<answer>", "</answer>")
_BOX = re.compile(r"\\boxed[ \t]*+\{")
_DIGIT = re.compile("[0-9¼-¾⅐-⅞]")
_LETTERED = re.compile(  # "x = 42", "minus 5", "US$42", "Rs. 42"
    r"[A-Za-z]\s*=|(?i:minus|negative)\s|(?:[A-Z]{1,3}|Rs\.?)\s?[$€£¥₹]|(?:USD|EUR|GBP|INR|Rs\.?)\s?[0-9¼-¾⅐-⅞\\]"
)
_NUMBERED = re.compile(  # "2. The second step", "1 - Check", "1.2.3 Details", "2nd step", "2" as an emoji
    r"[0-9]{1,3}(?:\.[0-9]{1,3}){0,4}(?:[.):\]]{1,2}|\ufe0f?\u20e3|[ \t][-–—|])[ \t]++[^\w]*+[A-Za-z]"
    r"|[0-9]{1,3}(?:st|nd|rd|th)\b|[0-9]{1,3}(?:\.[0-9]{1,3}){2,4}[ \t]"
)
_SECTION = re.compile(r"[^\w]*+[0-9]{1,2}\.[0-9]{1,2}[ \t]++[A-Z][a-z]")  # "3.1 Details", but also "3.5 Miles"
_ANNOUNCED = re.compile(r"(?i)(?!how |why )(?>.*?\banswer\b)(?:[^0-9]*(?:\bis\b|[:=—]|minus)|[^0-9a-z]*+[0-9])")
_UNDRESSED = re.compile(r"(?:\\[A-Za-z]++|[^\w]|_)*+")
_HASHES = re.compile(r"#{4,}+")
_MOST_HASHES = 64  # from the end: so many headings may follow an answer


def _after_thought(text: str) -> str:
    """The last `READ` characters that can hold an answer: none behind a `<think>` that no `</think>` follows."""
    opened = text.find("<think>", text.rfind("</think>") + 1)
    if opened >= 0:
        text = text[:opened]
    return text[-READ:] if len(text) > READ else text


def _cut(text: str, span: _Span | None) -> str | None:
    return None if span is None else text[span[0] : span[1]].strip()


def _find_tagged(text: str, opening: str, closing: str) -> _Span | None:
    # From the last closing tag back to the nearest opening one, then forward: `<a>1</a></a>` holds 1.
    end = text.rfind(closing)
    if end < 0:
        return None
    start = text.rfind(opening, 0, end)
    if start < 0 or text.find("</think>", start) >= 0:
        return None
    start += len(opening)
    return start, text.find(closing, start)


def _find_boxed(text: str, begin: int) -> _Span | None:
    place = text.rfind("\\boxed", begin)
    if place < 0:
        return None
    if last := _BOX.match(text, place):
        close = text.find("}", last.end())
        inner = text[last.end() : close]
        if close >= 0 and "{" not in inner and "\\" not in inner:  # nearly always
            return last.end(), close
    # Backwards, so that the first box whose braces match is the one that begins last.
    starts = {box.end() - 1 for box in _BOX.finditer(text, begin)}
    bare = text.replace("\\{", "  ").replace("\\}", "  ")
    closings: list[int] = []
    for place in range(len(bare) - 1, min(starts, default=len(bare)) - 1, -1):
        if bare[place] == "}":
            closings.append(place)
        elif bare[place] == "{" and closings:
            close = closings.pop()
            if place in starts:
                return place + 1, close
    return None


def _find_hashed(text: str, begin: int) -> _Span | None:
    if text.rfind("####", begin) < 0:
        return None
    section, end = None, len(text)
    for hashes in reversed([*_HASHES.finditer(text, begin)][-_MOST_HASHES:]):
        start, stop = hashes.end(), text.find("\n", hashes.end(), end)
        stop = end if stop < 0 else stop
        end = hashes.start()
        tag = text.find("**" if text[end - 2 : end] == "**" else "</answer>", start, stop)
        stop = stop if tag < 0 else tag
        if _SECTION.match(text, start, stop):
            section = section or (start, stop)  # the result, if there is no other
        elif _gives_result(text[start:stop].strip(" \t\r#*")):
            return start, stop
    return section


def _gives_result(line: str) -> bool:
    if line.isdigit() and line.isascii():  # nearly always
        return True
    if not _DIGIT.search(line):
        return False
    bare = _UNDRESSED.sub("", line, count=1)
    if _DIGIT.match(bare):
        return not _NUMBERED.match(bare)
    return bool(_LETTERED.match(bare) or _ANNOUNCED.match(line))
