"""A reward that compares the completions of a problem, in training."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.trainer.runs import lines, short_run
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
def test_grpo_trains_on_what_each_group_gives(toy_task: str, warm_model: Path, tmp_path: Path) -> None:
    text = Path(toy_task).read_text()
    start, end = text.index("@hookimpl\ndef score"), text.index("@hookimpl\ndef difficulty")
    (tmp_path / "rare.py").write_text(text[:start] + RARE + text[end:])
    config = short_run(
        warm_model,
        tmp_path / "run",
        run__task=str(tmp_path / "rare.py"),
        run__steps=2,
        task__limit=5,
        log__rollouts_every=1,
    )
    train(config)
    for row in lines(tmp_path / "run")[1:]:
        assert row["critic/score/mean"] == pytest.approx(row["reward/part/right"] + 0.5 * row["reward/part/rare"])
        assert row["critic/advantages/max"] > 0
    files = sorted((tmp_path / "run" / "completions").glob("train_*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    groups = {(row["step"], row["problem"]) for row in rows}
    assert len(rows) > len(groups)
    for group in groups:
        own = [row for row in rows if (row["step"], row["problem"]) == group]
        times = Counter(row["answer"] for row in own)
        for row in own:
            assert dict(row["parts"])["rare"] == (1 / times[row["answer"]] if row["answer"] is not None else 0.0)
