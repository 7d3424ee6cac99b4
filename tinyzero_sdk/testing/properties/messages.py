"""Saying what came of a completion, in the words that all laws share."""

from tinyzero_sdk.testing.sandbox_child import Observation


def tell(seen: Observation) -> str:
    """What came of a completion, in one line."""
    if seen.fate:
        return {
            "hung": "no verdict: the scorer hung, and its process was killed",
            "died": "no verdict: the scorer's process died",
            "hung in oracle": "the oracle hung, and its process was killed",
            "died in oracle": "the oracle's process died",
        }[seen.fate]
    if seen.raised:
        return f"the scorer raised {seen.raised}"
    if seen.refused:
        return seen.refused
    if seen.answer is None:
        return f"score {seen.value:g}, no answer found"
    verdict = "correct" if seen.correct else seen.reason
    return f"score {seen.value:g}, {verdict}, for the answer {short(seen.answer)}"


def short(text: str, most: int = 60) -> str:
    """`text` in ASCII between quotes, the middle left out where it is long."""
    shown = ascii(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 20]} … {shown[-8:]} ({len(text):,} characters)"
