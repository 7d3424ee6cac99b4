"""A real pretrained chat model through `sft`, `train` and `eval`, a few steps each."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.trainer.configurations import call
from tests.trainer.runs import completions, lines


@pytest.mark.slow
def test_smollm2_is_fine_tuned_trained_and_evaluated(
    smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("run.device=cpu", "rollout.max_completion_tokens=16", "eval.num_problems=2", "eval.every=0")
    few += ("eval.greedy=false", "checkpoint.every=0", "log.rollouts_every=1", "task.numbers=[3]")
    sft, rl = str(tmp_path / "sft"), str(tmp_path / "rl")
    sizes = ("run.steps=2", "data.batch_size=2", "optimizer.learning_rate=1e-4", "optimizer.warmup_steps=0")
    code, out, error = call(
        capsys, "sft", "--task", "countdown", "--model", str(smollm2), "--output", sft, *few, *sizes
    )
    assert code == 0, error
    assert "held-out loss: " in out
    rows = lines(sft)
    assert rows[2]["val/loss"] < rows[0]["val/loss"]
    learned = completions(sft)
    assert all("<|im_start|>user" in row["prompt"] and "<answer>" in row["completion"] for row in learned)

    sizes = ("run.steps=1", "data.prompts_per_step=2", "rollout.group_size=2")
    words = ("--task", "countdown", "--model", sft, "--output", rl)
    code, _, error = call(capsys, "train", *words, *few, *sizes)
    assert code == 0, error
    code, out, error = call(capsys, "eval", "--model", rl, "--size", "2", "--json", "rollout.max_completion_tokens=8")
    assert code == 0, error
    assert json.loads(out)["problems"] == 2
    # What the next run loads has the pretrained model's own tokenizer and template.
    newest = Path(rl, "checkpoints", "step_1")
    assert AutoTokenizer.from_pretrained(newest).chat_template == AutoTokenizer.from_pretrained(smollm2).chat_template
