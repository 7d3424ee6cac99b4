import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.sampling import block_size, sample_tokens, streams, uniforms

ANY = 16  # max_tokens does not matter here


def frequencies(logits: torch.Tensor, params: SamplingParams, draws: int = 40_000) -> torch.Tensor:
    uniform = torch.rand(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample_tokens(logits.expand(draws, -1), uniform, params)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 1.0, -20.0]])
    expected = torch.softmax(logits[0] / temperature, dim=-1)
    assert torch.allclose(frequencies(logits, SamplingParams(ANY, temperature)), expected, atol=0.01)


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample_tokens(logits, torch.rand(50, dtype=torch.float64), SamplingParams(ANY, 0.0))
    assert torch.equal(tokens, logits.argmax(dim=-1))
    assert torch.allclose(logprobs, torch.log_softmax(logits, dim=-1).amax(dim=-1))


def test_top_k_and_top_p_leave_out_the_rest_and_keep_the_proportions() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = probabilities.log()[None]
    assert torch.allclose(
        frequencies(logits, SamplingParams(ANY, top_k=2)), torch.tensor([0.625, 0.375, 0, 0]), atol=0.01
    )
    top_p = frequencies(logits, SamplingParams(ANY, top_p=0.9))
    assert torch.allclose(top_p, torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.01)
    assert frequencies(logits, SamplingParams(ANY, top_p=0.01))[0] == 1  # the likeliest always stays


def test_logprobs_are_those_of_the_tempered_distribution_before_top_p() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(3))
    uniform = torch.rand(20, dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, uniform, SamplingParams(ANY, 0.7, top_p=0.5, top_k=3))
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, expected)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_no_number_draws_an_impossible_token(uniform: float) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    tokens, _ = sample_tokens(logits, torch.tensor([uniform], dtype=torch.float64), SamplingParams(ANY))
    assert tokens.item() in (1, 2)


@pytest.mark.parametrize("params", [SamplingParams(ANY), SamplingParams(ANY, top_p=0.9), SamplingParams(ANY, top_k=3)])
def test_logits_that_are_not_numbers_give_some_token_and_a_logprob_that_tells(params: SamplingParams) -> None:
    logits = torch.full((3, 70), float("nan"))
    logits[1] = torch.randn(70, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample_tokens(logits, torch.rand(3, dtype=torch.float64), params)
    assert ((tokens >= 0) & (tokens < 70)).all()
    assert logprobs.isnan().tolist() == [True, False, True]


@settings(max_examples=50)
@given(
    vocabulary=st.integers(1, 700),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 1.0, 30.0]),
    possible=st.floats(0.01, 1.0),
)
def test_a_draw_by_blocks_is_that_of_one_sum_over_the_vocabulary(
    vocabulary: int, seed: int, spread: float, possible: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(40, vocabulary, generator=generator)
    ruled_out = torch.rand(40, vocabulary, generator=generator) > possible
    ruled_out[torch.arange(40), torch.randint(vocabulary, (40,), generator=generator)] = False
    logits.masked_fill_(ruled_out, -torch.inf)
    uniform = torch.rand(40, dtype=torch.float64, generator=generator)
    uniform[:2] = torch.tensor([0.0, 1.0 - 2**-53])
    tokens, logprobs = sample_tokens(logits, uniform, SamplingParams(ANY))
    expected = logits.double().softmax(dim=-1)
    after = expected.cumsum(dim=-1).gather(1, tokens[:, None])[:, 0]
    drawn = expected.gather(1, tokens[:, None])[:, 0]
    assert (after >= uniform - 1e-6).all()
    assert (after - drawn <= uniform + 1e-6).all()
    assert not ruled_out[torch.arange(40), tokens].any()
    assert torch.allclose(logprobs.double(), drawn.log(), atol=1e-4)


@pytest.mark.parametrize("vocabulary", [16, 500])
def test_sums_that_differ_in_their_last_bit_draw_no_token_that_is_not_there(vocabulary: int) -> None:
    logits = 12 * torch.randn(4000, vocabulary, generator=torch.Generator().manual_seed(1))
    logits[:, 14:] = -torch.inf  # what is possible is in one block
    tokens, _ = sample_tokens(logits, torch.full((4000,), 1.0 - 2**-53, dtype=torch.float64), SamplingParams(ANY))
    assert tokens.max() <= 13


def test_blocks_are_about_as_many_as_they_are_long() -> None:
    assert [block_size(vocabulary) for vocabulary in (1, 256, 257, 1252, 151_936)] == [16, 16, 32, 64, 512]


def test_knobs_on_the_device_stand_for_those_of_the_parameters() -> None:
    logits, uniform = torch.randn(60, 30), torch.rand(60, dtype=torch.float64)
    expected = sample_tokens(logits, uniform, SamplingParams(ANY, 0.5, top_p=0.6))
    found = sample_tokens(logits, uniform, SamplingParams(ANY, 0.9, top_p=0.9), torch.tensor([0.5, 0.6]))
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))


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
                assert uniforms(starts, index)[row].item() == expected
                assert uniforms(starts, torch.full((3,), index))[row].item() == expected


def test_random_numbers_are_uniform_along_rows_and_steps() -> None:
    numbers = torch.stack([uniforms(streams(1, torch.arange(500)), index) for index in range(400)])
    assert abs(numbers.mean() - 0.5) < 0.003
    assert (torch.histc(numbers, 10, 0, 1) / numbers.numel() - 0.1).abs().max() < 0.003
    for left, right in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(torch.corrcoef(torch.stack([left.flatten(), right.flatten()]))[0, 1]) < 0.01
