"""The engine's log-probabilities: when they are requested, what they are used for, and the correction for them."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.trainer.configurations import changed
from tests.trainer.samples import ragged_samples
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.rollout_correction import importance_weights, mismatch_metrics
from tinyzero_trainer.config import (
    AlgorithmConfig,
    OptimizerConfig,
    RolloutConfig,
    RolloutCorrectionConfig,
    TrainConfig,
)
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.models.loading import LanguageModel

ALWAYS = RolloutConfig(return_logprobs="always")
TOKEN = RolloutCorrectionConfig(is_level="token")


@pytest.mark.parametrize(("mode", "steps"), [("never", []), ("sample", [1, 11, 21]), ("always", list(range(1, 31)))])
def test_the_engine_returns_them_in_no_step_in_one_of_ten_or_in_all(mode: Any, steps: list[int]) -> None:
    config = RolloutConfig(return_logprobs=mode)
    assert [step for step in range(1, 31) if config.returns_logprobs(step)] == steps


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("update", {}),
        ("update", {"rollout": RolloutConfig(return_logprobs="never")}),
        ("policy", {"optimizer": OptimizerConfig(num_mini_batches=2)}),
        ("policy", {"optimizer": OptimizerConfig(update_epochs=2)}),
        ("policy", {"algorithm": AlgorithmConfig(kl_coefficient=0.1, kl_placement="reward")}),
        ("update", {"algorithm": AlgorithmConfig(kl_coefficient=0.1)}),
        ("engine", {"rollout": ALWAYS}),
        ("engine", {"rollout": ALWAYS, "optimizer": OptimizerConfig(num_mini_batches=2, update_epochs=2)}),
        ("engine", {"rollout": ALWAYS, "algorithm": AlgorithmConfig(kl_coefficient=0.1, kl_placement="reward")}),
        ("policy", {"rollout": ALWAYS, "rollout_correction": TOKEN}),
    ],
)
def test_old_logprobs_cost_a_pass_only_where_nothing_else_gives_them(source: str, changes: dict[str, Any]) -> None:
    assert TrainConfig(**changes).old_logprobs_source == source


def test_one_completion_without_them_leaves_the_batch_without_them(toy_model: LanguageModel) -> None:
    samples = ragged_samples(toy_model, groups=1, samples=2)
    found = TrainingBatch.of(samples).engine_logprobs
    assert found is not None
    assert found.tolist() == pytest.approx([value for sample in samples for value in sample.generation.logprobs or []])
    samples[1] = replace(samples[1], generation=replace(samples[1].generation, logprobs=None))
    assert TrainingBatch.of(samples).engine_logprobs is None


def by_definition(
    completions: list[list[tuple[float, float]]], level: str | None, cap: float, bounds: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """min(π_old/π_engine, cap) and 0 outside the bounds, token by token, with the ratios."""
    weights, ratios = [], []
    for completion in completions:
        product = sum(old - engine for old, engine in completion)
        for old, engine in completion:
            ratio = exp(max(-20.0, min(20.0, product if level == "sequence" else old - engine)))
            weight = 1.0 if level is None else min(ratio, cap)
            weights.append(weight if bounds[0] <= ratio <= bounds[1] else 0.0)
            ratios.append(ratio)
    return weights, ratios


LOGPROB = st.floats(-30, 0).map(lambda value: round(value, 3) + 0.0)


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.tuples(LOGPROB, LOGPROB), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from([None, "token", "sequence"]),
    st.sampled_from([1.0, 2.0, 5.5]),
    st.sampled_from([None, (0.0, 10.0), (0.5, 11.5)]),
)
@example([[(-1.0, -2.0), (-1.0, -1.0), (-2.0, -1.0)]], "token", 2.0, (0.5, 2.5))
@example([[(-1.0, -2.0), (-1.0, -1.0), (-2.0, -1.0)]], None, 2.0, (0.5, 2.5))
def test_weights_are_those_of_the_definition(
    completions: list[list[tuple[float, float]]], level: Any, cap: float, bounds: Any
) -> None:
    old, engine = (
        torch.tensor([pair[side] for completion in completions for pair in completion], dtype=torch.float64)
        for side in (0, 1)
    )
    lengths = torch.tensor([len(each) for each in completions])
    weights, metrics = importance_weights(old, engine, lengths, level=level, threshold=cap, bounds=bounds)
    expected, ratios = by_definition(completions, level, cap, bounds or (0.0, inf))
    assert weights.tolist() == pytest.approx(expected, rel=1e-9)
    measured = {name.rpartition("/")[2]: value for name, value in metrics.items()}
    means = {}
    if level:
        high = fmean(ratio > cap for ratio in ratios)
        means = {"rollout_is_mean": fmean(min(ratio, cap) for ratio in ratios), "rollout_is_ratio_fraction_high": high}
    if bounds:
        means["rollout_rs_masked_fraction"] = fmean(not bounds[0] <= ratio <= bounds[1] for ratio in ratios)
    assert measured == pytest.approx(means, abs=1e-6)


def test_the_metrics_estimate_the_divergence_of_the_engine_from_the_policy() -> None:
    """On tokens with the engine's frequencies the means of k1 and of k3 are KL(π_engine ‖ π)."""
    engine, policy = [0.25, 0.75], [0.5, 0.5]
    tokens = [0, 1, 1, 1]
    metrics = mismatch_metrics(*(torch.tensor([log(each[token]) for token in tokens]) for each in (policy, engine)))
    exact = sum(q * log(q / p) for q, p in zip(engine, policy, strict=True))
    assert metrics["rollout_corr/kl"] == pytest.approx(exact)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(exact)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.25)
    assert metrics["training/rollout_logprobs_diff_mean"] == pytest.approx((log(2) + 3 * log(1.5)) / 4)


def test_a_truncated_distribution_is_noted_in_one_line() -> None:
    assert RolloutConfig().bias is None
    assert RolloutConfig(top_p=0.9, top_k=5).bias.startswith("rollout.top_p=0.9 and rollout.top_k=5: tokens come")


Run = Callable[..., tuple[list[dict[str, Any]], dict[str, torch.Tensor]]]


@pytest.fixture
def run(warm_model: Path, toy_task: str, tmp_path: Path) -> Run:
    """A run of two steps: its metrics, step by step, and its last weights."""

    def make(mode: str, **changes: Any) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
        values: dict[str, Any] = {
            "run": {"task": toy_task, "output": str(tmp_path / mode), "steps": 2, "device": "cpu", "seed": 1},
            "task": {"limit": 5},
            "model": {"path": str(warm_model)},
            "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
            "rollout": {"group_size": 4, "max_completion_tokens": 8, "return_logprobs": mode},
            "optimizer": {"learning_rate": 1e-3},
            "eval": {"num_problems": 4, "num_problems_during": 4, "greedy": False},
        }
        output = train(changed(values, changes)).output
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][1:]
        return lines, load_file(output / "checkpoints" / "step_2" / "model.safetensors")

    return make


@pytest.mark.slow
@pytest.mark.parametrize("mini_batches", [1, 2])
def test_training_does_not_depend_on_the_steps_that_request_them(mini_batches: int, run: Run) -> None:
    (never, left), (sample, right) = (
        run(mode, optimizer__num_mini_batches=mini_batches) for mode in ("never", "sample")
    )
    assert all(torch.equal(left[name], right[name]) for name in left)
    for lines, asked in ((never, [False, False]), (sample, [True, False])):
        for name in ("training/rollout_probs_diff_max", "rollout_corr/k3_kl"):
            assert [name in line for line in lines] == asked
    assert sample[0]["training/rollout_logprobs_diff_mean"] < 1e-4
    for line in never + sample:
        assert ("timing_s/old_log_prob" in line) == (mini_batches > 1)
        assert "rollout_corr/rollout_is_mean" not in line
    assert (never[0]["actor/ratio/std"] == 0) == (mini_batches == 1)


@pytest.mark.slow
def test_a_correction_is_reported_and_takes_a_pass(run: Run) -> None:
    lines, _ = run("always", rollout_correction__is_level="sequence", rollout_correction__rejection_bounds=[0.5, 3.0])
    for line in lines:
        assert line["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-3)
        assert line["rollout_corr/rollout_is_ratio_fraction_high"] == 0
        assert line["rollout_corr/rollout_rs_masked_fraction"] == 0
        assert "timing_s/old_log_prob" in line
