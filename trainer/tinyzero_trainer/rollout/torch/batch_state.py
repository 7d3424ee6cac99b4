"""The state of sequences that are being generated, in tensors that keep their addresses, as CUDA graphs require.

Each sequence owns a slot of every tensor from its first token to its last. `slot_ids` says which slot each row of a
step works on, so sequences leave the batch, and others take their slots, without anything being moved.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.torch.sampling import sample_tokens, streams, uniforms
from tinyzero_trainer.rollout.torch.scheduler import Request, Sampled


class BatchState:
    """Slots for a number of sequences, and a spare one that padding rows of a step write to."""

    def __init__(self, slots: int, max_tokens: int, eos_ids: Collection[int], device: torch.device) -> None:
        self.slots, self.max_tokens, self.spare = slots, max_tokens, slots
        size = slots + 1

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.slot_ids = zeros(size)  # the slot that each row of a step works on
        # Of each slot:
        self.positions = zeros(size)  # the cache position of `last_token`
        self.last_token = zeros(size)  # the token that a step reads
        self.counts = zeros(size)  # number of sampled tokens
        self.streams = zeros(size)  # where its random numbers start
        self.lengths = zeros(size)  # tokens with the end token; before it is sampled, the most there may be
        self.finished = zeros(size, dtype=torch.int32)  # 1 after an end token was sampled
        self.prefix_slots = zeros(size)  # a slot whose cache begins with the same keys and values, perhaps itself,
        self.prefix_lengths = zeros(size)  # for so many positions
        self.tokens = zeros(max_tokens, size)  # [max tokens, slots + 1] the sampled tokens
        self.logprobs = zeros(max_tokens, size, dtype=torch.float32)  # their log-probabilities
        self.knobs = zeros(2, dtype=torch.float32)  # temperature and top-p
        self.eos_ids = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)
        self._given_knobs: tuple[float, float] | None = None

    def clear(self) -> None:
        """Nothing is in a slot any more."""
        for tensor in (self.positions, self.counts, self.finished, self.last_token, self.prefix_lengths):
            tensor.zero_()
        self.prefix_slots.copy_(torch.arange(self.slots + 1))

    def set_params(self, params: SamplingParams) -> None:
        """Let the next steps sample with these values."""
        knobs = (params.temperature or 1.0, params.top_p)
        if knobs != self._given_knobs:  # copying them waits for the steps before
            self.knobs.copy_(torch.tensor(knobs))
            self._given_knobs = knobs

    def enter(self, entering: Sequence[Request]) -> None:
        """Prepare the slots of sequences, before their contexts are read."""
        starts = torch.empty(len(entering), dtype=torch.long)
        for seed in {request.group.seed for request in entering}:
            places = [place for place, request in enumerate(entering) if request.group.seed == seed]
            starts[places] = streams(seed, torch.tensor([entering[place].row for place in places]))
        columns = torch.tensor(
            [
                # Sampling advances the position.
                (request.slot, len(request.group.prompt) + request.begun - 1, request.begun, request.group.max_tokens)
                for request in entering
            ]
        ).T
        slots, *values = to_device(torch.cat([columns, starts[None]]), self.slot_ids.device)
        for tensor, column in zip((self.positions, self.counts, self.lengths, self.streams), values, strict=True):
            tensor.index_put_((slots,), column)
        self.finished.index_put_((slots,), torch.zeros_like(slots, dtype=torch.int32))

    def share_prefixes(self, slots: Tensor, firsts: Tensor, lengths: Tensor) -> None:
        """Say of slots [n] that begin anew what they have in common.

        Args:
            slots: that begin.
            firsts: the first of the slots that have the same context, read at the same time.
            lengths: of the contexts.
        """
        own = torch.arange(self.slots + 1, device=slots.device)
        # Those that shared with a slot that begins anew go on with the first that is left.
        left = own.index_fill(0, slots, self.slots + 1)
        remaining = torch.full_like(own, self.slots + 1).scatter_reduce_(0, self.prefix_slots, left, "amin")
        self.prefix_slots.copy_(remaining[self.prefix_slots])
        self.prefix_slots.index_put_((slots,), firsts)
        self.prefix_lengths.index_put_((slots,), lengths)

    def set_rows(self, slots: Tensor, rows: int) -> None:
        """Let a step of `rows` rows work on these slots (a CPU tensor), and its other rows on the spare one."""
        self.slot_ids[: len(slots)] = to_device(slots, self.slot_ids.device)
        self.slot_ids[len(slots) : rows] = self.spare

    def sample(self, logits: Tensor, rows: int, params: SamplingParams) -> None:
        """Sample a token for each row of the step, and record it.

        Args:
            logits: [rows, vocabulary].
            params: decides whether temperature and top-p apply; their values are read from `knobs`.
        """
        ids = self.slot_ids[:rows]
        counts = self.counts[ids]
        going = counts < self.lengths[ids]  # a sequence that has ended stays as it is
        tokens, logprobs = sample_tokens(logits, uniforms(self.streams[ids], counts), params, self.knobs)
        places = counts.clamp(max=self.max_tokens - 1), ids
        self.tokens.index_put_(places, torch.where(going, tokens, self.tokens[places]))
        self.logprobs.index_put_(places, torch.where(going, logprobs, self.logprobs[places]))
        self.last_token.index_put_((ids,), torch.where(going, tokens, self.last_token[ids]))
        if not params.ignore_eos:
            # Not isin, which may ask the device for sizes; a graph cannot.
            ended = going & (tokens[:, None] == self.eos_ids).any(dim=1)
            self.lengths.index_put_((ids,), torch.where(ended, counts + 1, self.lengths[ids]))
            self.finished.index_put_((ids,), self.finished[ids] | ended.int())
        self.counts.index_put_((ids,), counts + going)
        self.positions.index_put_((ids,), self.positions[ids] + going)

    def read(self, requests: Sequence[Request], *, logprobs: bool) -> Callable[[], Sampled]:
        """Start to copy what is in the slots of sequences; returns a function that waits for the copies."""
        slots = to_device(torch.tensor([request.slot for request in requests]), self.slot_ids.device)
        sampled = [self.tokens, self.logprobs] if logprobs else [self.tokens]
        copies = [copy_to_host(tensor[:, slots].T) for tensor in sampled]  # each [slots, max tokens]
        ends = copy_to_host(torch.stack([self.counts[slots], self.finished[slots]]))
        return partial(_sampled, [request.begun for request in requests], ends, copies)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device, without waiting for what the device does."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def copy_to_host(tensor: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor as it is now; returns a function that waits for the copy."""
    if not tensor.is_cuda:
        copy = tensor.clone()
        return lambda: copy
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def result() -> Tensor:
        event.synchronize()
        return copy

    return result


def _sampled(begun: Sequence[int], ends: Callable[[], Tensor], copies: Sequence[Callable[[], Tensor]]) -> Sampled:
    stops, finished = ends().tolist()
    tokens, *logprobs = (
        copy().numpy().astype(dtype) for copy, dtype in zip(copies, (np.int32, np.float64), strict=False)
    )
    # Lists of a million tokens would take 60 ms.
    return [
        (
            array("i", tokens[row, start:stop].tobytes()),
            array("d", logprobs[0][row, start:stop].tobytes()) if logprobs else None,
            bool(finished[row]),
        )
        for row, (start, stop) in enumerate(zip(begun, stops, strict=True))
    ]
