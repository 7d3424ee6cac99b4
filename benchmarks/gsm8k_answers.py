"""Completions for gsm8k whose verdict its README makes certain, and those that are scored otherwise: none.

    python benchmarks/gsm8k_answers.py [--cases 100000] [--seed 0]

Each completion is built from a number, right in all of its parts or with one thing in it that makes it no number, and
none is read; a fast test tries a sample.
"""

import random
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated

import typer

from benchmarks.common import print_machine
from tinyzero_sdk import load_task

GROUPS = [",", "{,}", r"\,", r"\;", r",\!", "~", "\u00a0", "\u202f"]
SCALES = {
    " hundred": 2, " thousand": 3, " million": 6, " billion": 9, " trillion": 12, "e3": 3, "e-2": -2, "E+1": 1,
    " × 10^3": 3, r" \times 10^{-2}": -2, "×10³": 3, "·10⁻²": -2, " x 10^{3}": 3,
}  # fmt: skip
VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
FRACTIONS = ["{}/{}", r"\frac{{{}}}{{{}}}", r"\dfrac{{{}}}{{{}}}", r"\tfrac{{{}}}{{{}}}", "{}⁄{}", "{} / {}"]
MONEY = ["$", r"\$", "€", "£", "¥", "₹", "US$", "USD ", "Rs. "]  # a sign before the first six only
BEHIND = [
    *("%", r"\%", " %", "€", " €", "¢", "°", "$", " apples", " km", " km/h", " square feet", " cups of flour", " left"),
    *(" people", " cm^2", " m²", " m^{3}", " miles per hour", " kg", r" \text{ km}", r"\mathrm{~cm}", " sq. ft"),
    *(" clips in April and May", " more than Tom", " dollars in total", " apples!", " (square) feet", ", altogether"),
]
HASHED = ["The answer is ", "x = ", "= ", "Final answer: ", r"\text{The answer is } ", "The answer — ", "**Answer:** "]
STATED = [*HASHED, "So she has ", "Total: ", "The total cost is ", "So, it is ", "Tom: ", "In total there are "]
DRESSES = [
    *("{}", "{}.", "\n{}\n", "**{}**", "*{}*", "**{}.**", "`{}`", "```\n{}\n```", "**`{}`**", '"{}"', "'{}'", "“{}”"),
    *("[{}]", "${}$", "$${}$$", r"\({}\)", r"\[{}\]", r"\boxed{{{}}}", r"\text{{{}}}", r"\mathbf{{{}}}"),
]
TAGGED = ["<answer>{}</answer>", r"\boxed{{{}}}", "It is $\\boxed{{{}}}$.", "<answer>{}</answer></s>\n"]
HASHES = ["####{}", "#### {}", "**#### {}**", "#### {}\n\nDone."]
HEADINGS = [
    *(
        "3.1 Details",
        "1 - Verification",
        "How it was found in 3 steps",
        "2. The price",
        "1) Check",
        "(2) Check",
        "Check",
    ),
    *("Step 3", "2nd way", "1: Check", "2 – Why", "1.) Check", "[1] Check", "1.2.3 Details", "3️⃣ Check", "1.2. Check"),
    *("How the answer was found in 3 steps", "**2.1 Checking**", "Why the answer is not 3", "2 | Check"),
]

# What makes a number another one, or none: before its digits, among them, and behind it.
DENIED = [
    *(
        "not ",
        "about ",
        "at least ",
        "Must it be ",
        "Is it ",
        "Must the answer be ",
        "no ",
        "half of ",
        "3 or ",
        "log ",
    ),
    *("≈ ", "~", "±", "√", "< ", "≤", "> ", "--", "+-", "- ", "— ", "—", "$–", "-(-", "-{", "\\text{-}", "¬", "\\sqrt"),
    *(
        "#",
        "x",
        "x^",
        "A",
        "Q",
        "0x",
        "1/",
        "2:",
        "v1.",
        "½",
        "(",
        "|",
        "& ",
        "&minus;",
        "(3) ",
        "1. ",
        "* ",
        "5, ",
        ", ",
    ),
    *("; ", "'", '"', "x = y = ", "2 + ", "10^3 + ", "forty ", "May ", "less than\u00a0", "```python\n"),
]
AMONG = [*"`_'’*^|:-!$ ", "\\text{}", "{}", "\u200b", "&nbsp;", "<b>", "\\!", "**"]
SCALED = ["", "", " hundred", " million", "e3", "×10³", " × 10^2", "/7", "½", ".5", r"\%", r"\text{ million}", "%"]
CHANGED = [
    *(
        "!",
        " !",
        "?",
        "^2",
        "²",
        "³",
        "^{2}",
        "^",
        "\\%^2",
        "$^2$",
        " hundred^2",
        " million^2",
        " thousand²",
        " million!",
    ),
    *(
        " *h",
        "*h",
        " * h",
        "*x",
        "*",
        "**",
        "+",
        " -",
        "-",
        " /",
        " =",
        " + 1",
        "/0",
        " \\cdot h",
        " mod 7",
        "\\pi",
        "x^2",
    ),
    *(
        "½4",
        "³5",
        "¹",
        "†",
        "[1]",
        "(3)",
        "_1",
        "e999",
        ".5.1",
        "-6",
        "–6",
        "−1",
        "–1",
        "—1",
        " — 1",
        "~5",
        ":30",
        ":4",
    ),
    *("k", "x", "th", " hundredth", " V", " Ⅴ", "٠", "\u0301", "\u20e3", "\u200b", "&nbsp;", "<b>", "|", "`", "\\!"),
    *("%%", " %%", "%!", "€$", " €5", "..", "...", "…", ":", ",", ")", "]", "′", "'", '"', "'s", " km'", " dollars's"),
    *(" apples^2", " people²", " hours^2", " km^2^2", " cm²³", " m^{3}!", "°30", "^\\circ2", " a.m.", "May", " May"),
    *(" or 6", " apples or 6", " apples?", " point five", " dozen", " (approx)", " is wrong"),
]
MEANT = set("0123456789.,%$€£¥₹¢°/+-−–eEgmhsLlFC\"'’”)]“‘([=:~\\{}*×xX·⋅^¼½¾")
"""Characters that may mean something beside a number."""


def _number(source: random.Random) -> tuple[str, Fraction]:
    """A number in one of its forms, and its value."""
    kind, small = source.randrange(6), source.randrange(2, 20)
    large = source.choice([source.randrange(1000), source.randrange(10**7)])
    if kind == 0:
        return f"{large:0{source.randrange(9)}d}", Fraction(large)
    if kind == 1:
        return f"{large:,}".replace(",", source.choice(GROUPS)), Fraction(large)
    if kind == 2:
        return f"{large:,}.{small:02d}", Fraction(f"{large}.{small:02d}")
    if kind == 3:
        scale = source.choice([*SCALES])
        return f"{small}.5{scale}", Fraction(2 * small + 1, 2) * Fraction(10) ** SCALES[scale]
    whole = source.choice([0, small])
    first = source.choice([f"{whole} ", f"{whole} and "]) if whole else ""
    if kind == 4:
        letter = source.choice(VULGAR)
        return first + letter, whole + Fraction(unicodedata.numeric(letter)).limit_denominator(10)
    top = source.randrange(small) if whole else large
    return first + source.choice(FRACTIONS).format(top, small), whole + Fraction(top, small)


def _stranger(source: random.Random) -> str:
    """A character that means nothing beside a number."""
    while True:
        letter = chr(source.choice([source.randrange(33, 0x3000), source.randrange(33, 0x30000)]))
        if letter not in MEANT and not letter.isspace() and unicodedata.category(letter) not in ("Cs", "Cn"):
            return letter


def right_answer(source: random.Random, stated: list[str]) -> tuple[str, Fraction]:
    """A right answer, and its number."""
    text, value = _number(source)
    sign = source.choice(["-", "−", "minus ", "+"]) if source.random() < 0.2 else ""
    if sign != "minus " and source.random() < 0.25:
        money = source.choice(MONEY[: 6 if sign else None])
        text = sign + money + text if source.random() < 0.5 else money + sign + text
    else:
        text = sign + text + (source.choice(BEHIND) if source.random() < 0.5 else "")
    before = source.choice(stated) if source.random() < 0.4 else ""
    if not sign or before.rstrip()[-1:] in ("", "=", ":", "*") or before.endswith("is "):
        text = before + text
    return _dressed(source, text), -value if sign in ("-", "−", "minus ") else value


def wrong_answer(source: random.Random, stated: list[str]) -> tuple[str, Fraction]:
    """An answer that is no number, and a number that a careless reader finds in it."""
    digits = str(source.choice([source.randrange(2, 100), source.randrange(10**4)]))
    values, kind = [digits], source.randrange(4)
    if kind == 0:
        text = source.choice([*DENIED, _stranger(source)]) + digits
    elif kind == 1 and len(digits) > 1:
        place = source.randrange(1, len(digits))
        values += [digits[:place], digits[place:]]
        text = digits[:place] + source.choice([*AMONG, _stranger(source)]) + digits[place:]
    else:
        values += [f"{digits}00", f"{digits}000", f"{digits}000000", f"{digits}e35"]
        text = digits + source.choice(SCALED) + source.choice([*CHANGED, _stranger(source)])
    before = source.choice(stated) if source.random() < 0.3 else ""
    return _dressed(source, before + text), Fraction(source.choice(values))


def _dressed(source: random.Random, text: str) -> str:
    """The text in LaTeX, Markdown or quotes, if it has none of their marks."""
    marks = set(text) & set("$*`'\"[]") | set("." if text.endswith("!") else "")
    return source.choice([dress for dress in DRESSES if not marks & set(dress)]).format(text)


def certain_cases(count: int, seed: int) -> Iterator[tuple[str, Fraction, bool]]:
    """Completions, each with a ground truth and whether it is right."""
    source = random.Random(seed)
    for _ in range(count):
        hashed, is_right = source.random() < 0.4, source.random() < 0.5
        text, value = (right_answer if is_right else wrong_answer)(source, HASHED if hashed else STATED)
        if is_right and source.random() < 0.3:
            others = (value + 1, value * 10, -value, value / 100, value * 1000, value + Fraction(1, 10**6))
            value, is_right = (other := source.choice(others)), other == value
        if not hashed or text[0] in "#\n`":
            completion = source.choice(TAGGED).format(text)
        else:
            completion = source.choice([form for form in HASHES if not ("*" in text and "*" in form)]).format(text)
            if source.random() < 0.5:
                completion += f"\n\n#### {source.choice(HEADINGS)}\nSo 3 + 4 = 7."
        yield "<think>3 + 4 = 7</think>\n" + completion, value, is_right


def faults(count: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Cases that the scorer scores otherwise, or the oracle: completion, ground truth and what they say."""
    task = load_task("gsm8k", options={"source": "synthetic"})
    for completion, value, is_right in certain_cases(count, seed):
        score = task.score_completion(completion, str(value))
        oracle = None if score.answer is None else task.oracle(score.answer, str(value))
        if score.correct is not is_right or (oracle is not None and oracle is not is_right):
            yield completion, str(value), f"{score.reason}, oracle {oracle}"


def main(
    cases: Annotated[int, typer.Option(help="completions to score")] = 100_000,
    seed: Annotated[int, typer.Option(help="which ones")] = 0,
) -> None:
    """Score completions whose verdict is certain, and print those that are scored otherwise."""
    print_machine("tinyzero-gsm8k")
    found = list(faults(cases, seed))
    print(*map(repr, found), f"{len(found):,} of {cases:,} cases are scored otherwise", sep="\n")


if __name__ == "__main__":
    typer.run(main)
