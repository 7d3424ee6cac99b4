"""Words that bear on the number beside them. Data only: scorer and second opinion each use them in their own way."""

MULTIPLIERS = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words directly behind a number that multiply it. All other words there are units, which change nothing."""

NEGATIVE = frozenset({"minus", "negative"})
"""Words directly before a number that negate it; anywhere else they make an answer malformed."""

MISREAD_UNITS = frozenset({
    "k", "K", "M", "B", "bn", "mn", "mil", "x", "X", "e", "E", "i", "n", "y", "z", "pi",
    "halves", "thirds", "fourths", "fifths", "sixths", "eighths", "tenths", "hundredths", "thousandths",
})  # fmt: skip
"""What directly behind a number is no unit: a multiplier, a variable, the rest of an exponent, a denominator. Quarters
are coins, too."""

VARIABLES = frozenset("bknpqrtxyz")
"""What stands alone behind a minus or a stroke behind the number is to be computed with: `42 - x`."""

UNSAID = frozenset({
    "not", "cannot", "never", "nor", "or", "either", "neither", "except", "unless", "wrong", "incorrect",
    "false", "between", "least", "most", "instead", "unknown", "plus", "minus", "negative", "divided",
    "multiplied", "squared", "cubed", "factorial", "hundred", "thousand", "million", "billion", "trillion",
})  # fmt: skip
"""Denial, alternatives, bounds, and arithmetic still to be done: an answer with such a word is malformed."""

UNSAID_BEFORE = frozenset({
    "than", "half", "twice", "thrice", "double", "triple", "third", "quarter", "root", "sqrt", "log", "ln", "exp",
    "sin", "cos", "tan",
})  # fmt: skip
"""Words that do so before the number only: "more than 5" is no 5, "5 more than Tom" is."""

PARTS = frozenset({
    "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth", "fifths",
    "tenth", "tenths",
})  # fmt: skip
"""Words that add to the number where they stand behind it as "and a half", "and three quarters"."""
