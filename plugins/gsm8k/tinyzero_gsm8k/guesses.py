"""Answers to an item, right and wrong ones, as a grammar: where a fuzzer starts its search."""

from collections.abc import Sequence


def rules(result: str) -> dict[str, Sequence[str]]:
    """The rules for the item whose result this is; see `docs/reference/hooks.md` for their form."""
    return {
        "answer": [
            "<number>", "<money><number>", "-<number>", "<number> <unit>", "<number><unit>", "<said> <number> <unit>.",
            "<number>/<number>", "<small> <small>/<small>", "<number>e<small>", "<number> × 10^<small>",
            r"\boxed{<number>}", r"\text{<number> <unit>}", r"\frac{<number>}{<small>}", "**<number>**", "(<number>)",
            "<number> <joint> <number>", "<number> = <number>", "#### <number>", "<number>%",
        ],
        "number": [
            result, f"{result}.", f"{result}.0", f"{result}.00", f"0{result}", f"{result}1", "<small>",
            "<small>,<three>",
        ],
        "small": ["0", "1", "2", "3", "10", "12"],
        "three": ["000", "042", "00", "5000"],
        "money": ["$", r"\$", "€", "US$", "-$", "$-", "$ "],
        "unit": ["dollars", "apples", "km/h", "%", "million", "k", "x", "cm^2", "and a half", "e", "°", "!", "?",
            "point five", "dozen", "apples left", "in total", "times seven", "and fifty cents",
        ],
        "said": [
            "The answer is", "So she has", "not", "minus", "more than", "x =", "about", "either", "half of", "Total:",
            "under", "no", "square of", "forty", "The total cost is", "I doubt",
        ],
        "joint": ["or", "and", "+", "-", "*", "^", ",", "to", "/", ""],
    }  # fmt: skip
