"""Outcomes as text, for the messages of all properties."""

from tinyzero_sdk.testing.sandbox_child import Outcome


def describe(outcome: Outcome) -> str:
    """An outcome in one line."""
    if outcome.exit_status:
        return {
            "hung": "no score: the scorer hung, and its process was killed",
            "died": "no score: the scorer's process died",
            "hung in oracle": "the oracle hung, and its process was killed",
            "died in oracle": "the oracle's process died",
        }[outcome.exit_status]
    if outcome.raised:
        return f"the scorer raised {outcome.raised}"
    if outcome.refused:
        return outcome.refused
    if outcome.answer is None:
        return f"score {outcome.value:g}, no answer found"
    status = "correct" if outcome.correct else outcome.reason
    return f"score {outcome.value:g}, {status}, for the answer {short(outcome.answer)}"


def short(text: str, most: int = 60) -> str:
    """`text` in ASCII between quotes; the middle of a long one is left out."""
    shown = ascii(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 20]} … {shown[-8:]} ({len(text):,} characters)"
