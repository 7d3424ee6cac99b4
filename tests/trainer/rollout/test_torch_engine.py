from collections.abc import Collection
from dataclasses import replace
from itertools import chain

import pytest
import torch

from tests.trainer.configurations import changed
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams, TorchEngine, build
from tinyzero_trainer.rollout.decoder import FusedDecoder, TransformersDecoder


def make_engine(toy: LanguageModel, ends: Collection[int] | None = None, *, max_num_seqs: int = 64) -> TorchEngine:
    return TorchEngine(replace(toy, eos_ids=frozenset(ends or toy.eos_ids)), max_num_seqs=max_num_seqs)


@pytest.fixture
def prompts(toy_model: LanguageModel) -> list[list[int]]:
    return [toy_model.tokenizer(text)["input_ids"] for text in ("1+2=", "12+345=", "7", "10+20=")]


def test_equal_seeds_give_equal_completions_and_other_seeds_others(
    toy_model: LanguageModel, prompts: list[list[int]]
) -> None:
    engine, params = make_engine(toy_model), SamplingParams(12)
    first = engine.generate(prompts, 3, params, seed=1)
    assert first == engine.generate(prompts, 3, params, seed=1)
    assert first != engine.generate(prompts, 3, params, seed=2)
    assert [len(group) for group in first] == [3] * len(prompts)


def test_every_end_token_ends_a_completion_and_nothing_else_does(
    toy_model: LanguageModel, prompts: list[list[int]]
) -> None:
    ends = set(range(0, 1252, 25))  # a random model hits one of these sooner or later
    engine = make_engine(toy_model, ends)
    rollouts = [rollout for group in engine.generate(prompts, 16, SamplingParams(40), seed=0) for rollout in group]
    assert any(rollout.finished for rollout in rollouts)
    assert any(not rollout.finished for rollout in rollouts)
    for rollout in rollouts:
        assert not ends & set(rollout.token_ids[:-1])
        assert rollout.finished == (rollout.token_ids[-1] in ends)
        assert rollout.finished or len(rollout.token_ids) == 40


def test_logprobs_are_the_models_own(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    params = SamplingParams(20, temperature=0.7, logprobs=True)
    rollout = make_engine(toy_model).generate(prompts, 2, params, seed=3)[1][1]
    sequence = torch.tensor([prompts[1] + rollout.token_ids])
    with torch.no_grad():
        logits = toy_model.model.eval()(sequence).logits[0, len(prompts[1]) - 1 : -1] / 0.7
    expected = torch.log_softmax(logits, dim=-1).gather(1, sequence[0, len(prompts[1]) :, None])[:, 0]
    assert rollout.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_logprobs_come_where_they_are_wanted_and_change_nothing_else(
    toy_model: LanguageModel, prompts: list[list[int]]
) -> None:
    engine = make_engine(toy_model, ends=set(range(0, 1252, 25)))
    without, with_them = (
        list(chain(*engine.generate(prompts, 4, SamplingParams(20, logprobs=wanted), seed=0)))
        for wanted in (False, True)
    )
    assert [rollout.token_ids for rollout in without] == [rollout.token_ids for rollout in with_them]
    assert all(rollout.logprobs is None for rollout in without)
    assert [len(rollout.logprobs or []) for rollout in with_them] == [len(rollout.token_ids) for rollout in with_them]


def test_what_is_drawn_does_not_depend_on_who_has_finished(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    few, many = set(range(0, 1252, 9)), {0}
    early = make_engine(toy_model, few).generate(prompts, 8, SamplingParams(40), seed=5)
    late = make_engine(toy_model, many).generate(prompts, 8, SamplingParams(40), seed=5)
    for left, right in zip(chain(*early), chain(*late), strict=True):
        assert right.token_ids[: len(left.token_ids)] == left.token_ids


def test_more_sequences_than_fit_at_once(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    seen: list[int] = []
    engine = make_engine(toy_model, max_num_seqs=5, ends=set(range(0, 1252, 3)))
    groups = engine.generate(prompts, 3, SamplingParams(60), seed=0, on_progress=seen.append)
    assert [len(group) for group in groups] == [3] * 4
    assert sum(seen) == 12


def test_progress_counts_completions_that_ran_to_the_limit(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    seen: list[int] = []
    make_engine(toy_model, ends={0}).generate(prompts, 2, SamplingParams(11), seed=0, on_progress=seen.append)
    assert sum(seen) == 8


def test_generation_leaves_the_model_in_the_mode_it_was_in(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    engine = make_engine(toy_model)
    for training in (True, False):
        toy_model.model.train(training)
        engine.generate(prompts, 1, SamplingParams(2), seed=0)
        assert toy_model.model.training is training


@pytest.mark.parametrize("decoder", [FusedDecoder, TransformersDecoder])
def test_nothing_is_kept_between_two_batches_nor_after_a_stop(
    decoder: type[FusedDecoder | TransformersDecoder],
    toy_model: LanguageModel,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FusedDecoder, "fits", lambda model: decoder is FusedDecoder)
    engine, keeps = make_engine(toy_model), []
    cache = "_caches" if decoder is FusedDecoder else "_cache"

    def stop(_: int) -> None:
        keeps.append(bool(getattr(engine._decoder, cache)))
        raise KeyboardInterrupt

    toy_model.model.train()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, 2, SamplingParams(40, ignore_eos=True), seed=0, on_progress=stop)
    assert keeps == [True]
    assert toy_model.model.training
    assert not getattr(engine._decoder, cache)
    engine.generate(prompts, 2, SamplingParams(3), seed=0)
    assert not getattr(engine._decoder, cache)


def test_a_gpu_without_cuda_graphs_for_a_model_is_told_of(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    config = changed({"run": {"task": "countdown"}}, {})
    monkeypatch.setattr(FusedDecoder, "fits", lambda model: False)
    build.build_engine(config, toy_model, notes.append)
    assert not notes  # on the CPU nothing is slower than it need be
    monkeypatch.setattr(build, "device_of", lambda model: torch.device("cuda"))
    build.build_engine(config, toy_model, notes.append)
    (note,) = notes
    assert type(toy_model.model).__name__ in note
    assert "rollout.engine=vllm" in note
    assert "\n" not in note
