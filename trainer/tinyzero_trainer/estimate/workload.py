"""What a step has to do, in tokens, by the configuration alone: as if every completion had its full length."""

from dataclasses import dataclass
from itertools import pairwise

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.parallel import SINGLE_PROCESS, ParallelDims, planned_dims
from tinyzero_trainer.estimate.constants import PROMPT_TOKENS, VLLM_SEQUENCES


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of a step."""

    prompt: int
    """Tokens of a prompt."""

    completion: int
    """Tokens of a completion."""

    completions: int
    """Of a step."""

    trained_at_a_time: int
    """Completions of a step that a rollout engine generates at a time."""

    evaluated_at_a_time: int
    """The same of an evaluation, which may be more of them."""

    mini_batches: int
    """Updates of a pass over the batch."""

    epochs: int
    """Passes over the batch."""

    micro_batch: int
    """Tokens of a forward and backward pass, on a GPU."""

    seats: int
    """Sequences at a time for which vLLM makes itself ready, whether an engine is given as many or not."""

    groups: int
    """Prompts of a step."""

    shares: int = 1
    """Parts of a mini-batch that are trained on at the same time, on GPUs of their own."""

    slices: int = 1
    """GPUs that share each sequence."""

    @property
    def sequence(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt + self.completion

    @property
    def at_a_time(self) -> int:
        """Sequences that a rollout engine has room for."""
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
        """Of a pass over the batch, on a GPU."""
        of_a_mini_batch = -(-self.completions // self.mini_batches)
        sequences = -(-of_a_mini_batch // self.shares)
        fitting = max(1, self.micro_batch * self.slices // self.sequence)
        return self.mini_batches * -(-sequences // fitting)

    @property
    def tokens_of_a_gpu(self) -> float:
        """Of a pass over the batch, those that the GPU with most of them has."""
        samples = self.completions // self.groups
        ends = [-(-place * self.groups // self.mini_batches) for place in range(self.mini_batches + 1)]
        fullest = sum(-(-(end - start) * samples // self.shares) for start, end in pairwise(ends))
        return fullest * self.sequence / self.slices


def workload_of(config: TrainConfig, prompt_tokens: int | None = None, dims: ParallelDims = SINGLE_PROCESS) -> Workload:
    """What a step of a configuration has to do.

    Args:
        config: of the run.
        prompt_tokens: of a prompt; none = `PROMPT_TOKENS`, or data.max_prompt_tokens if that is less.
        dims: over GPUs, of which each has its share; by itself it is one.
    """
    data, rollout, optimizer = config.data, config.rollout, config.optimizer
    prompt = prompt_tokens or min(PROMPT_TOKENS, data.max_prompt_tokens)
    completions = data.prompts_per_step * rollout.group_size
    most = rollout.max_num_seqs or max(completions, config.eval.num_problems)  # none: as many as fit
    if rollout.engine == "vllm" and rollout.max_num_seqs is None:
        most = min(most, VLLM_SEQUENCES)
    sequence, per_mini_batch = prompt + rollout.max_completion_tokens, -(-completions // optimizer.num_mini_batches)
    share, budget = -(-per_mini_batch // dims.data_parallel), optimizer.micro_batch_tokens * dims.sequence_parallel
    line = max(sequence, min(budget, share * sequence))  # a sequence longer than the budget goes alone
    part, evaluated = dims.largest_chunk(data.prompts_per_step), dims.largest_chunk(config.eval.num_problems)
    return Workload(
        prompt=prompt,
        completion=rollout.max_completion_tokens,
        completions=completions,
        trained_at_a_time=min(most, part * rollout.group_size),
        evaluated_at_a_time=min(most, evaluated),
        mini_batches=optimizer.num_mini_batches,
        epochs=optimizer.update_epochs,
        micro_batch=-(-line // dims.sequence_parallel),
        seats=min(most, max(completions, config.eval.num_problems)),
        groups=data.prompts_per_step,
        shares=dims.data_parallel,
        slices=dims.sequence_parallel,
    )


def workload_on(config: TrainConfig, prompt_tokens: int | None = None) -> Workload:
    """The same on the GPUs that the configuration names."""
    return workload_of(config, prompt_tokens, planned_dims(config))


def number_bytes(config: TrainConfig) -> int:
    """Bytes of a number that networks, caches and logits are computed with; `auto` is taken for bfloat16.

    Of a GPU without that see `target.on_card`.
    """
    return 4 if config.model.dtype == "float32" else 2
