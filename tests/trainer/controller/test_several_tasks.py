"""A run on two tasks, mixed and chosen by difficulty: what it leaves, and that an interruption changes nothing."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.runs import Configure, completions, lines, short_run
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.scoring.statistics import pass_at_k
from tinyzero_trainer.checkpoint.run_status import status_of
from tinyzero_trainer.controller.ending import Change, TrainResult
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.data import prompts

STEPS = 4


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    """Makes the configuration of a run on one- and on two-digit sums."""
    settings = {
        "run__steps": STEPS,
        "tasks": {
            "short": {"task": toy_task, "weight": 2, "options": {"limit": 12}},
            "long": {"task": toy_task, "options": {"limit": 35}},
        },
        "data": {"prompts_per_step": 3, "max_refill_rounds": 2},
        "curriculum": {"buckets": 2, "ema_decay": 0.5},
        "eval": {"num_problems": 6, "num_problems_during": 3, "greedy": False},
        "checkpoint__every": 1,
        "optimizer__packing": "padded",
        "log": {"rollouts_every": 2, "rollouts_count": 6},
    }
    return lambda output, **changes: short_run(warm_model, output, **{**settings, **changes})


@pytest.fixture(autouse=True, scope="module")
def _few_are_looked_at() -> Iterator[None]:
    """The difficulties of that many problems, which each run looks at before it starts, take longer than its steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "SAMPLE", 200)
        yield


@pytest.fixture(scope="module")
def whole(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.slow
def test_each_task_is_measured_on_its_own_problems(whole: TrainResult) -> None:
    found = lines(whole.output)
    for name in ("short", "long"):
        key = f"val-core/{name}/acc/mean@1"
        assert [row["step"] for row in found if key in row] == [0, 2, 4]
        assert whole.accuracy[name] == Change(found[0][key], found[-1][key])
        assert [row[f"val-aux/{name}/size"] for row in (found[0], found[2], found[4])] == [6, 3, 6]
    kept = completions(whole.output)
    assert {row["step"] for row in kept} == {2, 4}
    assert Counter(row["task"] for row in kept if row["step"] == 2) == {"short": 4, "long": 4}


@pytest.mark.slow
def test_a_run_is_evaluated_on_other_tasks_and_by_pass_at_k(configure: Configure, tmp_path: Path) -> None:
    settings = configure(tmp_path / "run").tasks
    easy, hard = settings["short"], {key: settings["long"][key] for key in ("task", "options")}
    run = train(
        configure(
            tmp_path / "run",
            run__steps=1,
            tasks={"easy": easy | {"weight": 1}},
            eval={"tasks": {"hard": hard}, "pass_at": [2, 4], "num_problems": 6, "num_problems_during": 6},
            log={"held_out_count": 27},
        )
    )
    assert set(run.accuracy) == {"easy", "hard"}
    before = lines(run.output)[0]
    assert not [key for row in lines(run.output) for key in row if key.startswith("task/")], "it is trained on one"
    for name in ("easy", "hard"):
        kept = [row for row in completions(run.output, "heldout") if (row["task"], row["step"]) == (name, 0)]
        sampled = [row for row in kept if row["decoding"] == "sampled"]
        assert [row["sample"] for row in sampled] == [0, 1, 2, 3] * 6
        assert len({row["problem"] for row in sampled}) == len(kept) - len(sampled) == 6
        correct = np.array([row["correct"] for row in sampled]).reshape(6, 4)
        size, solved = np.full(6, 4), correct.sum(axis=1)
        assert f"val-core/{name}/acc/mean@1" not in before, "one evaluation has one accuracy"
        assert before[f"val-core/{name}/acc/mean@4"] == correct.mean() == run.accuracy[name].before
        assert status_of(run.output).accuracy[name] == (run.accuracy[name].before, run.accuracy[name].after)
        assert before[f"val-core/{name}/acc/best@4/mean"] == (solved > 0).mean()
        assert before[f"val-aux/{name}/acc/best@2/mean"] == pytest.approx(pass_at_k(solved, size, 2).mean())
    assert not {"curriculum/hard/bucket_0/weight", "val-aux/hard/acc/best@4/mean"} & before.keys()


@pytest.mark.slow
def test_training_metrics_are_of_each_task(whole: TrainResult) -> None:
    steps = lines(whole.output)[1:]
    assert {"task/short/acc", "task/short/score", "task/long/acc", "task/long/score"} <= steps[0].keys()
    levels = {key.rpartition("/")[0] for row in steps for key in row if key.startswith("train/acc_by_difficulty/")}
    assert levels == {"train/acc_by_difficulty/short", "train/acc_by_difficulty/long"}
    for row in steps:
        counts = {name: row[f"task/{name}/prompts"] for name in ("short", "long")}
        mean = sum(counts[name] * row.get(f"task/{name}/acc", 0.0) for name in counts) / sum(counts.values())
        assert mean == pytest.approx(row["completion/acc_mean"])
    drawn = [sum(row[f"task/{name}/prompts"] for row in steps) for name in ("short", "long")]
    assert drawn[0] / sum(drawn) == pytest.approx(2 / 3, abs=1 / sum(drawn))
    for name in ("short", "long"):
        weights = [steps[-1][f"curriculum/{name}/bucket_{bucket}/weight"] for bucket in (0, 1)]
        assert sum(weights) == pytest.approx(1)
        assert 0 <= steps[-1][f"curriculum/{name}/bucket_0/pass_rate"] <= 1


@pytest.mark.slow
@pytest.mark.fault(
    "F12",
    "A task's scorer raises",
    made="in each completion of one task of two",
    seen="the scorer of task 'bad' failed on … of … completions…",
    kept=(
        "below `reward.max_failure_rate` the failed ones are masked and counted, and the run goes on; above it, "
        "all steps so far"
    ),
    code=2,
)
def test_a_broken_scorer_is_named(fault_row, configure, toy_task, tmp_path):
    tasks = {"good": {"task": toy_task}, "bad": {"task": toy_task, "options": {"fail": True}}}
    run = configure(tmp_path / "run", tasks=tasks, reward__max_failure_rate=0.0, curriculum={})
    with pytest.raises(BrokenTaskError) as error:
        train(run)
    fault_row.check(error.value)
