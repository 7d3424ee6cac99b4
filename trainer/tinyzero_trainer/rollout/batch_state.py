"""The state of a batch that is being generated, in tensors that keep their addresses, as CUDA graphs require.

Each sequence owns a slot of every tensor from its first token to its last. `slot_ids` says which slot each row of a
step works on, so finished sequences leave the batch without anything being moved.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.sampling import sample_tokens, streams, uniforms
from tinyzero_trainer.types import Generation


class BatchState:
    """Slots for a number of sequences, and a spare one that padding rows of a step write to."""

    def __init__(self, slots: int, max_tokens: int, eos_ids: Collection[int], device: torch.device) -> None:
        self.slots, self.max_tokens, self.spare = slots, max_tokens, slots
        size = slots + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.slot_ids = zeros(size)
        """[slots + 1] the slot that each row of a step works on."""

        self.positions = zeros(size)
        """[slots + 1] the cache position of `last_token`."""

        self.last_token = zeros(size)
        """[slots + 1] the token that a step reads."""

        self.counts = zeros(size)
        """[slots + 1] number of sampled tokens."""

        self.streams = zeros(size)
        """[slots + 1] where the slot's random numbers start."""

        self.lengths = zeros(size)
        """[slots + 1] number of tokens up to and including the first end token."""

        self.finished = zeros(size, dtype=torch.int32)
        """[slots + 1] 1 after an end token was sampled."""

        self.tokens = zeros(max_tokens, size)
        """[max tokens, slots + 1] the sampled tokens."""

        self.logprobs = zeros(max_tokens, size, dtype=torch.float32)
        """[max tokens, slots + 1] their log-probabilities."""

        self.knobs = zeros(2, dtype=torch.float32)
        """Temperature and top-p."""

        self.eos_ids = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)

    def reset(self, prompt_lengths: Sequence[int], first: int, params: SamplingParams, seed: int) -> None:
        """Prepare for another batch, before its prompts are read; `first` is its first row's index in the call."""
        rows, device = len(prompt_lengths), self.slot_ids.device
        for tensor in (self.positions, self.counts, self.finished, self.last_token):
            tensor.zero_()
        self.positions[:rows] = torch.tensor(prompt_lengths, device=device) - 1  # sampling advances it
        self.streams[:rows] = streams(seed, torch.arange(first, first + rows, device=device))
        self.lengths.fill_(params.max_tokens)
        self.knobs.copy_(torch.tensor([params.temperature or 1.0, params.top_p]))

    def set_rows(self, slots: Tensor, rows: int) -> None:
        """Let a step of `rows` rows work on these slots (a CPU tensor), and its other rows on the spare one."""
        if self.slot_ids.is_cuda:
            slots = slots.pin_memory()  # else the host would wait for the steps before
        self.slot_ids[: len(slots)].copy_(slots, non_blocking=True)
        self.slot_ids[len(slots) : rows] = self.spare

    def sample(self, logits: Tensor, rows: int, params: SamplingParams) -> None:
        """Sample a token for each row of the step, and record it.

        Args:
            logits: [rows, vocabulary].
            params: decides whether temperature and top-p apply; their values are read from `knobs`.
        """
        ids = self.slot_ids[:rows]
        counts, finished = self.counts[ids], self.finished[ids]
        tokens, logprobs = sample_tokens(logits, uniforms(self.streams[ids], counts), params, self.knobs)
        self.tokens.index_put_((counts, ids), tokens)
        self.logprobs.index_put_((counts, ids), logprobs)
        if not params.ignore_eos:
            # Not isin, which may ask the device for sizes; a graph cannot.
            ended = (tokens[:, None] == self.eos_ids).any(dim=1)
            first = ended & (finished == 0)
            self.lengths.index_put_((ids,), torch.where(first, counts + 1, self.lengths[ids]))
            self.finished.index_put_((ids,), finished | ended.int())
        self.last_token.index_put_((ids,), tokens)
        onward = (ids != self.spare).long()  # the spare sequence never grows, which would cost time
        self.counts.index_put_((ids,), counts + onward)
        self.positions.index_put_((ids,), self.positions[ids] + onward)

    def generations(self, rows: int, params: SamplingParams) -> list[Generation]:
        """The completions in the first `rows` slots."""
        tokens, logprobs = (tensor[: params.max_tokens, :rows].T for tensor in (self.tokens, self.logprobs))
        lengths = self.lengths[:rows]
        # One list of all valid tokens, then slices of it: converting the padding as well would take longer.
        valid = torch.arange(params.max_tokens, device=tokens.device) < lengths[:, None]  # [rows, max tokens]
        ids = tokens[valid].tolist()
        values = logprobs[valid].tolist() if params.logprobs else None
        found, start = [], 0
        for length, finished in zip(lengths.tolist(), self.finished[:rows].tolist(), strict=True):
            end = start + length
            found.append(Generation(ids[start:end], None if values is None else values[start:end], bool(finished)))
            start = end
        return found
