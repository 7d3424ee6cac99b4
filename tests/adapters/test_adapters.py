"""The adapters by themselves; `test_real_packages.py` runs them with the trainers."""

import json
import pickle
import warnings

import numpy as np
import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.adapters.scorer import MOST_FAILURES
from tinyzero_sdk.adapters.trl import RewardFunction, rows, text_of
from tinyzero_sdk.adapters.verl import ComputeScore, compute_score
from tinyzero_sdk.errors import BrokenTaskError, DataError, SettingsError, TaskNotFoundError, UnsafeScorerError

TRUTH = {"target": 7, "numbers": [3, 4]}
RIGHT, WRONG = "<answer>3 + 4</answer>", "<answer>3 * 4</answer>"
UNSAFE = {
    "info": "@hookimpl\ndef info():\n    return TaskInfo(unsafe_scorer='it evaluates it')\n",
    "score": "@hookimpl\ndef score(answer, ground_truth):\n    return float(eval(answer) == ground_truth)\n",
}


def test_verl_calls_the_task_that_the_row_names_with_what_verl_passes():
    assert compute_score("countdown", RIGHT, TRUTH) == 1.0
    of_verl = {"reward_router_address": "1.2.3.4:5", "reward_model_tokenizer": None}
    assert compute_score("countdown", WRONG, TRUTH, {"index": 3}, **of_verl) == 0.0
    truth = {"target": np.int64(7), "numbers": np.array([3, 4])}
    assert compute_score("countdown", RIGHT, truth) == 1.0


@pytest.mark.parametrize(("source", "task"), [("openai/gsm8k", "gsm8k"), ("hiyouga/geometry3k", "NAME")])
def test_a_data_source_that_is_no_task_gets_the_key_that_names_one(source, task):
    with pytest.raises(TaskNotFoundError, match=f"no task '{source}'.*reward_kwargs.task={task}$"):
        compute_score(source, RIGHT, TRUTH)
    with pytest.raises(TaskNotFoundError, match=r"no task 'nothing'; .*installed"):
        compute_score(source, RIGHT, TRUTH, task="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_ground_truth_may_be_json_text_of_what_the_task_takes(workers):
    with ComputeScore("countdown", workers=workers) as compute:
        assert [compute("", text, json.dumps(TRUTH)) for text in (RIGHT, WRONG)] == [1.0, 0.0]


def test_text_that_looks_like_json_stays_text_where_the_task_takes_text(write_task):
    with ComputeScore(load_task(write_task())) as compute:
        assert compute("", "<answer>[1, 2]</answer>", "[1, 2]") == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "workers"), [(None, 1), ("7", 0), ("{", 0), ("[7]", 0), ({"target": 7}, 0)])
def test_a_ground_truth_that_the_scorer_fails_on_is_reported_once_and_ends_the_run(truth, workers):
    with ComputeScore("countdown", workers=workers) as compute:
        with pytest.warns(UserWarning, match=r"'countdown' failed on an answer, which scores 0 \(error: \w+Error"):
            assert compute("", RIGHT, truth) == 0.0
        assert compute("", "I give up.", truth) == 0.0  # a failure too, of which nothing more is told
        assert [compute("", RIGHT, truth) for _ in range(MOST_FAILURES - 3)] == [0.0] * (MOST_FAILURES - 3)
        with pytest.raises(BrokenTaskError, match=f"'countdown' failed on all of the first {MOST_FAILURES} answers"):
            compute("", RIGHT, truth)


def test_single_errors_do_not_end_a_run_that_had_scores():
    reward = RewardFunction("countdown")
    assert reward(completions=[WRONG], ground_truth=[TRUTH]) == [0.0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert reward(completions=[RIGHT] * 99, ground_truth=["7"] * 99) == [0.0] * 99
        assert reward(completions=[RIGHT] * 99, ground_truth=["7"] * 99) == [0.0] * 99
    assert len(caught) == 1


def test_trl_needs_a_ground_truth_for_each_completion():
    with pytest.raises(DataError, match="2 completions and 1 ground truths; expected one for each"):
        RewardFunction("countdown")(completions=[RIGHT, WRONG], ground_truth=[TRUTH])
    with pytest.raises(DataError, match="no column `ground_truth`"):
        RewardFunction("countdown")(prompts=["p"], completions=[RIGHT])


def test_a_misspelt_key_is_refused_and_another_is_ignored_with_a_warning():
    with pytest.raises(SettingsError, match=r"no key 'Task' in .*did you mean task"):
        compute_score("countdown", RIGHT, TRUTH, Task=1)
    with pytest.raises(SettingsError, match="no key 'detail' in reward_kwargs; did you mean details"):
        ComputeScore("countdown")("", RIGHT, TRUTH, detail=True)
    with pytest.warns(UserWarning, match="'sandbox_url' has no effect on the reward; known: task, options"):
        assert compute_score("countdown", RIGHT, TRUTH, sandbox_url="x") == 1.0


def test_verl_may_be_given_the_task_and_its_options():
    details = {"score": 0.1, "acc": 0.0, "reason": "wrong"}
    options = {"weights": {"correct": 0.9, "format": 0.1}}
    assert compute_score("lighteval/MATH", WRONG, TRUTH, task="countdown", options=options, details=True) == details


@pytest.mark.slow
def test_a_reward_travels_to_other_processes_with_its_workers():
    task = load_task("countdown", options={"weights": {"correct": 0.9, "format": 0.1}})
    with pickle.loads(pickle.dumps(ComputeScore(task, workers=1, timeout=3.0))) as copy:
        assert copy("", WRONG, TRUTH) == 0.1


@pytest.mark.slow
def test_workers_survive_a_scorer_that_hangs(write_task):
    score = "@hookimpl\ndef score(answer, ground_truth):\n    while answer == 'hang':\n        pass\n    return 1.0\n"
    with ComputeScore(load_task(write_task(score=score)), workers=1, timeout=0.3) as compute:
        with pytest.warns(UserWarning, match=r"task 'say' failed .*timeout: it took more than 0.3 s"):
            assert compute("", "<answer>hang</answer>", 1) == 0.0
        assert compute("", "<answer>1</answer>", 1) == 1.0


def test_trl_gets_a_reward_for_each_completion():
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
def test_text_of_the_last_message(completion, text):
    assert text_of(completion) == text


def test_rows_of_trl_are_the_problems_of_the_task():
    task = load_task("countdown")
    given = list(rows(task, 3, split="test", seed=5, template="compact"))
    items = list(task.dataset("test", 3, seed=5))
    assert given == [{"prompt": task.make_prompt(item, "compact"), "ground_truth": item.ground_truth} for item in items]


def test_an_unsafe_scorer_needs_permission_and_gets_a_worker(write_task):
    path = write_task(**UNSAFE)
    with pytest.raises(UnsafeScorerError, match="--allow-unsafe-scorers"):
        RewardFunction(path)
    with RewardFunction(load_task(path, allow_unsafe_scorers=True)) as reward:
        inside = "<answer>'tinyzero_sdk.workers.process' in __import__('sys').orig_argv</answer>"
        assert reward(completions=[inside], ground_truth=[True]) == [1.0]
