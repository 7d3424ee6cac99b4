"""The engine `vllm` with the real vLLM, for the CPU. Run by `test_vllm_cpu.py` where it is not installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch

from tests.trainer.configurations import changed
from tests.trainer.processes import in_own_process
from tests.trainer.runs import lines
from tests.trainer.samples import token_logprobs
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.executors.local import build as local
from tinyzero_trainer.executors.local.build import build_local_engine
from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams, TorchEngine
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.types import Generation

STEPS = 3


def make_config(output: Path, **changes: object) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"task": "countdown", "device": "cpu", "output": str(output), "steps": STEPS},
        "data": {"prompts_per_step": 8, "max_prompt_tokens": 64},
        "rollout": {"engine": "vllm", "group_size": 4, "max_completion_tokens": 48, "max_num_seqs": 128}
        | {"return_logprobs": "always"},
        "eval": {"num_problems": 8, "every": 0},
        "checkpoint": {"every": 0},
        "vllm": {"verify_weights": True, "max_restarts": 1, "timeout": 120.0},
    }
    return changed(values, changes)


class Trained(NamedTuple):
    """What a run of three steps leaves, for all tests; vLLM, in a process of its own, goes on with its last weights."""

    output: Path
    model: LanguageModel
    engine: RestartingEngine
    notes: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    output, notes, kept = tmp_path_factory.mktemp("trained") / "run", list[str](), list[Any]()

    def build_and_keep(config: TrainConfig, policy: LanguageModel, note: object) -> RolloutEngine:
        model = load_model(None, torch.device("cpu"))  # the policy's parameters are sharded, even in one process
        engine = build_local_engine(config, model, notes.append)
        kept.extend((model, engine))

        @torch.no_grad()
        def load_weights() -> None:
            for name, tensor in named_weights(policy.model):
                model.model.state_dict()[name].copy_(tensor)
            engine.load_weights()

        return Mock(wraps=engine, load_weights=load_weights, close=Mock())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "build_local_engine", build_and_keep)
        train(make_config(output))
    yield Trained(output, *kept, notes)
    kept[1].close()


@pytest.fixture
def tiny(trained: Trained) -> LanguageModel:
    return trained.model


@pytest.fixture
def engine(trained: Trained) -> VllmEngine:
    return trained.engine.worker.worker


@pytest.fixture
def prompts(tiny: LanguageModel) -> list[list[int]]:
    texts = ("Numbers 3 5 7, target 15:", "Numbers 1 2 3, target 6:", "9", "Numbers 12 4, target 48:")
    return [tiny.tokenizer(text)["input_ids"] for text in texts]


def greedy(engine: VllmEngine, tiny: LanguageModel, prompts: list[list[int]]) -> None:
    """Checks that the engine's greedy completions are the policy's."""
    params = SamplingParams(40, temperature=0.0)
    ours = TorchEngine(tiny)
    assert engine.generate(prompts, 1, params, seed=0) == ours.generate(prompts, 1, params, seed=0)


def check_run(output: Path) -> None:
    metrics = lines(output)
    assert [row["step"] for row in metrics] == list(range(STEPS + 1))
    for row in metrics[1:]:
        assert row["training/rollout_probs_diff_max"] < 1e-3
        assert row["response_length/max"] <= 48


def test_three_steps(trained: Trained) -> None:
    check_run(trained.output)


def test_equal_seeds_give_equal_completions_and_other_seeds_others(engine, prompts):
    params = SamplingParams(12)
    first = engine.generate(prompts, 4, params, seed=1)
    assert first == engine.generate(prompts, 4, params, seed=1)
    assert first != engine.generate(prompts, 4, params, seed=2)
    assert all(rollout.logprobs is None for group in first for rollout in group)
    assert len({tuple(rollout.token_ids) for rollout in first[0]}) > 1
    groups = engine.generate(prompts, 8, SamplingParams(30, ignore_eos=True), seed=3)
    assert {(len(rollout.token_ids), rollout.finished) for group in groups for rollout in group} == {(30, False)}


def test_logprobs_are_the_policys_and_ends_are_ends(engine, tiny, prompts):
    groups = engine.generate(prompts, 8, SamplingParams(64, temperature=0.7, logprobs=True), seed=3)
    rollouts: list[tuple[list[int], Generation]] = [
        (prompt, rollout) for prompt, group in zip(prompts, groups, strict=True) for rollout in group
    ]
    assert {rollout.finished for _, rollout in rollouts} == {True, False}
    for prompt, rollout in rollouts:
        assert rollout.finished == (rollout.token_ids[-1] in tiny.eos_ids)
        assert not tiny.eos_ids & set(rollout.token_ids[:-1])
        assert rollout.finished or len(rollout.token_ids) == 64
        logprobs = token_logprobs(tiny, prompt, rollout.token_ids, temperature=0.7)
        assert rollout.logprobs == pytest.approx(logprobs, abs=1e-3)


def test_more_prompt_tokens_than_go_through_at_once(engine: VllmEngine, trained: Trained) -> None:
    # vLLM for the CPU dies of a chunked prompt.
    groups = engine.generate([[5 + place] * 50 for place in range(100)], 2, SamplingParams(2), seed=0)
    assert len(groups) == 100
    assert trained.notes == []


def test_a_stop_leaves_the_engine_usable(engine: VllmEngine, prompts: list[list[int]]) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    before = engine.generate(prompts, 2, SamplingParams(9), seed=0)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts * 9, 8, SamplingParams(40, ignore_eos=True), seed=0, on_progress=stop)
    engine.load_weights()  # resets the cache, which the aborted prompts have released
    assert engine.generate(prompts, 2, SamplingParams(9), seed=0) == before


def test_new_weights_arrive_and_a_missing_head_is_noticed(engine, tiny, prompts, monkeypatch):
    embedding = tiny.model.get_input_embeddings().weight
    assert embedding is tiny.model.get_output_embeddings().weight  # tied, where a head is easily forgotten
    before = embedding.detach().clone()

    def change(seed: int) -> None:
        with torch.no_grad():
            noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(seed))
            embedding.copy_(before + 0.3 * before.std() * noise)

    greedy(engine, tiny, prompts)
    try:
        change(1)
        engine.load_weights()
        greedy(engine, tiny, prompts)
        change(2)

        without = [each for each in named_weights(tiny.model) if each[0] != "lm_head.weight"]
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_weights", lambda: iter([without]))
            with pytest.raises(VllmError, match="differ from the policy's by"):
                engine.load_weights()
        engine.load_weights()
        greedy(engine, tiny, prompts)
    finally:
        with torch.no_grad():
            embedding.copy_(before)
        engine.load_weights()


@pytest.mark.nightly(reason="starts vLLM once or twice more; placement is tested with the engine `torch`")
@pytest.mark.parametrize(
    ("engines", "spread"),
    [
        pytest.param(0, 1, id="one colocated with each rank"),
        pytest.param(0, 2, id="one colocated with both, of two processes"),
        pytest.param(1, 1, id="one dedicated"),
        pytest.param(1, 2, id="one dedicated, of two processes"),
    ],
)
def test_three_steps_of_two_ranks_of_ray(engines: int, spread: int, tmp_path: Path) -> None:
    more: dict[str, Any] = {"run__executor": "ray", "parallel__world_size": 2, "rollout__num_engines": engines}
    more["vllm__tensor_parallel"] = spread
    # In a separate process, since Ray leaves much open.
    in_own_process(train, tmp_path, make_config(tmp_path / "run", **more))
    check_run(tmp_path / "run")
