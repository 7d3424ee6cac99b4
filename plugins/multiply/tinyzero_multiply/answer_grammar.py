"""A grammar of answers to a problem, right ones and near misses, from which a fuzzer starts. It scores nothing."""

_SPACE = ["", "", " ", "\n", "\u00a0", "\u200b", "\\,"]
_SIGNS = ["*", "×", "·", "\\times ", "\\cdot ", "x", "**", "+", "/", "//", "e", ""]
_SEPARATORS = [",", " ", ".", "_", "'", "\u00a0", "\u202f", "{,}", "\\,", ",\\!", ""]
_MARKS = [f"{left}<plain>{right}" for left, right in (("$", "$"), ("\\boxed{", "}"), ("\\(", "\\)"), ("\\[", "\\]"))]
_MARKS += ["**<plain>**", "`<plain>`", "\\text{<plain>}"]
_SCRIPTS = [str.maketrans("0123456789", script) for script in ("٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "⁰¹²³⁴⁵⁶⁷⁸⁹")]


def answer_rules(num1: int, num2: int) -> dict[str, list[str]]:
    """The rules for `num1` × `num2`; the first starts, `<name>` stands for one of that rule's alternatives.

    Example:
        >>> answer_rules(12, 34)["right"][0]
        '408'
    """
    product = num1 * num2
    digits = str(product)
    return {
        "start": ["<plain>", "<space><plain><space>", *_MARKS, "<marked>", "<plain><end>", "<several>"],
        "marked": [mark.replace("plain", "start") for mark in _MARKS],
        "plain": ["<number>", "<sign><number>", "<equation>", "= <number>", "<number><space><number>"],
        "equation": [
            *("<factor><space><times><space><factor> = <number>", "<factor><times><factor>", "<number> = <equation>"),
            *("<factor><times><factor><times><factor> = <number>", "<equation> = <number>", "<marked> = <marked>"),
        ],
        "several": ["<number>, <number>", "<number> or <number>", "<number>\n<number>", "<plain>; <plain>"],
        "number": ["<right>", "<near>", "<longer>", "<exotic>", "<factor>", "<number><number>", "<number>.<number>"],
        "right": [digits, f"{product:,}", *(_cut(digits, 3, gap) for gap in _SEPARATORS)],
        "near": [
            *map(str, (product + 1, product - 1, product + 10, 10 * product, product // 10, -product, 0)),
            *(digits[::-1], digits[1:] or "0", digits[:-1] or "0", _cut(digits, 2, ","), _cut(digits, 4, ",")),
        ],
        "longer": [f"1{digits}", f"{digits}0", f"0{digits}", f"00{digits}", digits + digits, f"{digits},000"],
        "exotic": _look_alikes(product),
        "factor": [*map(str, (num1, num2, 1, 0, product, -num1)), f"{num1:,}", f"{num2:,}", f"0{num1}", f"{num1}.0"],
        "sign": ["+", "-", "−", "+ ", "--", "+-", "~", "±"],
        "times": _SIGNS,
        "space": _SPACE,
        "end": [".", "..", "!", ",", "\n", ";", "\u202e", "\x00", " apples", "²"],
    }


def _look_alikes(product: int) -> list[str]:
    """Texts that one or another library reads as the number."""
    digits = str(product)
    places = len(digits) - 1
    return [
        *(f"{digits}.0", f"{digits}.5", f"{product / 10**places}e{places}", f"{digits}e0", f"{digits}%", f"{digits}!"),
        *(hex(product), f"0b{product:b}", f"0o{product:o}", f"{digits}/1", f"{digits}**1", f"{digits}^1"),
        *(f"{product:_}", "_".join(digits), f"int({digits})"),
        *(digits.translate(script) for script in _SCRIPTS),
        *(digits[:-1] + digits[-1].translate(script) for script in _SCRIPTS),
    ]


def _cut(digits: str, length: int, gap: str) -> str:
    """The digits in groups of `length` from the right, with `gap` between them."""
    first = len(digits) % length
    groups = [digits[:first], *(digits[at : at + length] for at in range(first, len(digits), length))]
    return gap.join(group for group in groups if group)
