"""What the loop asks of a rollout engine, whichever library generates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinyzero_trainer.types import Generation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn."""

    max_tokens: int
    """Longest completion, in tokens."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token each time."""

    top_p: float = 1.0
    """Draw from the smallest set of tokens that holds this much probability."""

    top_k: int = 0
    """Draw from the k likeliest tokens; 0 = all."""

    ignore_eos: bool = False
    """Whether every completion goes on to `max_tokens`."""

    logprobs: bool = False
    """Whether the log-probabilities of the tokens drawn are wanted; some engines are slower with them."""


class RolloutEngine(Protocol):
    """Generates completions under the current weights."""

    def load_weights(self) -> None:
        """Take over the policy's weights as they are now."""

    def sleep(self) -> None:
        """Nothing will be generated for a while: give back what memory can be had again; `generate` wakes it up."""

    def close(self) -> None:
        """Give back everything; the engine is not used again."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        """`samples` completions of each prompt.

        Args:
            prompts: token ids, none of them empty.
            samples: completions of each.
            params: how to draw.
            seed: equal seeds, weights and prompts give equal completions.
            first: number of the first of these prompts in the batch that they are a part of; what is drawn for a
                prompt depends on its number, and not on which engine draws it.
            on_progress: called now and then with the number of completions newly finished; may raise to stop.

        Returns:
            One list of `samples` rollouts a prompt, in order.
        """
