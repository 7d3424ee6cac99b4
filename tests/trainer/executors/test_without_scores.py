"""Completions as they reach the ranks."""

import pickle
from dataclasses import replace

import torch

from tests.trainer.samples import make_rollout, masked
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.executors.ray.remote_workers import without_scores
from tinyzero_trainer.training.micro_batches import micro_batches

CPU = torch.device("cpu")


def test_they_make_the_same_micro_batches() -> None:
    rollouts = [make_rollout([1, 2, 3][: 1 + place % 3], list(range(1 + place))) for place in range(6)] * 2
    rollouts[3] = masked(rollouts[3])
    batch = TrainingBatch.of(rollouts, 2, advantages=torch.arange(sum(len(r.generation.token_ids) for r in rollouts)))
    received = pickle.loads(pickle.dumps(replace(batch, rollouts=without_scores(rollouts))))
    parts = [list(each.mini_batches(2, 1)) for each in (batch, received)]
    for one, other in zip(*parts, strict=True):
        assert one.indices == other.indices
        for layout, share in (("padded", False), ("packed", False), ("packed", True)):
            made = [
                list(
                    micro_batches(
                        part.rollouts, token_budget=12, pad_id=0, device=CPU, layout=layout, share_prompts=share
                    )
                )
                for part in (one, other)
            ]
            for mine, theirs in zip(*made, strict=True):
                assert mine.indices == theirs.indices
                assert torch.equal(mine.tokens, theirs.tokens)
                assert torch.equal(mine.targets, theirs.targets)
                assert torch.equal(mine.predicts, theirs.predicts)
