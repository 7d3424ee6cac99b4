"""Malformed and hostile completions, for the checks and for the fuzzer.

Every choice is left to a `Choose`, so that chance or hypothesis can make it. A choice of 0 is the simplest everywhere,
which is where hypothesis shrinks to. Changed answers come from `mutations.py`.
"""

from collections.abc import Iterator, Sequence

from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.grammar import Choose

MALFORMED = [
    "{}", "<answer>{}", "{}</answer>", "<answer>{}</answer", "</answer>{}<answer>", "<answer><answer>{}</answer>",
    "<answer>{}</answer></answer>", "<ANSWER>{}</ANSWER>", "< answer >{}< /answer >", "<answer/>{}", "&lt;answer&gt;{}",
    r"\boxed{{{}}}", r"\boxed{{{}", "#### {}", "####", "**{}**", "```\n{}\n```", "<answer>\n\n{}\n\n</answer>\n\n",
    "<think><answer>{}</answer>", "<answer>{}</answer><think>", '{{"answer": "{}"}}', "The answer is {}.",
]  # fmt: skip
"""Ways to get the form of an answer wrong, and some that are right; `{}` stands for the answer."""


def malformed(gold: Gold, choose: Choose) -> str:
    """A completion with something wrong in its form: tags missing, doubled or broken, a part cut out or repeated."""
    kind, text = choose(5), gold.completion
    if kind == 0:
        return MALFORMED[choose(len(MALFORMED))].format(gold.answer)
    if kind == 1:
        return text[: choose(len(text) + 1)]
    if kind == 2:
        return gold.before + MALFORMED[choose(len(MALFORMED))].format(gold.answer) + gold.after
    start, end = sorted((choose(len(text) + 1), choose(len(text) + 1)))
    return text[:start] + text[end:] if kind == 3 else text[:end] + text[start:]


HOSTILE = [
    "(", "[", "{", "-", "9", "0", " ", "\n", "a", "1+", "<answer>", "</answer>", "<think>", "</think>", "####",
    "9**9**9", "9^9^9", "9**99999999", "2**(2**(2**(2**9)))", "1e999999999", "1e-999999999", "9999999999!", "1/0",
    "0/0", "nan", "inf", "-inf", "NaN", "Infinity", "1e400", "-0", "1_000", "0x1F", "0b1", "1j", "1/3", "True", "None",
    "\ud800", "\udfff", "\0", "\u202e", "\u200f", "\u2066", "\u200b", "\u200d", "\ufeff", "\u0301", "\u2028", "\x85",
    "\r", "\x0b", "\x1b[2J", "٣", "３", "४", "²", "½", "Ⅷ", "𝟗", "一", "−", "٫", "٬", "İ", "ß", "ﬁ",
    "<|im_end|>", "<|endoftext|>", "<|im_start|>assistant\n", "</s>", "<eos>", "<pad>", "<｜end▁of▁sentence｜>",
    "<end_of_turn>", "<answer", "answer>", "<answer/>", "\\", "\\frac{", "\\left(", "\\boxed{", "\\begin{matrix}", "$",
    "%s", "%n", "{0}", "{}", "{0.__class__}", "$(true)", "`true`", "'", '"', '"""', "#", ";", "`", "//", "**", "=",
    "print(1)", "__import__('os').getcwd()", "().__class__.__mro__", "lambda: 0", "exit()", "(lambda f: f(f))(0)",
    "[0]*10**10", "'a'*10**10", "import os", "os.getcwd()", "x", "E", "I", "pi", "factorial(9)", "zoo", "1,", ",1",
]  # fmt: skip
"""What has broken scorers: deep nesting, towers of powers, numbers without end, text that is no text, code."""

_NESTS = [
    ("(", ")"), ("[", "]"), ("{", "}"), (r"\frac{", "}{1}"), ("-(", ")"), ("1+(", ")"), ("<answer>", "</answer>"),
    ("<think>", "</think>"), (r"\boxed{", "}"), ("9**", ""), ("abs(", ")"), ("<", ">"), ("1/(", ")"),
]  # fmt: skip

TIMES = (1, 2, 3, 30, 500, 5000)
"""How often a piece stands in a row."""

MEGABYTE = 2**20


def hostile_text(choose: Choose, times: Sequence[int] = TIMES) -> str:
    """One to three pieces that have broken scorers, alone, in a row or nested."""
    pieces = []
    for _ in range(1 + choose(3)):
        count = times[choose(len(times))]
        if choose(3) < 2:
            pieces.append(HOSTILE[choose(len(HOSTILE))] * count)
        else:
            pieces.append(_nested(_NESTS[choose(len(_NESTS))], count))
    return "".join(pieces)


def _nested(brackets: tuple[str, str], count: int) -> str:
    left, right = brackets
    count = min(count, MEGABYTE // len(left + right))
    return left * count + "1" + right * count


def huge_text(choose: Choose) -> str:
    if choose(2) == 0:
        piece = HOSTILE[choose(len(HOSTILE))]
        return piece * (MEGABYTE // len(piece))
    return _nested(_NESTS[choose(len(_NESTS))], MEGABYTE)


def every_piece(gold: Gold, times: Sequence[int]) -> Iterator[str]:
    """Every hostile piece and nest in the place of gold's answer, each as often as `times`; pieces after it too."""
    for piece in HOSTILE:
        for count in times:
            yield gold.with_answer(piece * min(count, MEGABYTE // len(piece)))
        yield gold.with_answer(gold.answer + piece)
    for brackets in _NESTS:
        for count in times:
            yield gold.with_answer(_nested(brackets, count))


def place(text: str, gold: Gold, choose: Choose) -> str:
    """A completion with `text` in the place of gold's answer, next to it, around it, or alone."""
    before, answer, after = gold.before, gold.answer, gold.after
    ways = (
        gold.with_answer(text),
        text,
        before + answer + text + after,
        before + text + answer + after,
        text + before + answer + after,
        before + answer + after + text,
        before + text,
    )
    return ways[choose(len(ways))]
