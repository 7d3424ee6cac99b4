"""`tinyzero eval` with a model on this machine: the same problems as in training, and resuming where it stopped."""

import json
from dataclasses import replace

import pytest
import torch

from tests.trainer.runs import on_call
from tinyzero_sdk import load_task
from tinyzero_sdk.cli import main
from tinyzero_sdk.evaluation.evaluate import evaluate
from tinyzero_sdk.evaluation.protocol import EVALUATION_SEED, EvaluationRequest
from tinyzero_sdk.evaluation.sample_log import SampleFile
from tinyzero_trainer.controller.eval_config import LocalModels
from tinyzero_trainer.data import prompts
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.rollout import TorchEngine
from tinyzero_trainer.utils.oom import OutOfMemoryError

OVERRIDES = ("rollout.max_completion_tokens=12", "rollout.max_num_seqs=8", "data.test_fraction=0.4", "run.device=cpu")


class NoProgress:
    def sampling(self, kept, ahead, total):
        assert kept + ahead <= total

    def scoring(self, share):
        pass


@pytest.fixture
def plan(toy_task, toy_model_path):
    """A plan of six problems, two completions each, four problems at a time."""

    def plan(**changes):
        request = EvaluationRequest(toy_task, OVERRIDES, str(toy_model_path), size=6, samples=2)
        return LocalModels().plan(replace(request, **changes))

    return plan


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_problems_are_those_held_out_in_training(plan, toy_task, toy_model, tmp_path):
    result = evaluate(plan(), tmp_path / "out.jsonl", NoProgress())
    held_out = PromptSource(load_task(toy_task), toy_model.tokenizer, test_fraction=0.4).held_out(6)
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["numbers"] for row in rows[::2]] == [prompt.item.data["numbers"] for prompt in held_out]
    assert (result.summary.prompts, result.summary.rows) == (6, 12)
    assert prompts.EVALUATION_SEED == EVALUATION_SEED


@pytest.mark.slow
def test_an_evaluation_that_was_stopped_gives_what_one_that_was_not_gives(plan, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    evaluate(plan(), whole, NoProgress())
    for kept in (5, 10):  # in the middle of the first group of problems, and of the second
        with (
            on_call(monkeypatch, SampleFile, "append", kept + 1, KeyboardInterrupt()),
            pytest.raises(KeyboardInterrupt),
        ):
            evaluate(plan(), stopped, NoProgress())
        assert len(rows_of(stopped)) == kept
    evaluate(plan(), stopped, NoProgress())
    assert stopped.read_bytes() == whole.read_bytes()
    assert len({row["completion"] for row in rows_of(whole)}) > 6  # they are draws, not one text


@pytest.mark.slow
def test_a_finished_evaluation_is_not_sampled_again(plan, tmp_path, monkeypatch):
    output = tmp_path / "out.jsonl"
    first = evaluate(plan(), output, NoProgress())
    monkeypatch.setattr("tinyzero_trainer.controller.local_sampler.LocalSampler.sample", None)
    again = evaluate(plan(), output, NoProgress())
    assert (again.summary, again.tokens_per_second) == (first.summary, None)


def test_the_requested_sampling_reaches_the_engine(plan, tmp_path):
    chosen = plan(
        temperature=0.0, top_p=0.5, seed=9, max_tokens=7, overrides=OVERRIDES[1:], template="base", split="train"
    )
    evaluate(chosen, tmp_path / "out.jsonl", NoProgress())
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["completion"] for row in rows[::2]] == [row["completion"] for row in rows[1::2]], "greedy"
    assert max(row["token_count"] for row in rows) <= 7
    sampling = rows[0]["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["seed"], sampling["split"]) == (0.0, 0.5, 9, "train")
    assert (sampling["max_tokens"], sampling["max_num_seqs"], sampling["template"]) == (7, 8, "base")


def test_a_context_too_short_for_prompt_and_completion_is_one_line(toy_task, toy_model_path, capsys):
    arguments = ["--task", toy_task, "--model", str(toy_model_path), "--size", "2", "--max-tokens", "999"]
    with pytest.raises(SystemExit) as left:
        main(["eval", *arguments, "data.test_fraction=0.4", "run.device=cpu"])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert "exceed the 256 tokens" in error
    assert error.count("error:") == 1


def test_without_memory_it_says_what_to_change(plan, tmp_path, monkeypatch):
    def short(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has")

    monkeypatch.setattr(TorchEngine, "generate", short)
    for samples, advice in ((2, "give rollout.max_num_seqs=4 and another --output"), (8, "ask for fewer samples, or")):
        with pytest.raises(OutOfMemoryError) as error:
            evaluate(plan(samples=samples), tmp_path / f"{samples}.jsonl", NoProgress())
        assert f"ran out while completions were generated (Tried to allocate 4.64 GiB); {advice}" in str(error.value)
