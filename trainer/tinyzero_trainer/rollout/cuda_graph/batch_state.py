"""What a batch in the making is, in tensors that stay where they are: graphs keep their addresses.

Each sequence owns a column of every tensor from its first token to its last. Which columns a step works on stands in
`owners`, so sequences that have ended leave the batch without anything being moved.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.sampling import sample_tokens, streams, uniforms


class State:
    """Columns for `rows` sequences, and one more that spare rows of a step write to."""

    def __init__(self, rows: int, slots: int, steps: int, eos_ids: Collection[int], device: torch.device) -> None:
        """
        Args:
            rows: sequences.
            slots: tokens of a prompt and its completion.
            steps: tokens of a completion.
            eos_ids: tokens that end one.
            device: of all tensors.
        """
        self.rows, self.slots, self.steps, self.spare = rows, slots, steps, rows
        wide = rows + 1

        def make(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.owners = make(wide)
        """[rows + 1] the column that each row of a step works on."""

        self.positions = make(wide)
        """Of each column: the slot of `token`."""

        self.token = make(wide)
        """Of each column: the last token, which a step reads."""

        self.counts = make(wide)
        """Of each column: tokens drawn."""

        self.streams = make(wide)
        """Of each column: where its random numbers start."""

        self.lengths = make(wide)
        """Of each column: tokens up to the first end token, that included."""

        self.finished = make(wide, dtype=torch.int32)
        """Of each column: 1 where an end token was drawn."""

        self.tokens = make(steps, wide)
        """[steps, rows + 1] what was drawn."""

        self.logprobs = make(steps, wide, dtype=torch.float32)
        """[steps, rows + 1] its log-probabilities."""

        self.knobs = make(2, dtype=torch.float32)
        """Temperature and top-p."""

        self.ends = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)
        """Tokens that end a completion."""

    def begin(self, lengths: Sequence[int], first: int, params: SamplingParams, seed: int) -> None:
        """Start anew, before the prompts are read.

        Args:
            lengths: of each row's prompt.
            first: number of the first row among all rows of the call.
            params: how to draw.
            seed: of the call.
        """
        rows, device = len(lengths), self.owners.device
        for column in (self.positions, self.counts, self.finished, self.token):
            column.zero_()
        self.positions[:rows] = torch.tensor(lengths, device=device) - 1
        self.streams[:rows] = streams(seed, torch.arange(first, first + rows, device=device))
        self.lengths.fill_(params.max_tokens)
        self.knobs.copy_(torch.tensor([params.temperature or 1.0, params.top_p]))

    def work_on(self, columns: Tensor | None, level: int) -> None:
        """Let a step of `level` rows work on these columns (on the CPU), and its other rows on the spare one."""
        count = 0 if columns is None else len(columns)
        if columns is not None:
            if self.owners.is_cuda:
                columns = columns.pin_memory()  # else the host would wait for the steps before
            self.owners[:count].copy_(columns, non_blocking=True)
        self.owners[count:level] = self.spare


def draw(logits: Tensor, state: State, rows: int, params: SamplingParams) -> None:
    """Draw a token for each of the first `rows` of a step, and note it.

    Args:
        logits: [rows, vocabulary].
        state: is read and written.
        rows: of the step.
        params: its temperature and top_p say whether they matter; their values are those of `state.knobs`.
    """
    owners = state.owners[:rows]
    counts, finished = state.counts[owners], state.finished[owners]
    tokens, logprobs = sample_tokens(logits, uniforms(state.streams[owners], counts), params, state.knobs)
    state.tokens.index_put_((counts, owners), tokens)
    state.logprobs.index_put_((counts, owners), logprobs)
    if not params.ignore_eos:
        ended = (tokens[:, None] == state.ends).any(dim=1)  # isin may ask the device for sizes, which no graph can
        first = ended & (finished == 0)
        state.lengths.index_put_((owners,), torch.where(first, counts + 1, state.lengths[owners]))
        state.finished.index_put_((owners,), finished | ended.int())
    state.token.index_put_((owners,), tokens)
    onward = (owners != state.spare).long()  # the spare column never gets longer, which would cost time
    state.counts.index_put_((owners,), counts + onward)
    state.positions.index_put_((owners,), state.positions[owners] + onward)
