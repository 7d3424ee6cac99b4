"""A completion whose scorer failed is masked."""

from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_sdk import Item, Score
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_trainer.rewards.score import score
from tinyzero_trainer.types import Generation, Prompt

SCORES = [
    Score(0.0, False, "error"),
    Score(0.0, False, "timeout"),
    Score(-10.0, False, "wrong"),
    Score(0.0, False, "no_answer"),
    Score(1.0, True),
    Score(-1.0, False, "wrong", masked=True),
]


def test_a_completion_whose_scorer_failed_is_masked_and_keeps_its_score() -> None:
    """Its 0 would be a good score where shaping makes those of wrong answers negative."""
    pool = SimpleNamespace(score=lambda completions, truths, groups: SCORES, first_error=None)
    tokenizer = SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: [""] * len(ids))
    rollouts = [(Prompt(Item(None), "", [1], "toy"), Generation([2], None, True)) for _ in SCORES]
    pools: Any = {"toy": pool}
    samples = score(rollouts, tokenizer, pools, group_size=6, max_failure_rate=2 / 6)  # type: ignore[arg-type]
    assert [sample.score.masked for sample in samples] == [True, True, False, False, False, True]
    assert [sample.score.value for sample in samples] == pytest.approx([found.value for found in SCORES])
    assert [sample.score.reason for sample in samples] == [found.reason for found in SCORES]
    with pytest.raises(BrokenTaskError, match=r"failed on 2 of 6 completions .*at most reward.max_failure_rate=0\.3:"):
        score(rollouts, tokenizer, pools, group_size=6, max_failure_rate=0.3)  # type: ignore[arg-type]
