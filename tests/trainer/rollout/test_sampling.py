import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch.sampling import sample_tokens, streams, uniforms

ANY = 16  # max_tokens does not matter here
HIGHEST = 1.0 - 2**-53


def sample(logits: Tensor, uniform: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    return sample_tokens(logits, uniform, params, torch.tensor([params.temperature, params.top_p]))


def frequencies(logits: Tensor, params: SamplingParams, count: int = 40_000) -> Tensor:
    uniform = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample(logits.expand(count, -1), uniform, params)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / count


PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(ANY), PROBABILITIES),
        (SamplingParams(ANY, 0.5), PROBABILITIES**2 / (PROBABILITIES**2).sum()),
        (SamplingParams(ANY, 2.0), PROBABILITIES.sqrt() / PROBABILITIES.sqrt().sum()),
        (SamplingParams(ANY, top_k=2), torch.tensor([0.625, 0.375, 0, 0])),
        (SamplingParams(ANY, top_p=0.9), torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95),
        (SamplingParams(ANY, top_p=0.01), torch.tensor([1.0, 0, 0, 0])),  # the most probable token always stays
    ],
    ids=str,
)
def test_frequencies_are_the_probabilities(params: SamplingParams, expected: Tensor) -> None:
    found = frequencies(PROBABILITIES.log()[None], params)
    assert torch.allclose(found, expected, atol=0.01)
    assert not found[expected == 0].any()


def test_temperature_zero_is_greedy() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample(logits, torch.rand(50, dtype=torch.float64), SamplingParams(ANY, 0.0))
    assert torch.equal(tokens, logits.argmax(dim=-1))
    assert torch.allclose(logprobs, torch.log_softmax(logits, dim=-1).amax(dim=-1))


def test_logprobs_are_those_at_the_temperature_before_top_p_and_top_k() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(3))
    uniform = torch.rand(20, dtype=torch.float64)
    tokens, logprobs = sample(logits, uniform, SamplingParams(ANY, 0.7, top_p=0.5, top_k=3))
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, expected)


@pytest.mark.parametrize("params", [SamplingParams(ANY), SamplingParams(ANY, top_p=0.9), SamplingParams(ANY, top_k=3)])
def test_nan_logits_give_some_token_and_a_nan_logprob(params: SamplingParams) -> None:
    logits = torch.full((3, 70), float("nan"))
    logits[1] = torch.randn(70, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample(logits, torch.rand(3, dtype=torch.float64), params)
    assert ((tokens >= 0) & (tokens < 70)).all()
    assert logprobs.isnan().tolist() == [True, False, True]


@settings(max_examples=50)
@given(
    vocabulary=st.integers(1, 700),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    possible=st.floats(0.01, 1.0),
)
def test_sampling_by_blocks_inverts_the_cumulative_distribution(vocabulary, seed, spread, possible):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(40, vocabulary, generator=generator)
    impossible = torch.rand(40, vocabulary, generator=generator) > possible
    impossible[torch.arange(40), torch.randint(vocabulary, (40,), generator=generator)] = False
    logits.masked_fill_(impossible, -torch.inf)
    uniform = torch.rand(40, dtype=torch.float64, generator=generator)
    uniform[:2] = torch.tensor([0.0, HIGHEST])
    tokens, logprobs = sample(logits, uniform, SamplingParams(ANY))
    expected = logits.double().softmax(dim=-1)
    after = expected.cumsum(dim=-1).gather(1, tokens[:, None])[:, 0]
    sampled = expected.gather(1, tokens[:, None])[:, 0]
    assert (after >= uniform - 1e-6).all()
    assert (after - sampled <= uniform + 1e-6).all()
    assert not impossible[torch.arange(40), tokens].any()
    assert torch.allclose(logprobs.double(), sampled.log(), atol=1e-4)


@pytest.mark.parametrize("vocabulary", [16, 500])
def test_sums_that_differ_in_their_last_bit_select_no_impossible_token(vocabulary: int) -> None:
    logits = 12 * torch.randn(4000, vocabulary, generator=torch.Generator().manual_seed(1))
    logits[:, 14:] = -torch.inf  # all possible tokens are in one block
    tokens, _ = sample(logits, torch.full((4000,), HIGHEST, dtype=torch.float64), SamplingParams(ANY))
    assert tokens.max() <= 13


def test_random_numbers_are_splitmix64s() -> None:
    mask = 2**64 - 1

    def mix(state: int) -> int:
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        return state ^ (state >> 31)

    weyl = 0x9E3779B97F4A7C15
    for seed in (0, 5, -3, 2**63, 2**64 + 5):
        starts = streams(seed, torch.arange(3))
        for row in range(3):
            start = mix((mix((seed + weyl) & mask) + (row + 1) * weyl) & mask)
            for index in (0, 1, 1000):
                expected = (mix((start + (index + 1) * weyl) & mask) >> 11) * 2.0**-53
                assert uniforms(starts, torch.full((3,), index))[row].item() == expected
