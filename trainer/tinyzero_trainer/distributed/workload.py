"""What a step has to do, in tokens, from the configuration alone, with every completion at full length."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.kinds import find_engine
from tinyzero_trainer.utils.bounds import unless_auto

PROMPT_TOKENS = 256
"""Length of a prompt, where nothing better is known."""

PIECES = 8
"""Pieces of groups in a rank's share of a mini-batch, at least about; see training/micro_batches.py."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of a step; `prompt` and `completion` in tokens."""

    prompt: int
    completion: int
    completions: int
    trained_at_a_time: int
    """Completions of a step that a rollout engine generates at a time."""

    evaluated_at_a_time: int
    """Completions of an evaluation that it generates at a time, which may be more."""

    mini_batches: int
    """Updates in a pass over the batch, of which there are `epochs`."""

    epochs: int
    micro_batch: int
    """Tokens of a forward and backward pass on a GPU."""

    max_num_seqs: int
    """Sequences that vLLM prepares for, whether an engine is given that many or not."""

    prompts: int

    data_parallel: int
    """Shards of a mini-batch that are trained on at the same time."""

    sequence_parallel: int
    """GPUs that share each sequence."""

    shares_prompts: bool
    """Whether the completions of a prompt share it in the update."""

    @property
    def sequence(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt + self.completion

    @property
    def at_a_time(self) -> int:
        """Sequences that a rollout engine has capacity for."""
        return max(self.trained_at_a_time, self.evaluated_at_a_time)

    @property
    def tokens(self) -> int:
        """All tokens of a step, prompts included."""
        return self.completions * self.sequence

    @property
    def accumulates(self) -> bool:
        """Whether gradients add up over micro-batches, as the trainer decides before it splits a mini-batch."""
        groups = -(-self.prompts // self.mini_batches)
        tokens = groups * (self.completions // self.prompts) * self.sequence
        return tokens > self.micro_batch * self.sequence_parallel * self.data_parallel

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a pass over the batch, on a GPU."""
        return sum(count for count, _ in self._split())

    @property
    def tokens_of_a_gpu(self) -> float:
        """Tokens of a pass over the batch on the GPU with most of them."""
        return sum(tokens for _, tokens in self._split()) / self.sequence_parallel

    def _split(self) -> Iterator[tuple[int, int]]:
        """Micro-batches and tokens of the fullest GPU, for each mini-batch, which has whole groups."""
        budget, group_size = self.micro_batch * self.sequence_parallel, self.completions // self.prompts
        shared = self.prompt - 1 if self.shares_prompts else 0  # the last token of a prompt is each completion's own
        ends = [-(-place * self.prompts // self.mini_batches) for place in range(self.mini_batches + 1)]
        for groups in (end - start for start, end in pairwise(ends)):
            completions = -(-groups * group_size // self.data_parallel)
            parts = 1 if self.data_parallel == 1 else max(1, round(PIECES * self.data_parallel / groups))
            yield _pack(completions, group_size, -(-group_size // parts), self.sequence, shared, budget)


@cache  # a plan predicts hundreds of configurations
def _pack(completions: int, group_size: int, piece: int, sequence: int, shared: int, budget: int) -> tuple[int, int]:
    """Micro-batches and tokens of groups in pieces that share so many, as training/micro_batches.py splits them."""
    count = total = row = keys = joined = 0
    for place in range(completions):
        joined = joined if place % group_size % piece else 0
        tokens, seen = sequence - shared * (joined > 0), sequence + shared * (joined == 1)
        if not count or row + tokens > budget or keys + seen > 2 * budget:
            count, row, keys, joined, tokens, seen = count + 1, 0, 0, 0, sequence, sequence
        total, row, keys, joined = total + tokens, row + tokens, keys + seen, joined + 1
    return count, total


def workload_of(config: TrainConfig, prompt_tokens: int | None = None) -> Workload:
    """What a step has to do; `prompt_tokens` = None is `PROMPT_TOKENS`, or data.max_prompt_tokens if that is less."""
    data, rollout, optimizer, dims = config.data, config.rollout, config.optimizer, planned_dims(config)
    prompt = prompt_tokens or min(PROMPT_TOKENS, data.max_prompt_tokens)
    completions = data.prompts_per_step * rollout.group_size
    kind = find_engine(rollout.engine)
    groups = data.prompts_per_step * (1 + rollout.max_async_level if kind.continuous else 1)
    all_sequences = max(groups * rollout.group_size, config.eval.num_problems)
    most = unless_auto(rollout.max_num_seqs) or min(all_sequences, kind.max_sequences or all_sequences)
    sequence = prompt + rollout.max_completion_tokens
    per_mini_batch = -(-data.prompts_per_step // optimizer.num_mini_batches) * rollout.group_size
    shard, budget = -(-per_mini_batch // dims.data_parallel), optimizer.token_budget * dims.sequence_parallel
    row = max(sequence, min(budget, shard * sequence))  # a sequence longer than the budget goes alone
    return Workload(
        prompt=prompt,
        completion=rollout.max_completion_tokens,
        completions=completions,
        trained_at_a_time=min(most, dims.largest_chunk(groups) * rollout.group_size),
        evaluated_at_a_time=min(most, dims.largest_chunk(config.eval.num_problems)),
        mini_batches=optimizer.num_mini_batches,
        epochs=optimizer.update_epochs,
        micro_batch=-(-row // dims.sequence_parallel),
        max_num_seqs=min(most, all_sequences),
        prompts=data.prompts_per_step,
        data_parallel=dims.data_parallel,
        sequence_parallel=dims.sequence_parallel,
        # A packed row needs a kernel for attention, or one made of plain operations, as sequence parallelism has it.
        shares_prompts=optimizer.packing != "padded" and (number_bytes(config) == 2 or dims.sequence_parallel > 1),
    )


def number_bytes(config: TrainConfig) -> int:
    """Bytes of a number in networks, caches and logits; `auto` counts as bfloat16, see `advisor.target_gpu.on_gpu`."""
    return 4 if config.model.dtype == "float32" else 2


def cache_number_bytes(config: TrainConfig) -> int:
    """Bytes of a number in the KV cache on a GPU."""
    return 1 if config.rollout.kv_cache_dtype else number_bytes(config)
