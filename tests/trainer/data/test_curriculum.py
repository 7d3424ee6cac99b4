"""The curriculum: buckets, weights and the stream that draws from them."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.trainer.data.toy_problems import ToyProblems, take
from tinyzero_sdk import Item, Score
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import CurriculumConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.data.curriculum import bucket_edges, bucket_of, bucket_weights, choose_bucket, updated_rates
from tinyzero_trainer.data.prompts import PromptStream
from tinyzero_trainer.types import Generation, Prompt, Rollout

DIFFICULTIES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=60)
RATES = st.lists(st.none() | st.floats(0, 1), min_size=2, max_size=6).map(tuple)


@st.composite
def settings(draw: st.DrawFn) -> CurriculumConfig:
    buckets = draw(st.integers(2, 8))
    floor = draw(st.floats(0.001, 0.99)) / buckets
    return CurriculumConfig(buckets, draw(st.floats(0.01, 0.99)), draw(st.floats(0, 0.99)), floor)


@given(DIFFICULTIES, st.integers(2, 8))
@example([0.0] * 50 + [1.0], 2)
def test_every_bucket_has_problems_and_equal_difficulties_share_one(difficulties: list[float], buckets: int) -> None:
    edges = bucket_edges(difficulties, buckets, task="t")
    assert list(edges) == sorted(set(edges))
    assert (len(set(difficulties)) > 1) <= len(edges) < buckets
    found = {bucket_of(difficulty, edges) for difficulty in difficulties}
    assert found == set(range(len(edges) + 1))


def test_as_many_levels_as_buckets_have_one_each() -> None:
    # Quantiles that fall on a border between two levels would throw these together.
    for counts in ((34, 33, 33), (32, 34, 34), (33, 34, 33)):
        difficulties = [float(level) for level, count in enumerate(counts) for _ in range(count)]
        assert bucket_edges(difficulties, 3, task="t") == (1.0, 2.0)


@given(RATES, st.lists(st.integers(1, 1000), min_size=6, max_size=6), settings())
def test_weights_sum_to_one_and_none_is_below_the_floor(rates: tuple, sizes: list, config: CurriculumConfig) -> None:
    rates = rates[: config.buckets]
    weights = bucket_weights(rates, sizes[: len(rates)], config)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= config.min_probability - 1e-12


@given(st.floats(0.05, 0.95), st.floats(0, 1))
def test_a_bucket_at_the_target_weighs_most(target: float, rate: float) -> None:
    config = CurriculumConfig(2, target, min_probability=0.01)
    at_target, other = bucket_weights((target, rate), [1, 1], config)
    assert at_target >= other - 1e-12
    assert bucket_weights((target, None), [1, 1], config) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("rates", "sizes", "floor", "weights"),
    [
        ((0.0, 0.5, 1.0), [1, 1, 1], 0.1, (0.1, 0.8, 0.1)),
        ((0.0, 1.0), [1, 1], 0.1, (0.5, 0.5)),  # nothing is of interest, so everything is
        ((0.1, 0.3), [1, 1], 1e-9, (0.09 / 0.3, 0.21 / 0.3)),  # the variance of the reward
        ((0.5, None), [90, 10], 1e-9, (0.9, 0.1)),  # by problem
        ((0.0, 1.0), [99, 1], 0.1, (0.892, 0.108)),
    ],
)
def test_weights_are_in_proportion_to_the_variance_of_the_reward_and_to_the_size(
    rates: tuple, sizes: list[int], floor: float, weights: tuple
) -> None:
    assert bucket_weights(rates, sizes, CurriculumConfig(len(rates), min_probability=floor)) == pytest.approx(weights)


def test_averages_move_where_there_is_something_to_measure() -> None:
    config = CurriculumConfig(3, ema_decay=0.75)
    results = [(0, True), (0, False), (1, True)]
    assert updated_rates((0.1, None, 0.9), results, config) == pytest.approx((0.75 * 0.1 + 0.25 * 0.5, 1.0, 0.9))


def test_the_chance_decides_in_proportion() -> None:
    drawn = Counter(choose_bucket([0.5, 0.2, 0.3], [0, 2], place / 800) for place in range(800))
    assert drawn == {0: 500, 2: 300}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"target_pass_rate": 0.3},
            "curriculum.target_pass_rate=0.3 has no effect: curriculum.buckets=0 leaves the curriculum out",
        ),
        ({"buckets": 1}, "curriculum.buckets=1 has no effect: there is nothing to choose between"),
        ({"buckets": 10}, "curriculum.min_probability=0.1 leaves curriculum.buckets=10 no choice; set it below 0.1"),
        ({"buckets": 3, "target_pass_rate": 1.0}, "curriculum.target_pass_rate: got 1.0; input should be less than 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_config({"run": {"task": "x"}, "curriculum": values})
    assert message in str(caught.value)


def stream(size: int = 30, of_each: int = 1, seed: int = 0, progress=None, **settings) -> PromptStream:
    config = CurriculumConfig(**{"buckets": 3, **settings})
    return ToyProblems("p", size, of_each).stream(seed, progress, config)


def solved(bucket: int, share: float) -> list[Rollout]:
    prompt = Prompt(Item(None), "", [1], "p", bucket)
    return [
        Rollout(prompt, Generation([1], [0.0], True), "", Score(float(correct), correct))
        for correct in (place < 10 * share for place in range(10))
    ]


def train(drawing: PromptStream, shares: list[float], steps: int) -> None:
    """Steps of four problems in which each bucket is solved so often."""
    for _ in range(steps):
        buckets = {prompt.bucket for prompt in islice(drawing, 4)}
        drawing.close_step([sample for bucket in sorted(buckets) for sample in solved(bucket, shares[bucket])])


@examples(max_examples=40)
@given(st.integers(0, 5), st.integers(2, 40), st.integers(1, 4), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_every_problem_comes_once_an_epoch(seed: int, size: int, of_each: int, shares: list[float]) -> None:
    if size <= of_each:
        return
    drawing = stream(size, of_each, seed, buckets=5)
    train(drawing, shares, 3)
    drawing = stream(size, of_each, seed, drawing.progress, buckets=5)  # an interruption loses none either
    left = size - 12 % size
    take(drawing, left % size)
    assert sorted(problem for _, problem, _ in take(drawing, size)) == list(range(size))


@pytest.mark.slow
@examples(max_examples=30)
@given(st.integers(0, 25), st.integers(0, 3))
def test_a_resumed_stream_is_the_stream(steps: int, seed: int) -> None:
    whole = stream(seed=seed)
    train(whole, [0.9, 0.5, 0.1], steps)
    resumed = stream(seed=seed, progress=whole.progress)
    assert take(resumed, 40) == take(whole, 40)
    assert resumed.close_step(solved(1, 0.3)) == whole.close_step(solved(1, 0.3))


def test_problems_that_wait_come_in_their_order() -> None:
    plain = [problem for _, problem, _ in take(ToyProblems("p", 60).stream(0), 60)]
    drawn = take(stream(60), 60)
    for bucket in range(3):
        own = [problem for _, problem, of in drawn if of == bucket]
        assert own == [problem for problem in plain if problem // 20 == bucket]


def test_metrics_tell_the_weights_of_the_step_and_the_rates_after_it() -> None:
    drawing = stream(buckets=2)
    assert drawing.close_step(solved(0, 1.0)) == {
        "bucket_0/weight": 0.5,
        "bucket_1/weight": 0.5,
        "bucket_0/pass_rate": 1.0,
    }
    assert drawing.close_step(solved(1, 0.5)) == pytest.approx(
        {"bucket_0/weight": 0.1, "bucket_1/weight": 0.9, "bucket_0/pass_rate": 1.0, "bucket_1/pass_rate": 0.5}
    )
