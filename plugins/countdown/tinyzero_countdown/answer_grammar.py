"""A grammar of answers to a puzzle, right ones and near misses, from which a fuzzer starts. It scores nothing."""

from collections.abc import Iterator, Sequence
from itertools import combinations

_SCRIPTS = [str.maketrans("0123456789", script) for script in ("٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "⁰¹²³⁴⁵⁶⁷⁸⁹")]


def answer_rules(numbers: Sequence[int], target: int, gold: str | None = None) -> dict[str, list[str]]:
    """The rules for a puzzle; the first starts, `<name>` stands for one of that rule's alternatives.

    Args:
        numbers: of the puzzle.
        target: of the puzzle.
        gold: a right expression, where there is one.

    Example:
        >>> answer_rules([17, 5, 3], 15)["plain"][0]
        '17<operator>5<operator>3'
    """
    # Every number once, with operators of the fuzzer's choosing.
    chain = "<operator>".join(map(str, numbers))
    backwards = "<operator>".join(map(str, reversed(numbers)))
    return {
        "start": [
            *("<each once>", "<each once>", "<next to>", "<plain>", "<claim>", "<marked>", "<several>"),
            *("<space><plain><space>", "<plain><end>"),
        ],
        "plain": [gold or chain, chain, backwards, "<sum>", f"({chain})", f"<sign>{chain}", "<exact>"],
        "claim": [f"<plain> = {target}", "<plain> = <number>", f"{target} = <plain>", f"{target}", "<plain> = <plain>"],
        "marked": [
            *("$<start>$", "\\boxed{<start>}", "\\(<start>\\)", "\\[<start>\\]", "`<start>`", "**<start>**"),
            *("\\frac{<sum>}{<sum>}", "\\frac<given><given>", "\\left(<sum>\\right)", "\\sqrt{<sum>}"),
        ],
        "several": [f"<plain>{gap}<plain>" for gap in (", ", " or ", "\n", "; ", "#", " = ")],
        "sum": ["<number>", "<number><operator><sum>", "(<sum>)", "[<sum>]", "<sign><sum>", "<sum><operator><sum>"],
        "exact": [f"<sum>+({chain})*0", f"{target}+0*({chain})", f"{target}+<number>-<number>", "<sum>+1/<sum>"],
        "operator": ["+", "-", "*", "/", "<space><operator><space>", "×", "÷", "−", "<power>", ""],
        "power": ["**", "//", "^", "%", "\\times ", "\\div ", "e", "E", ".", "_", "0", "<<", "|", "="],
        "sign": ["-", "+", "~", "--", "not ", "−"],
        "number": ["<given>", str(target), "0", "1", "<joined>", "<altered>"],
        "given": [str(number) for number in dict.fromkeys(numbers)],
        "joined": [f"<given>{gap}<given>" for gap in ("", ".", ",", "e", "_", " ")],
        "altered": [
            *(text for number in dict.fromkeys(numbers) for text in _altered(number)),
            *("<given>.0", "<given>.", ".<given>", "0<given>", "<given>!", "<given>²", "<given>%", "-<given>"),
        ],
        "space": ["", " ", "\n", "\u00a0", "\\,", "\u200b", "\t"],
        "each once": [f"<{_name(range(len(numbers)))}>"],
        "next to": _next_to(numbers),
        **_arrangements(numbers),
        "end": [".", "!", ",", ";", "+", ")", "(", "\u202e", "\x00", "#<given>", " <given>"],
    }


def _next_to(numbers: Sequence[int]) -> list[str]:
    """Each number once, with a value that is as near to one of them as can be, and not it."""
    least, *others = sorted(numbers)
    rules = []
    for place, number in enumerate(others):
        rest = " * ".join(map(str, others[:place] + others[place + 1 :])) or "1"
        rules += [f"{number} {sign} {least} / ({rest})" for sign in "+-"]
    return rules or [str(least)]


def _arrangements(numbers: Sequence[int]) -> dict[str, list[str]]:
    """Every way to use each number once, right or wrong: the rule `0 2` is what can be made of the places 0 and 2."""
    rules = {_name([place]): [str(number)] for place, number in enumerate(numbers)}
    for size in range(2, len(numbers) + 1):
        rules |= {_name(used): list(_last_steps(used)) for used in combinations(range(len(numbers)), size)}
    return rules


def _last_steps(used: Sequence[int]) -> Iterator[str]:
    for size in range(1, len(used)):
        for left in combinations(used, size):
            right = [place for place in used if place not in left]
            yield from (f"{_operand(left)} {operator} {_operand(right)}" for operator in "+-*/")
            if len(used) == 2:
                yield f"<{left[0]}>.<{right[0]}>"  # a decimal of two numbers


def _operand(places: Sequence[int]) -> str:
    return f"<{_name(places)}>" if len(places) == 1 else f"(<{_name(places)}>)"


def _name(places: Sequence[int]) -> str:
    return " ".join(map(str, places))


def _altered(number: int) -> list[str]:
    """Texts that one or another library reads as the number, or that hold its digits."""
    digits = str(number)
    return [hex(number), f"{number}e0", f"1{digits}", f"{digits}0", *(digits.translate(script) for script in _SCRIPTS)]
