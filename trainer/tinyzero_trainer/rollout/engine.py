"""The protocol of a rollout engine, whichever library generates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinyzero_trainer.types import Generation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled."""

    max_tokens: int
    """Longest completion, in tokens."""

    temperature: float = 1.0
    """Divides the logits; 0 = greedy."""

    top_p: float = 1.0
    """Sample from the smallest set of tokens that has this much probability."""

    top_k: int = 0
    """Sample from the k most probable tokens; 0 = all."""

    ignore_eos: bool = False
    """Whether every completion continues to `max_tokens`."""

    logprobs: bool = False
    """Whether the log-probabilities of the sampled tokens are returned; some engines are slower with them."""


class RolloutEngine(Protocol):
    """Generates completions under the current weights."""

    def load_weights(self) -> None:
        """Take over the policy's current weights."""

    def sleep(self) -> None:
        """Free memory that can be allocated again while nothing is generated; `generate` wakes the engine up."""

    def close(self) -> None:
        """Free everything; the engine is not used again."""

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
            params: how to sample.
            seed: equal seeds, weights and prompts give equal completions.
            first: index of the first of these prompts in the whole batch; the samples of a prompt depend on its index,
                and not on which engine generates them.
            on_progress: called now and then with the number of newly finished completions; may raise to stop.

        Returns:
            For each prompt, in order, a list of `samples` completions.
        """
