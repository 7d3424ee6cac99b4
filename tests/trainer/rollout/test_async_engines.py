"""Groups that go on while others end and weights change: `submit` and `advance` of the engines of `torch`."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from tests.trainer.conftest import random_model
from tests.trainer.rollout.engines import asked, flat, graph, plain
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.background_engine import BackgroundEngine
from tinyzero_trainer.rollout.engine import EMPTY, Group, RolloutEngine
from tinyzero_trainer.rollout.torch.batched_engine import BatchedEngine
from tinyzero_trainer.types import Generation

PROMPTS = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 41], [90, 3, 17, 17]]
ALL = SamplingParams(24, logprobs=True)
ENGINES = (graph, plain)


def finish(engine: BatchedEngine, params: SamplingParams = ALL) -> list[Group]:
    """All that was submitted, in the order in which it is complete."""
    complete: list[Group] = []
    while engine.unfinished():
        complete += engine.advance(params)
    return complete


def by_number(groups: Sequence[Group]) -> list[list[Generation]]:
    return [list(group.completions) for group in sorted(groups, key=lambda group: group.number)]


def assert_same(ours: list[list[Generation]], theirs: list[list[Generation]]) -> None:
    for left, right in zip(flat(ours), flat(theirs), strict=True):
        assert (list(left.token_ids), left.finished) == (list(right.token_ids), right.finished)
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


def change_weights(model: Any, factor: float = 1.1) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    samples=st.integers(1, 5),
    max_tokens=st.integers(1, 40),
    at_a_time=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 1.0, 1.3]),
    later=st.integers(0, 6),
    kind=st.sampled_from(ENGINES),
)
def test_a_completion_is_what_generate_gives_whatever_runs_beside_it(
    lengths: list[int],
    samples: int,
    max_tokens: int,
    at_a_time: int,
    temperature: float,
    later: int,
    kind: Callable[..., BatchedEngine],
) -> None:
    """Slots are refilled, groups come later, and `generate` needs the slots in between."""
    model, prompts = random_model("qwen2"), [[(7 * i + n) % 97 for i in range(n)] for n in lengths]
    params = SamplingParams(max_tokens, temperature, logprobs=True)
    groups, engine = asked(prompts, samples, max_tokens, seed=3), kind(model, max_num_seqs=at_a_time)
    engine.submit(groups[:later])
    complete = engine.advance(params)
    engine.submit(groups[later:])
    complete += engine.advance(params)
    engine.generate(PROMPTS[:2], 2, SamplingParams(5), seed=0)
    complete += finish(engine, params)
    assert sorted(group.number for group in complete) == list(range(len(prompts)))
    assert all(group.complete for group in complete)
    assert_same(by_number(complete), plain(model).generate(prompts, samples, params, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
def test_each_token_keeps_the_version_of_the_weights_that_sampled_it(kind: Callable[..., BatchedEngine]) -> None:
    model = random_model("qwen2")
    engine, old = kind(model, ends=()), kind(model, ends=())
    engine.load_weights(7)
    engine.submit(asked(PROMPTS, 2, 150))
    before = old.generate(PROMPTS, 2, SamplingParams(150, logprobs=True), seed=0)
    engine.advance(ALL)
    counts = [len(each.token_ids) for group in engine.unfinished() for each in group.completions]
    assert 0 < min(counts) < 150
    change_weights(model)
    engine.load_weights(8)
    new = [each for group in by_number(finish(engine)) for each in group]
    for generation, count, earlier in zip(new, counts, flat(before), strict=True):
        assert generation.versions == ((7, count), (8, 150 - count))
        assert list(generation.token_ids[:count]) == list(earlier.token_ids[:count])
    assert [each.token_ids for each in new] != [each.token_ids for each in flat(before)]


@pytest.mark.parametrize("kind", ENGINES)
def test_what_another_engine_has_begun_is_continued(kind: Callable[..., BatchedEngine]) -> None:
    """As a resumed run does: from the tokens, under the same weights."""
    model = random_model("qwen2")
    expected = plain(model).generate(PROMPTS, 4, ALL, seed=0)
    engine = kind(model)
    engine.load_weights(3)
    engine.submit(asked(PROMPTS, 4, 24))
    complete = list(engine.advance(ALL))
    half = engine.unfinished()
    assert any(0 < len(each.token_ids) < 24 and not each.finished for group in half for each in group.completions)
    resumed = kind(model)
    resumed.load_weights(5)
    resumed.submit(half)
    complete += finish(resumed)
    assert_same(by_number(complete), expected)
    for generation in flat(by_number(complete)):
        assert sum(count for _, count in generation.versions) == len(generation.token_ids)
        assert [version for version, _ in generation.versions] in ([3], [3, 5], [5])


@pytest.mark.slow
def test_the_log_probabilities_after_new_weights_are_those_of_the_new_policy() -> None:
    """Of `TorchEngine`, which computes keys and values anew."""
    model = random_model("qwen2")
    engine = plain(model, ends=())
    engine.submit(asked(PROMPTS[:1], 1, 150))
    engine.advance(ALL)
    (begun,) = engine.unfinished()[0].completions
    change_weights(model)
    engine.load_weights(1)
    ((generation,),) = by_number(finish(engine))
    sequence = torch.tensor([[*PROMPTS[0], *generation.token_ids]])
    logits = model(input_ids=sequence).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(dim=-1)
    expected = logits.gather(1, sequence[0, len(PROMPTS[0]) :, None]).squeeze(1)
    count = len(begun.token_ids)
    assert generation.logprobs[count:] == pytest.approx(expected[count:].tolist(), abs=1e-4)
    assert list(generation.logprobs[:count]) == list(begun.logprobs)
    assert generation.logprobs[:count] != pytest.approx(expected[:count].tolist(), abs=1e-4)


def test_limits_that_differ_in_a_context_that_they_fill() -> None:
    """A decoder of whole batches goes on with all rows; GPT-2 has no position after its last."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=2)).eval()
    engine = plain(model, ends=())
    prompts, limits = [[1] * 20, [5, 6]], [12, 30]
    engine.submit([Group(i, prompts[i], (EMPTY,) * 2, limits[i], 0, i) for i in range(2)])
    found = by_number(finish(engine))
    assert [[len(one.token_ids) for one in group] for group in found] == [[12, 12], [30, 30]]


# ---- in a thread -----------------------------------------------------------------------------------------------------


@pytest.fixture
def background() -> Any:
    engines: list[BackgroundEngine] = []

    def start(engine: BatchedEngine) -> BackgroundEngine:
        engines.append(BackgroundEngine(engine, torch.device("cpu")))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
    assert not any(thread.name == "rollouts" for thread in threading.enumerate())


def wait_for(engine: RolloutEngine, count: int, params: SamplingParams = ALL) -> list[Group]:
    complete: list[Group] = []
    while len(complete) < count:
        complete += engine.advance(params, lambda _: None)
    return complete


def test_in_a_thread_an_engine_samples_on_by_itself(background: Any) -> None:
    model, done = random_model("qwen2"), threading.Event()
    inner = graph(model)
    plain_advance = inner.advance

    def advance(*args: Any) -> list[Group]:
        found = plain_advance(*args)
        if not inner._scheduler.unfinished:
            done.set()
        return found

    inner.advance = advance  # type: ignore[method-assign]
    engine = background(inner)
    engine.submit(asked(PROMPTS, 4, 24))
    assert [group.number for group in engine.unfinished()] == list(range(5))
    complete = wait_for(engine, 1)  # it knows how to sample, and goes on
    assert done.wait(60)
    complete += wait_for(engine, 5 - len(complete))
    assert_same(by_number(complete), plain(model).generate(PROMPTS, 4, ALL, seed=0))
    assert engine.unfinished() == []


@pytest.mark.slow
def test_in_a_thread_new_weights_come_between_two_tokens(background: Any) -> None:
    model = random_model("qwen2")
    inner, begun, go_on = graph(model, ends=()), threading.Event(), threading.Event()
    step = inner._step

    def slow_step(index: int) -> None:
        step(index)
        if index == 40:
            begun.set()
            assert go_on.wait(60)

    inner._step = slow_step  # type: ignore[method-assign]
    engine = background(inner)
    engine.load_weights(1)
    engine.submit(asked(PROMPTS, 2, 120))
    engine.advance(ALL, lambda _: None)
    assert begun.wait(60)
    loading = threading.Thread(target=engine.load_weights, args=(2,))
    loading.start()
    go_on.set()
    loading.join()
    for generation in flat(by_number(wait_for(engine, 5))):
        (first, before), (second, after) = generation.versions
        assert (first, second, before + after) == (1, 2, 120)
        assert 40 <= before < 120


@pytest.mark.slow
def test_in_a_thread_generate_comes_first_and_the_others_go_on(background: Any) -> None:
    model = random_model("qwen2")
    engine = background(graph(model))
    engine.submit(asked(PROMPTS, 4, 24))
    complete = list(engine.advance(ALL, lambda _: None))
    assert_same(engine.generate(PROMPTS, 2, ALL, seed=8), plain(model).generate(PROMPTS, 2, ALL, seed=8))
    complete += wait_for(engine, 5 - len(complete))
    assert_same(by_number(complete), plain(model).generate(PROMPTS, 4, ALL, seed=0))


def test_an_error_in_the_thread_is_raised_where_completions_are_waited_for(background: Any) -> None:
    inner = graph(random_model("qwen2"))

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    inner._step = fail  # type: ignore[method-assign]
    engine = background(inner)
    engine.submit(asked(PROMPTS, 4, 24))
    with pytest.raises(torch.OutOfMemoryError):
        wait_for(engine, 1)
