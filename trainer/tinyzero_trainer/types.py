"""What flows through the training loop, from a problem to a scored completion. No torch in here."""

from collections.abc import Sequence
from dataclasses import dataclass

from tinyzero_sdk import Item, Score

EXAMPLE = Score(1.0, True)
"""The score of an example of supervised fine-tuning, whether it is right or not; recognised by identity."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the model sees it."""

    item: Item
    text: str  # the prompt as text, after the chat template
    token_ids: list[int]  # the prompt as tokens, never empty
    task: str = ""  # what the run calls its task
    bucket: int = 0  # bucket of difficulty that a curriculum drew it from


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled completion."""

    token_ids: Sequence[int]
    """Generated tokens, the end token included where there is one; never empty. Engines give arrays."""

    logprobs: Sequence[float] | None
    """log π of each token as the engine has it (temperature applied, but neither top-p nor top-k); None = not asked."""

    finished: bool  # false if the token limit cut it off, or if it is still under way
    versions: tuple[tuple[int, int], ...] = ()
    """Which weights sampled it: (training steps completed by them, number of tokens), in order. Only where weights may
    change meanwhile (`rollout.max_async_level`)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A completion with its text and its score."""

    prompt: Prompt
    generation: Generation
    text: str  # without special tokens
    score: Score  # `EXAMPLE` if it was not sampled
    advantage: float | None = None  # mean over its tokens; None unless it was trained on
    entropies: Sequence[float] | None = None
    """The policy's entropy at each token, as the update computed it; None unless it was trained on."""
