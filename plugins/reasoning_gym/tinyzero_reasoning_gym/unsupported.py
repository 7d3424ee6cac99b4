"""Datasets of reasoning-gym that cannot be tasks, each with the reason. A test looks for others in every version."""

_UNSTABLE = "its problems depend on the order of a set, so each process makes others"

UNSUPPORTED = {
    "codeio": _UNSTABLE,
    "composite": "it is a mixture of other datasets; use those",
    "game_of_life_halting": "its scorer gives full marks to any answer that is not empty",
    "intermediate_integration": _UNSTABLE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "word_ladder": _UNSTABLE,
}
