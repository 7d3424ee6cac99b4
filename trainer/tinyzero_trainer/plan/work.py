"""What a step has to do, in tokens, by the configuration alone: as if every completion had its full length."""

from dataclasses import dataclass

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan.constants import PROMPT_TOKENS, VLLM_SEQUENCES


@dataclass(frozen=True, slots=True)
class Work:
    """Sizes of a step."""

    prompt: int
    """Tokens of a prompt."""

    completion: int
    """Tokens of a completion."""

    completions: int
    """Of a step."""

    trained_at_a_time: int
    """Completions of a step that the rollout engine generates at a time."""

    evaluated_at_a_time: int
    """The same of an evaluation, which may be more of them."""

    mini_batches: int
    """Updates of a pass over the batch."""

    epochs: int
    """Passes over the batch."""

    micro_batch: int
    """Tokens of a forward and backward pass."""

    @property
    def sequence(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt + self.completion

    @property
    def at_a_time(self) -> int:
        """Sequences that the rollout engine has room for."""
        return max(self.trained_at_a_time, self.evaluated_at_a_time)

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
        return self.micro_batches > self.mini_batches

    @property
    def micro_batches(self) -> int:
        """Of a pass over the batch."""
        sequences, fitting = -(-self.completions // self.mini_batches), self.micro_batch // self.sequence
        return self.mini_batches * -(-sequences // fitting)


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
    if rollout.engine == "vllm" and rollout.max_sequences is None:
        most = min(most, VLLM_SEQUENCES)
    sequence, per_mini_batch = prompt + rollout.max_tokens, -(-completions // optimizer.mini_batches)
    return Work(
        prompt=prompt,
        completion=rollout.max_tokens,
        completions=completions,
        trained_at_a_time=min(most, completions),
        evaluated_at_a_time=min(most, config.eval.size),
        mini_batches=optimizer.mini_batches,
        epochs=optimizer.epochs,
        # A sequence longer than the budget goes alone.
        micro_batch=max(sequence, min(optimizer.micro_batch_tokens, per_mini_batch * sequence)),
    )


def number_bytes(config: TrainConfig) -> int:
    """Bytes of a number that networks, caches and logits are computed with; `auto` is taken for bfloat16.

    Of a card without that see `target.on_card`.
    """
    return 4 if config.model.dtype == "float32" else 2
