"""What a run keeps of its completions: a fair sample, readable by others, cut where a run resumes."""

import json
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.configurations import call
from tests.trainer.runs import completions
from tinyzero_sdk import Item, Score, load_task
from tinyzero_trainer.config.run import LogConfig
from tinyzero_trainer.models.new_model import build_tokenizer
from tinyzero_trainer.monitoring import completion_log
from tinyzero_trainer.monitoring.completion_log import CompletionLog, TokenEnds
from tinyzero_trainer.types import EXAMPLE, Generation, Prompt, Rollout

TOKENIZER = build_tokenizer()
TASKS = {"countdown": load_task("countdown")}


def group(number: int, task: str = "countdown", size: int = 4) -> list[Rollout]:
    prompt = Prompt(Item({"target": 15, "numbers": [17, number, 3]}), f"prompt {number}", [1], task)
    text = "<answer>17+3-5</answer>"
    ids = TOKENIZER(text)["input_ids"]
    generation = Generation(ids, [-0.5] * len(ids), True)
    return [
        Rollout(prompt, generation, text, Score(index / 4, index == 0, parts={"format": 0.1})) for index in range(size)
    ]


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def log(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> CompletionLog:
    monkeypatch.setattr(completion_log, "SECONDS", 1e9)
    config = LogConfig(rollouts_count=9, held_out_count=3)
    return CompletionLog(tmp_path / "completions", config, TASKS, TOKENIZER, warnings.append)


@pytest.mark.slow
def test_of_a_step_all_completions_of_some_problems_are_kept(log, tmp_path):
    for step in range(1, 61):
        log.train(step, [one for number in range(8) for one in group(number)])
    log.write()
    kept = completions(tmp_path)
    assert Counter(row["step"] for row in kept) == dict.fromkeys(range(1, 61), 8)
    for step in (1, 60):
        of_step = [row for row in kept if row["step"] == step]
        assert Counter(row["problem"] for row in of_step).most_common()[-1][1] == 4
        assert [row["sample"] for row in of_step] == [0, 1, 2, 3] * 2
    chosen = Counter(row["problem"] for row in kept)
    assert len(chosen) == 8
    assert min(chosen.values()) > 20, "a fair sample has each of them 60 times on average"


def test_each_task_has_its_part(log, tmp_path):
    several = [one for task in ("a", "b", "c") for number in range(3) for one in group(number, task)]
    log.train(1, several)
    log.write()
    assert Counter(row["task"] for row in completions(tmp_path)) == {"a": 4, "b": 4, "c": 4}


def test_examples_have_the_scores_that_their_task_gives_them(log, tmp_path):
    right, wrong = "<answer>17+3-5</answer>", "<answer>17+5-3</answer>"
    examples = [replace(group(5, size=1)[0], text=text, score=EXAMPLE) for text in (right, wrong)]
    nameless = replace(examples[0], prompt=replace(examples[0].prompt, task=""))
    log.train(1, [*examples, nameless])
    log.write()
    kept = [(row["decoding"], row["correct"], row["score"], row["reason"]) for row in completions(tmp_path)]
    assert kept == [("example", True, 1.0, "ok"), ("example", False, 0.0, "wrong")]


def test_a_row_says_what_there_is_to_read(log, tmp_path):
    log.held_out(3, "greedy", [one for number in (5, 6, 7, 8) for one in group(number, size=1)])
    log.write()
    assert [path.name for path in (tmp_path / "completions").iterdir()] == ["heldout_00000003_00000003.parquet"]
    first, *others = completions(tmp_path, "heldout")
    assert len(others) == 2
    ends, numbers = first.pop("token_ends"), (17, 5, 3)
    pieces = [first["completion"][start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert pieces == ["<answer>", "17", "+", "3", "-", "5", "</answer>"]
    assert (first.pop("logprobs"), first.pop("difficulty")) == ([-0.5] * 7, 4)
    assert json.loads(first.pop("data")) == {}
    assert json.loads(first.pop("ground_truth")) == {"target": 15, "numbers": list(numbers)}
    assert dict(first.pop("parts")) == {"format": 0.1}
    assert first == {
        "step": 3,
        "split": "heldout",
        "decoding": "greedy",
        "task": "countdown",
        "problem": "3 5 17=15",
        "sample": 0,
        "prompt": "prompt 5",
        "completion": "<answer>17+3-5</answer>",
        "answer": None,
        "reason": "ok",
        "score": 0.0,
        "correct": True,
        "finished": True,
        "num_tokens": 7,
        "advantage": None,
        "entropies": None,
    }


def test_a_training_completion_has_its_advantage_and_entropies(log, tmp_path):
    rollouts = [replace(one, advantage=0.5, entropies=array("f", [0.25] * 7)) for one in group(5)]
    rollouts[1] = replace(rollouts[1], generation=replace(rollouts[1].generation, logprobs=None))
    log.train(1, rollouts)
    log.write()
    kept = completions(tmp_path)
    assert [(row["advantage"], row["entropies"]) for row in kept] == [(0.5, [0.25] * 7)] * 4
    assert [row["token_ends"] for row in kept] == [kept[0]["token_ends"]] * 4
    assert kept[1]["logprobs"] is None


def test_what_lies_past_a_checkpoint_is_cut(log, tmp_path):
    for step in range(1, 7):
        log.train(step, group(step))
        if step % 2 == 0:
            log.write()
    log.cut_after(4)
    assert sorted({row["step"] for row in completions(tmp_path)}) == [1, 2, 3, 4]
    log.cut_after(0)
    assert log.summary() == []


def test_files_that_cannot_be_written_are_lost_and_told_of_once(log, tmp_path, warnings):
    (tmp_path / "completions").write_text("in the way")
    for step in (1, 2):
        log.train(step, group(step))
        log.write()
    assert len(warnings) == 1
    assert warnings[0].endswith("the run goes on without these completions")
    assert log.summary()[0].endswith("2 files could not be written")
    (tmp_path / "completions").unlink()
    log.train(3, group(3))
    log.write()
    assert {row["step"] for row in completions(tmp_path)} == {3}


@given(st.text(max_size=40))
def test_tokens_end_where_their_text_does(text):
    ids = TOKENIZER(text)["input_ids"]
    ends = TokenEnds(TOKENIZER).find([*ids, TOKENIZER.eos_token_id], text)
    assert TokenEnds(TOKENIZER).find(array("i", [*ids, TOKENIZER.eos_token_id]), text) == ends
    if ends is not None:
        assert len(ends) == len(ids) + 1
        assert ends == sorted(ends)
        assert ends[-1] == len(text)
    if text.isascii():
        assert ends is not None


@pytest.mark.slow
def test_a_run_keeps_what_others_read(tmp_path, capsys):
    sizes = (
        "run.steps=1 data.prompts_per_step=4 rollout.group_size=2 eval.num_problems=6 rollout.max_completion_tokens=32"
    )
    code, out, error = call(
        capsys, "train", "--task", "countdown", "--output", str(tmp_path), *sizes.split(), "run.device=cpu"
    )
    assert code == 0, error
    assert f"completions: {tmp_path / 'completions'} (" in out
    (file,) = (tmp_path / "completions").glob("train_*.parquet")
    kept = pq.read_table(file).to_pylist()
    assert Counter(row["sample"] for row in kept) == {0: 4, 1: 4}
    scored = tmp_path / "scored.jsonl"
    code, _, error = call(capsys, "score", str(file), "--task", "countdown", "--output", str(scored))
    assert code == 0, error
    rows = [json.loads(line) for line in scored.read_text().splitlines()]
    assert [row["score"] for row in rows] == [row["score"] for row in kept]
    assert rows[0]["ground_truth"].keys() == {"target", "numbers"}
