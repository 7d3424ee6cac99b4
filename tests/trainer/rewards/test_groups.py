"""A reward that compares the completions of a problem, in training."""

from collections import Counter
from pathlib import Path

import pytest

from tests.trainer.runs import completions, lines, short_run
from tinyzero_trainer.controller.loop import train

RARE = """
from collections import Counter
from tinyzero_sdk import RewardPart, TaskInfo

@hookimpl
def info():
    return TaskInfo(parts={"right": RewardPart(), "rare": RewardPart(0.5)})

@hookimpl
def score(answer, ground_truth):
    right = answer == str(ground_truth["sum"])
    return Score.of_parts({"right": float(right)}, correct=right)

@hookimpl
def score_group(answers):
    times = Counter(answers)
    return [{"rare": 1 / times[answer]} for answer in answers]
"""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "gdpo"])
def test_a_run_trains_on_what_each_group_gives(estimator: str, toy_task: str, warm_model: Path, tmp_path: Path) -> None:
    text = Path(toy_task).read_text()
    start, end = text.index("@hookimpl\ndef score"), text.index("@hookimpl\ndef difficulty")
    (tmp_path / "rare.py").write_text(text[:start] + RARE + text[end:])
    tasks = {"rare": {"task": str(tmp_path / "rare.py"), "options": {"limit": 5}}, "toy": {"task": toy_task}}
    config = short_run(
        warm_model,
        tmp_path / "run",
        run__steps=2,
        tasks=tasks,
        data__prompts_per_step=6,
        algorithm__advantage_estimator=estimator,
        log={"rollouts_every": 1, "rollouts_count": 6},
    )
    train(config)
    first, *steps = lines(tmp_path / "run")
    assert 0 < first["val-aux/rare/part/rare"] <= 1
    assert [name for name in first if name.startswith("val-aux/toy/part/")] == []
    rows = completions(tmp_path / "run")
    for number, step in enumerate(steps, start=1):
        assert step["critic/advantages/max"] > 0
        assert step["task/rare/score"] == pytest.approx(
            step["task/rare/part/right"] + 0.5 * step["task/rare/part/rare"]
        )
        groups: dict[str, list[str | None]] = {}
        own = [row for row in rows if (row["step"], row["task"]) == (number, "rare")]
        for row in own:
            groups.setdefault(row["problem"], []).append(row["answer"])
        assert max(map(len, groups.values())) > 1
        for row in own:
            times = Counter(groups[row["problem"]])
            assert dict(row["parts"])["rare"] == (0.0 if row["answer"] is None else 1 / times[row["answer"]])
