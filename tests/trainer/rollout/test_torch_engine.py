from collections.abc import Collection
from dataclasses import replace
from itertools import chain

import pytest
import torch

from tests.trainer.configurations import changed
from tests.trainer.samples import token_logprobs
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout import SamplingParams, TorchEngine
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.torch import build as torch_build
from tinyzero_trainer.rollout.torch.decoder import FusedDecoder, TransformersDecoder

ENDS = set(range(0, 1252, 25))
"""A random model samples one of these sooner or later."""


def make_engine(toy: LanguageModel, ends: Collection[int] | None = None, *, max_num_seqs: int = 64) -> TorchEngine:
    return TorchEngine(replace(toy, eos_ids=frozenset(ends or toy.eos_ids)), max_num_seqs=max_num_seqs)


@pytest.fixture
def prompts(toy_model: LanguageModel) -> list[list[int]]:
    return [toy_model.tokenizer(text)["input_ids"] for text in ("1+2=", "12+345=", "7", "10+20=")]


@pytest.mark.parametrize("training", [True, False])
def test_equal_seeds_give_equal_completions_and_other_seeds_others(training, toy_model, prompts):
    engine, params = make_engine(toy_model), SamplingParams(12)
    toy_model.model.train(training)
    first = engine.generate(prompts, 3, params, seed=1)
    assert first == engine.generate(prompts, 3, params, seed=1)
    assert first != engine.generate(prompts, 3, params, seed=2)
    assert [len(group) for group in first] == [3] * len(prompts)
    assert toy_model.model.training is training


def test_every_end_token_ends_a_completion_and_nothing_else_does(toy_model, prompts):
    rollouts = list(chain(*make_engine(toy_model, ENDS).generate(prompts, 16, SamplingParams(40), seed=0)))
    assert {rollout.finished for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        assert not ENDS & set(rollout.token_ids[:-1])
        assert rollout.finished == (rollout.token_ids[-1] in ENDS)
        assert rollout.finished or len(rollout.token_ids) == 40


def test_logprobs_are_the_models_and_change_nothing_else(toy_model: LanguageModel, prompts: list[list[int]]) -> None:
    engine = make_engine(toy_model, ENDS)
    without, with_logprobs = (
        engine.generate(prompts, 4, SamplingParams(20, temperature=0.7, logprobs=wanted), seed=3)
        for wanted in (False, True)
    )
    for prompt, group, bare in zip(prompts, with_logprobs, without, strict=True):
        assert bare == [replace(rollout, logprobs=None) for rollout in group]
        for rollout in group:
            logprobs = token_logprobs(toy_model, prompt, rollout.token_ids, temperature=0.7)
            assert rollout.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("max_num_seqs", [5, 64])
@pytest.mark.parametrize("ends", [range(0, 1252, 3), {0}])  # the latter run to the limit
def test_progress_counts_every_completion_once_in_any_number_of_batches(ends, max_num_seqs, toy_model, prompts):
    seen: list[int] = []
    engine = make_engine(toy_model, ends, max_num_seqs=max_num_seqs)
    groups = engine.generate(prompts, 3, SamplingParams(20), seed=0, on_progress=seen.append)
    assert [len(group) for group in groups] == [3] * 4
    assert sum(seen) == 12


@pytest.mark.parametrize("decoder", [FusedDecoder, TransformersDecoder])
def test_nothing_is_kept_between_two_batches_nor_after_a_stop(decoder, toy_model, prompts, monkeypatch):
    monkeypatch.setattr(FusedDecoder, "fits", lambda model: decoder is FusedDecoder)
    engine, kept = make_engine(toy_model), []
    cache = "_caches" if decoder is FusedDecoder else "_cache"

    def stop(_: int) -> None:
        kept.append(bool(getattr(engine._decoder, cache)))
        raise KeyboardInterrupt

    toy_model.model.train()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, 2, SamplingParams(40, ignore_eos=True), seed=0, on_progress=stop)
    assert kept == [True]
    assert toy_model.model.training
    assert not getattr(engine._decoder, cache)
    engine.generate(prompts, 2, SamplingParams(3), seed=0)
    assert not getattr(engine._decoder, cache)


def test_a_model_without_cuda_graphs_on_a_gpu_is_reported(toy_model, monkeypatch):
    notes: list[str] = []
    config = changed({"run": {"task": "countdown"}}, {})
    monkeypatch.setattr(FusedDecoder, "fits", lambda model: False)
    build_engine(config, toy_model, notes.append)
    assert not notes  # on the CPU nothing is slower than necessary
    monkeypatch.setattr(torch_build, "device_of", lambda model: torch.device("cuda"))
    build_engine(config, toy_model, notes.append)
    (note,) = notes
    assert type(toy_model.model).__name__ in note
    assert "rollout.engine=vllm" in note
