"""The rollout engine that runs in this process: batched, cached, and nothing to install."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.rollout.decoder import build_decoder
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.results import to_rollouts
from tinyzero_trainer.rollout.sampling import sample_tokens, streams, uniforms
from tinyzero_trainer.types import Generation

DROP_EVERY = 8
"""Steps between removals of finished sequences: copying the cache costs about as much as a step."""


class TorchEngine:
    """Generates with the policy's own model; the completions of one prompt share its prefill."""

    def __init__(self, model: PreTrainedModel, *, eos_ids: Collection[int], pad_id: int, max_num_seqs: int) -> None:
        """
        Args:
            model: the policy's model; `load_weights` is to be called when its weights have changed.
            eos_ids: every token that ends a completion.
            pad_id: any token; padding is masked.
            max_sequences: sequences generated at a time.
        """
        self._model = model
        self._decoder = build_decoder(model)
        self._device = next(model.parameters()).device
        self._eos = torch.tensor(sorted(eos_ids), device=self._device)
        self._pad_id = pad_id
        self._max_sequences = max_num_seqs

    def load_weights(self) -> None:
        """See `RolloutEngine`."""
        self._decoder.load_weights()

    def sleep(self) -> None:
        """See `RolloutEngine`; it keeps nothing between two batches."""

    def close(self) -> None:
        """See `RolloutEngine`."""

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
        """See `RolloutEngine`."""
        starts = streams(seed, torch.arange(first * samples, (first + len(prompts)) * samples, device=self._device))
        was_training = self._model.training
        self._model.eval()
        groups: list[list[Generation]] = []
        prompts_at_a_time = max(1, self._max_sequences // samples)
        try:
            with torch.inference_mode():
                for start in range(0, len(prompts), prompts_at_a_time):
                    batch = prompts[start : start + prompts_at_a_time]
                    rows = slice(start * samples, (start + len(batch)) * samples)
                    rollouts = self._generate_batch(batch, samples, params, starts[rows], on_progress)
                    groups += [rollouts[row : row + samples] for row in range(0, len(rollouts), samples)]
        finally:
            self._decoder.end()
            self._model.train(was_training)
        return groups

    def _generate_batch(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        starts: Tensor,
        on_progress: Callable[[int], None] | None,
    ) -> list[Generation]:
        rows = len(prompts) * samples
        tokens = torch.full((params.max_tokens, rows), self._pad_id, device=self._device)
        logprobs = torch.zeros((params.max_tokens, rows), device=self._device)
        lengths = torch.full((rows,), params.max_tokens, device=self._device)
        finished = torch.zeros(rows, dtype=torch.bool, device=self._device)
        active = torch.arange(rows, device=self._device)  # rows still in the decoder's batch
        logits = self._decoder.start(*self._pad_left(prompts), samples)
        for index in range(params.max_tokens):
            drawn, drawn_logprobs = sample_tokens(logits, uniforms(starts, index), params)
            tokens[index, active] = drawn
            logprobs[index, active] = drawn_logprobs
            ends = torch.isin(drawn, self._eos) & ~finished[active] & (not params.ignore_eos)
            lengths[active[ends]] = index + 1
            finished[active[ends]] = True
            if index + 1 == params.max_tokens:
                break
            if index % DROP_EVERY == DROP_EVERY - 1:
                going_on = (~finished[active]).nonzero().squeeze(1)
                if on_progress is not None:
                    on_progress(len(active) - len(going_on))
                if len(going_on) < len(active):
                    active, drawn, starts = active[going_on], drawn[going_on], starts[going_on]
                    if not len(active):
                        break
                    self._decoder.keep(going_on)
            logits = self._decoder.step(drawn)
        if on_progress is not None:
            on_progress(len(active))
        return to_rollouts(tokens, logprobs if params.logprobs else None, lengths, finished)

    def _pad_left(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Tokens and mask, both [prompts, longest]."""
        longest = max(map(len, prompts))
        tokens = [[self._pad_id] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(tokens, device=self._device), torch.tensor(mask, device=self._device)
