"""What a step has to do, in tokens, by the configuration alone: as if every completion had its full length."""

from dataclasses import dataclass

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan.constants import PROMPT_TOKENS


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of a step."""

    prompt: int
    """Tokens of a prompt."""

    completion: int
    """Tokens of a completion."""

    completions: int
    """Of a step."""

    at_a_time: int
    """Sequences that the rollout engine holds at a time, in training or in evaluation."""

    mini_batches: int
    """Updates of a step, all passes over the batch counted."""

    micro_batch: int
    """Tokens of a forward and backward pass."""

    @property
    def sequence(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt + self.completion

    @property
    def trained_at_a_time(self) -> int:
        """Sequences of a step that the rollout engine holds at a time; an evaluation may bring more of them."""
        return min(self.at_a_time, self.completions)

    @property
    def tokens(self) -> int:
        """Of a step's sequences."""
        return self.completions * self.sequence

    @property
    def share(self) -> float:
        """Of the tokens, those that are generated."""
        return self.completion / self.sequence

    @property
    def accumulates(self) -> bool:
        """Whether a mini-batch takes several micro-batches."""
        return self.per_mini_batch > self.micro_batch

    @property
    def per_mini_batch(self) -> int:
        """Tokens of an update."""
        return -(-self.tokens // self.mini_batches)


def work_of(config: TrainConfig, prompt_tokens: int | None = None) -> Work:
    """What a step of a configuration has to do.

    Args:
        config: of the run.
        prompt_tokens: of a prompt; none = `PROMPT_TOKENS`, or data.max_prompt_tokens if that is less.
    """
    data, rollout, optimizer = config.data, config.rollout, config.optimizer
    prompt = prompt_tokens or min(PROMPT_TOKENS, data.max_prompt_tokens)
    completions = data.prompts_per_step * rollout.samples_per_prompt
    most = rollout.max_sequences or max(completions, config.eval.size)  # none: as many as fit
    groups = max(most, rollout.samples_per_prompt)
    sequence, per_mini_batch = prompt + rollout.max_tokens, -(-completions // optimizer.mini_batches)
    return Work(
        prompt=prompt,
        completion=rollout.max_tokens,
        completions=completions,
        at_a_time=max(min(groups, completions), min(most, config.eval.size)),
        mini_batches=optimizer.mini_batches,
        # A sequence longer than the budget goes alone.
        micro_batch=max(sequence, min(optimizer.micro_batch_tokens, per_mini_batch * sequence)),
    )
