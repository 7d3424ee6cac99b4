"""What LaTeX and Markdown put around a number, taken off; whether a number is left is `numbers.py`'s business.

Every rule gives a text that says the same in plain characters. What no rule knows stays, and makes an answer malformed.
"""

import re

_LATEX = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?:\{,\}|,)(?:\\!)?(?=[0-9]{3}(?![0-9]))|(?<=[0-9])\\[,;:](?=[0-9]{3}(?![0-9]))", ","),  # 1{,}042 and 1\,042
        (r"\\([$%€£])", r"\1"),
        (r"\^\s*\{\s*([+\-−]?[0-9]{1,3})\s*\}", r"^\1 "),
        (r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])", " "),
        (r"\\[,;: ()\[\]]", " "),
        (r"\\(?:times|cdot)(?![A-Za-z])", "×"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),
        (r"(?<=[0-9])\s*\\[dt]?frac\s*\{\s*([0-9,]+)\s*\}\s*\{\s*([0-9,]+)\s*\}", r" \1/\2 "),
        (r"\\[dt]?frac\s*\{\s*([+\-−]?[0-9,]+)\s*\}\s*\{\s*([0-9,]+)\s*\}", r"\1/\2 "),
        (r"(?<=[0-9])\s*\\[dt]?frac\s*([0-9])([0-9])(?![0-9])", r" \1/\2 "),
        (r"\\[dt]?frac\s*([0-9])([0-9])(?![0-9])", r"\1/\2 "),
    )
)
_MATH = re.compile(r"(?<![\\$\w])(\${1,2})([^$]+)(?<!\\)\1(?![$0-9])")
_RUPEES = re.compile(r"\bRs\.\s*(?=[^\sA-Za-z.])")
_TIE = re.compile(r"(?<=[0-9A-Za-z{}])~(?=[A-Za-z\\])")  # before a number a tilde is "about"
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|boxed|fbox|underline|operatorname)\s*"
    r"\{([^{}]*)\}"
)
_UNIT_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([A-Za-z. ]*[A-Za-z])\s*\}\s*\{\s*([A-Za-z. ]*[A-Za-z])\s*\}")
_SPACES = re.compile(" {2,}")
_DEPTH = 4

_EN_DASH = re.compile(r"\A\s*–(?=[0-9])")  # as word processors write a minus
_THIN_SPACE = re.compile("(?<=[0-9])[~\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
# Pairs alone, around words and numbers as a whole: a star inside is a product, a backtick inside cuts a number in two.
_EMPHASIS = tuple(
    (mark, re.compile(rf"(?<![^\s(\[{{$\"'“*]){pair}(?![^\s.,;:!%)\]}}$\"'”*\\])"))
    for mark, pair in (("`", r"(`{1,3})\s*([^`]+?)\s*\1"), ("*", r"(?<!\*)(\*{1,3})(?![\s*])([^*]+)(?<!\s)\1(?!\*)"))
)


def undress(text: str) -> str:
    """`text` without the marks.

    Example:
        >>> undress(r"**$\\boxed{1{,}042}$** \\text{ kg}"), undress("`2**3`"), undress("4`2 *h")
        (' 1,042 kg ', '2**3', '4`2 *h')
    """
    if text.startswith("**") and text.endswith("**") and len(text) > 4 and "*" not in text[2:-2]:
        text = text[2:-2].strip()
    if text.startswith("{") and text.endswith("}") and text.count("{") == text.count("}") == 1:
        text = text[1:-1].strip()
    for mark, pair in _EMPHASIS:
        if mark in text:
            text = pair.sub(r"\2", text)
    if text.count("$") > 1:
        text = _MATH.sub(r" \2 ", text)  # "$1.5$ million": the second dollar shows that the first is none
    if "Rs." in text:
        text = _RUPEES.sub("Rs ", text)
    if "~" in text or not text.isascii():
        text = _TIE.sub(" ", _THIN_SPACE.sub(",", text))
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
        for _ in range(_DEPTH):
            text, count = _WRAPPER.subn(r" \1 ", text)
            text, fractions = _UNIT_FRACTION.subn(r" \1/\2 ", text)
            if not count + fractions:
                break
            text = _SPACES.sub(" ", text)
    return _EN_DASH.sub("−", text) if "–" in text else text
