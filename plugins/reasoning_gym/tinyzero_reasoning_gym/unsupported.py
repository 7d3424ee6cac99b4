"""Datasets of reasoning-gym that cannot be tasks, or are refused unless the user allows them, each with the reason.

Tests and `benchmarks/foreign_scorers.py` look for others in every version.
"""

_UNSTABLE = "its problems depend on the order of a set, so each process makes others"

UNSUPPORTED = {
    "codeio": _UNSTABLE,
    "composite": "it is a mixture of other datasets; use those",
    "intermediate_integration": _UNSTABLE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "word_ladder": _UNSTABLE,
}

UNSOUND = {
    "coin_flip": "its scorer takes any beginning of the right number, and so `0` for nine of ten",
    "complex_arithmetic": "its scorer takes `nan` for right everywhere",
    "game_of_life": "its scorer gives nine tenths of the marks to a board without life",
    "game_of_life_halting": "its scorer gives full marks to any answer that is not empty",
    "number_sorting": "its scorer takes numbers that are wrong by 1",
    "propositional_logic": "its scorer takes `(P ∨ Q)` for three of four, as it follows from their premises",
    "puzzle24": "its scorer takes any four numbers that make 24",
}
"""Refused unless `task.allow_unsound=true`: an answer that opens nearly every lock, or what is plainly wrong."""

FAILED_CHECKS = {
    "numbers-count": {"kakurasu"},
    "parts-count": {"kakurasu"},
    "letters-count": {"tower_of_hanoi"},
}
"""The checks of `tinyzero check` that datasets fail, with reasoning-gym 0.1.25."""

WAIVED_CHECKS = {
    "numbers-count": ("other numbers are right, too", {"graph_color"}),
    "parts-count": ("more or other parts are right, too", {"graph_color", "jugs", "knights_knaves"}),
    "order-counts": ("any order is right", {"group_anagrams", "knights_knaves", "polynomial_equations", "rubiks_cube"}),
}
"""Those that they need not pass, each with the reason."""
