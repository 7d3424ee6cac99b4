"""The result of an evaluation in training: the numbers of `tinyzero eval`, untouched by shaping."""

import pytest

from tests.trainer.controller.fakes import fake_workers
from tinyzero_sdk import Item, Score
from tinyzero_sdk.evaluation.protocol import EvaluationResult
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import heldout_eval
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag


@pytest.mark.parametrize(
    ("correct", "accuracy", "error"), [([True, True, False, True], 0.75, 0.25), ([True], 1.0, 0.0)], ids=["four", "one"]
)
def test_the_result_sums_up_the_completions(correct, accuracy, error, monkeypatch):
    prompt = Prompt(Item(None), "", [1])
    rollouts = [
        Rollout(prompt, Generation([1] * (2 + index), None, True), "", Score(float(is_right), is_right))
        for index, is_right in enumerate(correct)
    ]
    monkeypatch.setattr(heldout_eval, "generate", lambda *args, **options: [])
    monkeypatch.setattr(heldout_eval, "score", lambda *args: rollouts)
    result = heldout_eval.evaluate(fake_workers(), [prompt], SamplingParams(8, 1.0), seed=0, stop=StopFlag())
    assert type(result) is EvaluationResult
    assert (result.problems, result.samples, result.accuracy) == (len(correct), 1, accuracy)
    assert result.standard_error == pytest.approx(error)
    assert (result.mean_score, result.mean_length) == (accuracy, 2 + (len(correct) - 1) / 2)
    assert sum(result.by_reason.values()) == len(correct)


@pytest.mark.slow
def test_shaping_changes_the_rewards_and_not_the_result(toy_task, toy_model_path, monkeypatch):
    scored: list[list[Rollout]] = []
    score = heldout_eval.score
    monkeypatch.setattr(heldout_eval, "score", lambda *args: (scored.append(score(*args)), scored[-1])[1])

    def result_with(*wrappers: str) -> EvaluationResult:
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
            return heldout_eval.evaluate(workers, prompts, SamplingParams(8, 1.0), seed=1, stop=StopFlag())

    plain, shaped = result_with(), result_with("cosine", "mask_truncated")
    unshaped_rollouts, shaped_rollouts = scored
    assert [rollout.text for rollout in unshaped_rollouts] == [rollout.text for rollout in shaped_rollouts]
    assert [each.score.value for each in unshaped_rollouts] != [each.score.value for each in shaped_rollouts]
    assert (plain.mean_score, plain.accuracy, plain.by_reason) == (shaped.mean_score, shaped.accuracy, shaped.by_reason)
