"""What LaTeX and Markdown put around a number, taken off; whether a number is left is `numbers.py`'s business.

Every rule gives a text that says the same in plain characters. What no rule knows stays, and makes an answer malformed.
"""

import re

_LATEX = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\!|\{,\}(?=\\!)", ""),
        (r"\{,\}|(?<=[0-9])\\[,;:](?=[0-9]{3}(?![0-9]))", ","),  # 1{,}042 and 1\,042
        (r"\\([$%€£])", r"\1"),
        (r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])", " "),
        (r"\\[,;: ()\[\]]", " "),
        (r"\\(?:times|cdot)(?![A-Za-z])", "×"),
        (r"\\(?:approx|thickapprox)(?![A-Za-z])", "≈"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),
        (r"(\\[dt]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|[0-9][0-9]))!", r"\1/!"),  # a factorial: nothing that can be read
        (r"(?<=[0-9])\s*\\[dt]?frac\s*\{\s*([0-9,]+)\s*\}\s*\{\s*([0-9,]+)\s*\}", r" \1/\2 "),
        (r"\\[dt]?frac\s*\{\s*([+\-−]?[0-9,]+)\s*\}\s*\{\s*([0-9,]+)\s*\}", r"\1/\2 "),
        (r"(?<=[0-9])\s*\\[dt]?frac\s*([0-9])([0-9])(?![0-9])", r" \1/\2 "),
        (r"\\[dt]?frac\s*([0-9])([0-9])(?![0-9])", r"\1/\2 "),
    )
)
_MATH = re.compile(r"(?<![\\$\w])\$(\s*(?:\\[$£€])?[+\-−]?(?:[0-9]|\\[dt]?frac)[^$]*(?<!\\))\$(?![$0-9])")
_RUPEES = re.compile(r"\bRs\.\s*(?=[0-9])")
_TIE = re.compile(r"(?<=[0-9A-Za-z{}])~(?=[A-Za-z\\])")  # before a number a tilde is "about"
_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|boxed|fbox|underline|operatorname)\s*"
    r"\{([^{}]*)\}"
)
_UNIT_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([A-Za-z. ]*[A-Za-z])\s*\}\s*\{\s*([A-Za-z. ]*[A-Za-z])\s*\}")
_SPACES = re.compile(" {2,}")
_DEPTH = 4

_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip
_FIND_VULGAR = re.compile(f"[{''.join(_VULGAR)}]")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER_OF_TEN = re.compile(r"(?<![0-9])10([⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_UNIT_POWER = re.compile(
    r"([0-9]\s*(?:[A-Za-z]{1,12}\s*/\s*)?[A-Za-z]{1,12}\s*)(?:\^\s*(?:\{[23]\}|[23])|[²³])(?![0-9])"
)
_THIN_SPACE = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_PRODUCT = re.compile(r"[0-9]\.?\s*\*+\s*\.?[0-9]")  # 3 * 4 and 2**3, where a star is a sign
_BOLD = re.compile(r"(?<![^\s(\"'])\*{1,3}+(?=\S)|(?<=\S)\*{1,3}+(?![^\s.,;:!)\"'])")


def undress(text: str) -> str:
    """`text` without the marks.

    Example:
        >>> undress(r"**$\\boxed{1{,}042}$** \\text{ kg}"), undress("2½ m²"), undress("2**3")
        ('$ 1,042 $ kg ', '2 1/2 m', '2**3')
    """
    if text.startswith("**") and text.endswith("**") and len(text) > 4 and "*" not in text[2:-2]:
        text = text[2:-2].strip()
    if text.startswith("{") and text.endswith("}") and text.count("{") == text.count("}") == 1:
        text = text[1:-1].strip()
    if text.count("$") > 1:
        text = _MATH.sub(r"\1 ", text)  # "$1.5$ million": the second dollar shows that the first is none
    if "Rs." in text:
        text = _RUPEES.sub("Rs ", text)
    if "~" in text:
        text = _TIE.sub(" ", text)
    if "\\" in text or "{" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
        for _ in range(_DEPTH):
            text, count = _WRAPPER.subn(r" \1 ", text)
            text, fractions = _UNIT_FRACTION.subn(r" \1/\2 ", text)
            if not count + fractions:
                break
            text = _SPACES.sub(" ", text)
    if not text.isascii():
        first = text.lstrip()
        if first.startswith("–") and first[1:2].isdigit():
            text = f"−{first[1:]}"  # an en dash, as word processors write it
        text = _THIN_SPACE.sub(",", text)
        text = _POWER_OF_TEN.sub(lambda match: f"10^{match[1].translate(_RAISED)}", text)
        text = _FIND_VULGAR.sub(lambda match: _plain_fraction(text, match), text).replace("\u2044", "/")
    if "^" in text or "²" in text or "³" in text:
        text = _UNIT_POWER.sub(r"\1", text)
    if "*" in text and not _PRODUCT.search(text):
        text = _BOLD.sub("", text)
    return text.replace("`", "")


def _plain_fraction(text: str, match: re.Match[str]) -> str:
    before = text[match.start() - 1 : match.start()]
    return f" {_VULGAR[match[0]]}" if before.isdigit() else _VULGAR[match[0]]
