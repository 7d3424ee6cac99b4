"""The interface of a rollout engine, whichever library generates."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from tinyzero_trainer.types import Generation


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled."""

    max_tokens: int  # longest completion
    temperature: float = 1.0  # divides the logits; 0 = greedy
    top_p: float = 1.0  # sample from the smallest set of tokens that has this much probability
    top_k: int = 0  # sample from the k most probable tokens; 0 = all
    ignore_eos: bool = False  # whether every completion continues to `max_tokens`
    logprobs: bool = False  # whether those of the sampled tokens are returned; some engines are slower with them


OnProgress = Callable[[int], None]
"""Called now and then with the number of newly finished completions, negative if a batch is repeated; may raise."""

Completions = list[list[Generation]]
"""The completions of each prompt."""

EMPTY = Generation([], [], finished=False)
"""A completion of which nothing is sampled yet."""


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and its completions: asked for, under way, or complete."""

    number: int  # its place in the order in which groups are submitted
    prompt: list[int]  # token ids, not empty
    completions: tuple[Generation, ...]  # each as far as it is sampled
    max_tokens: int  # longest completion
    seed: int
    prompt_index: int  # position of the prompt in the whole batch; seeds its samples (see `PromptBatch`)

    @property
    def complete(self) -> bool:
        return all(map(self.is_complete, self.completions))

    def is_complete(self, completion: Generation) -> bool:
        """Whether nothing of it is left to sample."""
        return completion.finished or len(completion.token_ids) == self.max_tokens


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """What to generate; equal seeds, weights and prompts give equal completions."""

    prompts: Sequence[list[int]]  # token ids, none of them empty
    samples: int  # completions of each prompt
    params: SamplingParams
    seed: int
    first: int = 0
    """Index of the first of these prompts in the whole batch: the samples of a prompt depend on its index, and not on
    which engine generates them."""

    @property
    def groups(self) -> list[Group]:
        """A group of each prompt, in their order, with nothing sampled yet."""
        nothing, limit = (EMPTY,) * self.samples, self.params.max_tokens
        return [
            Group(place, prompt, nothing, limit, self.seed, self.first + place)
            for place, prompt in enumerate(self.prompts)
        ]


class RolloutEngine(ABC):
    """Generates completions with the policy's weights; groups that are submitted may go on while these change."""

    concurrent: bool = False  # whether it samples by itself while the policy is trained; if not, within `advance`
    shares_weights: bool = False  # whether they are the policy's own tensors: nothing may be sampled while these change
    version: int = 0  # training steps that the weights have completed

    def load_weights(self, version: int = 0) -> None:
        """Take over the policy's current weights, which have completed `version` training steps."""
        self.version = version

    @abstractmethod
    def submit(self, groups: Sequence[Group]) -> None:
        """Start these groups, or continue them, as soon as there is room; those submitted first come first."""

    @abstractmethod
    def advance(self, params: SamplingParams, on_progress: OnProgress) -> Sequence[Group]:
        """Sample some more tokens of the submitted groups; returns those that are complete now, perhaps none.

        Each group's own `max_tokens` counts, not that of `params`. An error raised by `on_progress` loses nothing.
        """

    @abstractmethod
    def unfinished(self) -> Sequence[Group]:
        """The submitted groups that `advance` has not returned, as far as they are sampled; their sampling goes on."""

    @abstractmethod
    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        """What `generate` returns, while groups submitted before wait; an error raised by `on_progress` ends it."""

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        on_progress: OnProgress = lambda _: None,
    ) -> Completions:
        """`samples` completions of each prompt, in the order of the prompts; see `PromptBatch`."""
        return self.generate_batch(PromptBatch(prompts, samples, params, seed), on_progress)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block, nothing is sampled; an engine that samples only within `advance` has nothing to do."""
        yield

    def sleep(self) -> None:  # noqa: B027  # some have nothing to free
        """Free memory that can be allocated again while nothing is generated; `advance` wakes the engine up."""

    def close(self) -> None:  # noqa: B027
        """Free everything; the engine is not used again."""


class SamplingEngine(RolloutEngine):
    """An engine that samples itself rather than passing groups on to others."""

    @abstractmethod
    def isolated(self) -> AbstractContextManager[None]:
        """Inside the block, groups submitted before it wait; groups submitted inside it are dropped at its end."""

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        if not batch.samples:
            return [[] for _ in batch.prompts]
        complete = dict[int, Group]()
        with self.isolated():
            self.submit(batch.groups)
            while len(complete) < len(batch.prompts):
                complete |= {group.number: group for group in self.advance(batch.params, on_progress)}
        return [
            [replace(completion, versions=()) for completion in complete[number].completions]
            for number in range(len(batch.prompts))
        ]
