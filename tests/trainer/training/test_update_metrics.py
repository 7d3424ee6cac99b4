"""The sums of an update: whatever the split into micro-batches, and without what was skipped."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.training.update_metrics import MetricAccumulator


@given(
    st.lists(
        st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
    )
)
def test_what_is_weighted_is_summed_over_a_mini_batch_and_averaged_over_mini_batches(
    mini_batches: list[list[list[float]]],
) -> None:
    metrics = MetricAccumulator()
    for parts in mini_batches:
        for part in parts:
            metrics.add_weighted_sum(loss=torch.tensor(part, requires_grad=True))
        metrics.end_mini_batch(torch.tensor(1.0))
    expected = sum(sum(map(sum, parts)) for parts in mini_batches) / len(mini_batches)
    assert metrics.weighted_sums() == {"loss": pytest.approx(expected, abs=1e-3)}


def test_the_norm_is_that_of_the_updates_that_were_made() -> None:
    metrics = MetricAccumulator()
    assert metrics.mini_batches == 0
    for norm in (3.0, float("nan"), 5.0, float("inf")):
        metrics.end_mini_batch(torch.tensor(norm))
    assert metrics.mini_batches == 4
    assert metrics.updates() == {"grad_norm": 4.0, "skipped_updates": 2.0}
    metrics = MetricAccumulator()
    metrics.end_mini_batch(torch.tensor(float("nan")))
    assert metrics.updates() == {"skipped_updates": 1.0}
