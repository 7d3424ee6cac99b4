"""An evaluation in training is untouched by shaping, and does not begin once a stop is requested."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest

from tinyzero_sdk import Item
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import heldout_eval
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.generation import generate
from tinyzero_trainer.types import Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag, StopRequested


@pytest.mark.slow
def test_shaping_changes_the_rewards_and_not_the_result(toy_task, toy_model_path):
    def result_with(*wrappers: str) -> list[Rollout]:
        config = make_config(
            {
                "run": {"task": toy_task, "device": "cpu"},
                "reward": {"wrappers": list(wrappers)},
                "model": {"path": str(toy_model_path)},
                "task": {"limit": 5},
                "data": {"prompt_template": "base", "test_fraction": 0.4},
                "rollout": {"max_completion_tokens": 8},
            }
        )
        with Progress() as progress, build_workers(config, display=progress, training=True) as workers:
            prompts = workers.tasks["toy_task"].prompts.held_out(12)
            params = SamplingParams(8, 1.0)
            return heldout_eval.evaluate(workers, workers.pools, prompts, 1, params, seed=1, stop=StopFlag())

    plain, shaped = result_with(), result_with("cosine", "mask_truncated")
    assert [one.text for one in plain] == [one.text for one in shaped]
    assert [one.score.value for one in plain] != [one.score.value for one in shaped]
    for rollouts in (plain, shaped):
        assert [one.score.unshaped for one in rollouts] == [one.score.unshaped for one in plain]
        assert [(one.score.correct, one.score.reason) for one in rollouts] == [
            (one.score.correct, one.score.reason) for one in plain
        ]


def test_pass_at_k_leaves_out_what_could_not_be_scored():
    correct = np.array([1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], bool)
    counted = np.array([1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0], bool)

    def pass_at(*values: int, counted: np.ndarray = counted) -> list[float]:
        return list(heldout_eval.pass_at_metrics("toy", correct, counted, values).values())

    assert pass_at(4, 1, 2) == pytest.approx([2 / 3, (1 / 2 + 2 / 3) / 2, 1.0])  # no problem has four: all are taken
    assert pass_at(1, 2, 4, counted=counted | True) == pytest.approx([1 / 4, (1 / 2 + 5 / 6) / 3, 2 / 3])


def test_nothing_is_generated_once_a_stop_is_requested():
    """As by Ctrl-C while the model was loaded."""
    stop, engine = StopFlag(), SimpleNamespace(generate=lambda *_, **__: pytest.fail("generated"))
    stop.handle(signal.SIGTERM)
    model, prompt = SimpleNamespace(name="m", context=64), Prompt(Item(1), "1", [1], "toy")
    with pytest.raises(StopRequested):
        generate(model, engine, [prompt], 1, SamplingParams(8, 1.0), seed=1, stop=stop)
