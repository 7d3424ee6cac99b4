"""Runs on the problems of files: their prompts, splits and difficulties, and that an interruption changes nothing."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import killed, lines, short_run
from tinyzero_sdk import load_task
from tinyzero_sdk.data.build import write_dataset
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_trainer.config import CurriculumConfig
from tinyzero_trainer.config.rollout import DataConfig
from tinyzero_trainer.config.tasks import load_tasks, read_task_specs, refuse_unused
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.models.loading import LanguageModel


@pytest.fixture
def files(toy_task: str, tmp_path: Path) -> Path:
    write_dataset(load_task(toy_task, options={"limit": 12}), tmp_path / "data", sizes={"train": 60, "test": 12})
    return tmp_path / "data"


@pytest.fixture
def source(toy_task: str, toy_model: LanguageModel) -> Callable[..., PromptSource]:
    def make(path: Path, **options: Any) -> PromptSource:
        tasks = load_tasks(read_task_specs({"toy_task": {"task": toy_task}}), DataConfig(path=str(path)))
        return PromptSource(tasks["toy_task"], toy_model.tokenizer, **options)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [0, 2])
def test_each_row_comes_once_an_epoch_and_a_resumed_stream_continues(
    files: Path, source: Callable[..., PromptSource], buckets: int
) -> None:
    curriculum = CurriculumConfig(buckets=buckets, min_probability=0.1)
    stream = source(files).stream(7, None, curriculum)
    prompts, states = [], []
    for _ in range(150):
        states.append(stream.progress)
        prompts.append(next(stream).text)
    assert len(set(prompts[:60])) == 60
    assert sorted(prompts[60:120]) == sorted(prompts[:60]) != prompts[60:120]
    assert all(prompt.endswith("=") for prompt in prompts)  # the text that the file has, without chat messages
    for taken in (0, 37, 60, 141):
        resumed = islice(source(files).stream(7, states[taken], curriculum), 9)
        assert [prompt.text for prompt in resumed] == prompts[taken : taken + 9]


def test_a_prompt_that_is_too_long_stops_the_run_before_it_starts(
    files: Path, source: Callable[..., PromptSource]
) -> None:
    # 129 prompts have more text in fewer tokens: `<answer>` is one of this model's.
    rows = [
        {
            "prompt": "1+" * 60 if n == 17 else f"{n}{'<answer>' * 18}",
            "ground_truth": {"sum": n},
            "extra_info": {"split": split},
        }
        for n, split in enumerate(["train"] * 130 + ["test"] * 3)
    ]
    (files / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"long.jsonl:18: the prompt of task 'toy_task' has \d+ tokens, expected 1 to "):
        source(files / "long.jsonl", max_prompt_tokens=100).stream(0)


@pytest.mark.parametrize("has_prompt", [True, False])
def test_a_template_is_for_rows_without_a_prompt(
    files: Path, source: Callable[..., PromptSource], has_prompt: bool
) -> None:
    rows = [
        {"numbers": [1, number], "ground_truth": {"sum": 1 + number}, "extra_info": {"split": split}}
        | ({"prompt": "Add."} if has_prompt else {})
        for number, split in enumerate(("train", "test"))
    ]
    path = files / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    prompts = source(path, prompt_template="base")
    (prompt,) = prompts.held_out(1)
    typed = {"data": {"prompt_template": "base"}}
    if not has_prompt:
        assert prompt.text == prompts.task.make_prompt(prompt.item, "base") != "Add."
        refuse_unused({"toy_task": prompts.task}, typed)
        return
    assert prompt.text == "Add."
    with pytest.raises(SettingsError, match=r"prompt_template='base' has no effect: the rows of data\.path have"):
        refuse_unused({"toy_task": prompts.task}, typed)


@pytest.mark.slow
def test_a_run_on_files_is_resumed_with_the_same_files_alone(
    files: Path, warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"path": str(files / "train.parquet"), "test_path": str(files / "test.parquet"), "prompts_per_step": 4}
    data |= {"prompt_template": None, "test_fraction": 1 / 16}
    settings = {"run__steps": 3, "tasks": {"toy_task": {"task": toy_task}}, "data": data, "checkpoint__every": 1}
    config = short_run(warm_model, tmp_path / "run", **settings)
    with killed(monkeypatch, TrainingStep, "take", 2):
        train(config)
    kept = (files / "train.parquet").read_bytes()
    write_dataset(load_task(toy_task), files, sizes={"train": 60}, seed=1, overwrite=True)
    with pytest.raises(SettingsError, match=r"data\.path or data\.test_path has not the problems of task 'toy_task'"):
        train(config, resume=True)
    (files / "train.parquet").write_bytes(kept)
    rows = lines(train(config, resume=True).output)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["val-aux/toy_task/size"] == 8
