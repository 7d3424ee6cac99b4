"""The adapters by themselves; with the packages they are for: `test_real_packages.py`."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.adapters.trl import RewardFunction, rows, text_of
from tinyzero_sdk.adapters.verl import ComputeScore, compute_score
from tinyzero_sdk.errors import DataError, SettingsError, TaskNotFoundError, UnsafeScorerError

TRUTH = {"target": 7, "numbers": [3, 4]}
RIGHT, WRONG = "<answer>3 + 4</answer>", "<answer>3 * 4</answer>"
UNSAFE = {
    "info": "@hookimpl\ndef info():\n    return TaskInfo(unsafe_scorer='it evaluates it')\n",
    "score": "@hookimpl\ndef score(answer, ground_truth):\n    return float(eval(answer) == ground_truth)\n",
}


def test_verl_calls_the_task_that_the_row_names() -> None:
    assert compute_score("countdown", RIGHT, TRUTH) == 1.0
    assert compute_score("countdown", WRONG, TRUTH, {"index": 3}, reward_router_address="ignored") == 0.0
    with pytest.raises(TaskNotFoundError, match="no task 'openai/gsm8k'"):
        compute_score("openai/gsm8k", RIGHT, TRUTH)


def test_verl_may_be_told_the_task_and_its_options() -> None:
    details = {"score": 0.1, "acc": 0.0, "reason": "wrong"}
    options = {"reward": "tinyzero"}
    assert compute_score("lighteval/MATH", WRONG, TRUTH, task="countdown", options=options, details=True) == details


def test_verl_rows_may_hold_numpy() -> None:
    truth = {"target": np.int64(7), "numbers": np.array([3, 4])}
    assert compute_score("countdown", RIGHT, truth) == 1.0


def test_a_data_file_cannot_choose_a_file_to_run(write_task: Callable[..., str]) -> None:
    path = write_task()
    with pytest.raises(SettingsError, match="a data file may not choose"):
        compute_score(path, "<answer>1</answer>", 1)
    assert compute_score(path, "<answer>1</answer>", 1, task=path) == 1.0


def test_a_reward_travels_to_other_processes_with_its_workers() -> None:
    task = load_task("countdown", options={"reward": "tinyzero"})
    with pickle.loads(pickle.dumps(ComputeScore(task, workers=1, time_limit=3.0))) as copy:
        assert copy("", WRONG, TRUTH) == 0.1
        assert copy._workers == 1
        assert copy._time_limit == 3.0


def test_workers_survive_a_scorer_that_hangs(write_task: Callable[..., str]) -> None:
    score = "@hookimpl\ndef score(answer, ground_truth):\n    while answer == 'hang':\n        pass\n    return 1.0\n"
    with ComputeScore(load_task(write_task(score=score)), workers=1, time_limit=0.2) as compute:
        assert compute("", "<answer>hang</answer>", 1) == 0.0
        assert compute("", "<answer>1</answer>", 1) == 1.0


def test_trl_gets_a_reward_for_each_completion() -> None:
    logged: list[tuple[str, float]] = []
    reward = RewardFunction("countdown")
    rewards = reward(
        prompts=["p", "p"],
        completions=[RIGHT, [{"role": "assistant", "content": WRONG}]],
        completion_ids=[[1, 2], [3]],
        ground_truth=[TRUTH, TRUTH],
        difficulty=[1, 2],
        trainer_state=None,
        log_extra=None,
        log_metric=lambda name, value: logged.append((name, value)),
    )
    assert rewards == [1.0, 0.0]
    assert logged == [("countdown/accuracy", 0.5)]
    assert reward.__name__ == "countdown"


def test_trl_without_a_ground_truth_is_told_what_to_do() -> None:
    with pytest.raises(DataError, match="no column `ground_truth`"):
        RewardFunction("countdown")(prompts=["p"], completions=[RIGHT])


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("7", "7"),
        ([{"role": "assistant", "content": "6"}, {"role": "assistant", "content": "7"}], "7"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "7"}, {"type": "image"}]}], "7"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
        ([], ""),
    ],
)
def test_what_the_assistant_said(completion: object, text: str) -> None:
    assert text_of(completion) == text  # type: ignore[arg-type]


def test_rows_of_trl_are_the_problems_of_the_task() -> None:
    task = load_task("countdown")
    given = list(rows(task, 3, split="test", seed=5, template="compact"))
    items = list(task.dataset("test", 3, seed=5))
    assert given == [{"prompt": task.make_prompt(item, "compact"), "ground_truth": item.ground_truth} for item in items]


def test_an_unsafe_scorer_needs_leave_and_gets_a_worker(write_task: Callable[..., str]) -> None:
    path = write_task(**UNSAFE)
    with pytest.raises(UnsafeScorerError, match="--allow-unsafe-scorers"):
        RewardFunction(path)
    with RewardFunction(load_task(path, allow_unsafe_scorers=True)) as reward:
        inside = "<answer>'tinyzero_sdk.worker' in __import__('sys').orig_argv</answer>"
        assert reward(completions=[inside], ground_truth=[True]) == [1.0]
