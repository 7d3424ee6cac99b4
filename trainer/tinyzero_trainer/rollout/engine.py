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


OnProgress = Callable[[int], None]
"""Called now and then with the number of newly finished completions, negative if a batch is repeated; may raise."""

Groups = list[list[Generation]]
"""The completions of each prompt."""


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """What to generate."""

    prompts: Sequence[list[int]]
    """Token ids, none of them empty."""

    samples: int
    """Completions of each prompt."""

    params: SamplingParams

    seed: int
    """Equal seeds, weights and prompts give equal completions."""

    first: int = 0
    """Index of the first of these prompts in the whole batch; the samples of a prompt depend on its index, and not on
    which engine generates them."""


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and its completions: asked for, under way, or complete."""

    number: int
    """Place in the order in which groups are submitted; identifies it."""

    prompt: list[int]
    """Token ids, not empty."""

    completions: tuple[Generation, ...]
    """As far as they are sampled."""

    max_tokens: int
    """Longest completion, in tokens."""

    seed: int
    first: int
    """Index of the prompt among those of the same seed: see `PromptBatch`."""

    @property
    def complete(self) -> bool:
        return all(map(self.is_complete, self.completions))

    def is_complete(self, completion: Generation) -> bool:
        """Whether nothing of it is left to sample."""
        return completion.finished or len(completion.token_ids) == self.max_tokens


NOTHING = Generation([], [], finished=False)
"""A completion that is not begun."""


class RolloutEngine(Protocol):
    """Generates completions under the current weights; an engine implements all methods but `generate`."""

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
        on_progress: OnProgress = lambda _: None,
    ) -> Groups:
        """`samples` completions of each prompt, in the order of the prompts; see `PromptBatch`."""
        return self.generate_batch(PromptBatch(prompts, samples, params, seed), on_progress)

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Groups:
        """What `generate` returns; an error raised by `on_progress` ends it."""


class AsyncEngine(RolloutEngine, Protocol):
    """An engine whose completions go on while the weights change, for `rollout.max_async_level`.

    `generate` may be called in between. Engines that cannot are put into a `AsyncBatchEngine` (async_batch_engine.py).
    """

    concurrent: bool
    """Whether it samples on by itself, also while the policy is trained; if not, only within `advance`."""

    def load_weights(self, version: int = 0) -> None:
        """Take over the policy's current weights, which have completed `version` training steps."""

    def submit(self, groups: Sequence[Group]) -> None:
        """Start these groups, or continue them, as soon as there is room; those submitted first come first."""

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> Sequence[Group]:
        """Sample some more tokens of what was submitted; the groups that are complete now, perhaps none.

        The limits of lengths are those of the groups. An error raised by `on_progress` loses nothing.
        """

    def unfinished(self) -> Sequence[Group]:
        """What was submitted and not returned by `advance`, as far as it is sampled; it goes on."""
