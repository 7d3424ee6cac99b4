import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.advantages import group_advantages

rewards = st.integers(2, 6).flatmap(
    lambda samples: st.lists(
        st.lists(st.floats(-10, 10, width=32), min_size=samples, max_size=samples), min_size=1, max_size=5
    )
)


@given(rewards)
def test_advantages_of_a_group_sum_to_zero_and_are_finite(values: list[list[float]]) -> None:
    for normalize in (True, False):
        advantages = group_advantages(torch.tensor(values), normalize_by_std=normalize)
        assert advantages.isfinite().all()
        assert advantages.sum(dim=1).abs().max() < 1e-3


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_has_no_advantage(normalize: bool, reward: float) -> None:
    assert not group_advantages(torch.full((2, 7), reward), normalize_by_std=normalize).any()


def test_advantages_are_the_papers_formula() -> None:
    group = torch.tensor([[1.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    values = group[0].tolist()
    mean = sum(values) / 4
    std = (sum((value - mean) ** 2 for value in values) / 3) ** 0.5
    expected = [(value - mean) / (std + 1e-6) for value in values]
    assert group_advantages(group, normalize_by_std=True)[0].tolist() == pytest.approx(expected, abs=1e-12)
    unscaled = [value - mean for value in values]
    assert group_advantages(group, normalize_by_std=False)[0].tolist() == pytest.approx(unscaled, abs=1e-12)


def test_groups_do_not_see_each_other() -> None:
    group = torch.tensor([[1.0, 0.0, 0.25]])
    alone = group_advantages(group, normalize_by_std=True)
    together = group_advantages(torch.cat([torch.tensor([[5.0, -5.0, 0.0]]), group]), normalize_by_std=True)
    assert torch.equal(together[1:], alone)
