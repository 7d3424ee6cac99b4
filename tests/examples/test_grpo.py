"""examples/grpo.py: its formulas match the trainer's, padding and splitting change nothing, and it stays short."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from examples import grpo
from tests.e2e.test_distributions import imported_packages
from tinyzero_sdk import load_task
from tinyzero_trainer.algorithms import advantages, losses
from tinyzero_trainer.algorithms.batch import TrainingBatch

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples/grpo.py"
TINY_MODEL = ROOT / "trainer/tinyzero_trainer/tiny_model"
OPTIONS = '{"numbers": [3], "number_range": [1, 20], "target_range": [1, 50]}'

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy():
    return grpo.load_model(str(TINY_MODEL))


@pytest.fixture(scope="module")
def rollouts(policy):
    torch.manual_seed(0)
    model, tokenizer = policy
    prompts = [tokenizer(text)["input_ids"] for text in ("3 7 12=48\n", "100 2 3 4 5=7\n", "1 2=3\n")]
    assert len({len(prompt) for prompt in prompts}) > 1
    return grpo.generate(model, tokenizer, prompts, group_size=4, max_completion_tokens=48)


def test_it_is_one_short_file_without_the_trainer() -> None:
    assert imported_packages(FILE) - sys.stdlib_module_names == {"torch", "transformers", "tinyzero_sdk"}
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 250


def test_advantages_are_the_trainers() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1], [0.3, 0.7, 0.2, 1.0]])
    lengths = torch.ones(rewards.numel(), dtype=torch.long)
    expected = advantages.grpo(TrainingBatch(rewards.flatten(), lengths, group_size=4))
    assert grpo.group_advantages(rewards).flatten().tolist() == expected.tolist()


def test_the_loss_is_the_trainers() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5, 1, 4])
    count = int(lengths.sum())
    old = -3 * torch.rand(count, generator=generator)
    new = old + 0.4 * torch.randn(count, generator=generator)
    advantage = torch.tensor([1.5, -0.5, -1.0, 0.25]).repeat_interleave(lengths)
    given = losses.LossInputs(old, advantage, lengths, 0.2, 0.2)
    expected = losses.ppo(new, given)
    assert 0 < expected.clipped.sum() < count
    assert grpo.policy_loss(new, old, advantage, 0.2).tolist() == expected.loss.tolist()


def test_a_gold_completion_is_better_than_its_group() -> None:
    task = load_task("countdown")
    items = list(task.dataset("train", 4))
    texts = [text for item in items for text in (task.solve(item), "<answer>1</answer>", "no answer", "")]
    rewards = torch.tensor([score.value for score in grpo.score(task, items, texts)]).view(4, 4)
    result = grpo.group_advantages(rewards)
    assert (result[:, 0] > 0).all()
    assert (result[:, 1:] < 0).all()


@pytest.mark.slow
def test_completions_end_with_their_end_token(policy, rollouts) -> None:
    model, tokenizer = policy
    start = rollouts.tokens.shape[1] - rollouts.completion_mask.shape[1]
    lengths = set()
    for tokens, mask, text in zip(rollouts.tokens[:, start:], rollouts.completion_mask, rollouts.texts, strict=True):
        length = int(mask.sum())
        assert mask.tolist() == [1] * length + [0] * (len(mask) - length)
        ended = (tokens == model.generation_config.eos_token_id).nonzero().flatten().tolist()
        assert ended[:1] == ([length - 1] if length < len(mask) or ended else [])
        assert text == tokenizer.decode(tokens[:length], skip_special_tokens=True)
        lengths.add(length)
    assert len(lengths) > 2


def test_logprobs_do_not_depend_on_padding_or_on_the_rest_of_the_batch(policy, rollouts) -> None:
    model, _ = policy
    with torch.no_grad():
        batch = grpo.completion_logprobs(model, rollouts, torch.arange(12))
        for row, mask in enumerate(rollouts.completion_mask):
            length = int(mask.sum())
            tokens = rollouts.tokens[row][rollouts.attention_mask[row] == 1]
            each = model(tokens[None]).logits[0].log_softmax(dim=-1)[:-1].gather(1, tokens[1:, None])[-length:, 0]
            torch.testing.assert_close(batch[row, :length], each, rtol=1e-4, atol=1e-4)
            assert (batch[row, length:] == 0).all()


@pytest.mark.slow
def test_the_update_does_not_depend_on_the_size_of_micro_batches(rollouts) -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    updated = []
    for size in ("5", "12"):
        model, _ = grpo.load_model(str(TINY_MODEL))
        args = grpo.parser.parse_args(["--model", "-", "--output", "-", "--micro-batch-size", size])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # unlike AdamW, as large a step as the gradient is
        metrics = grpo.update(model, optimizer, rollouts, grpo.group_advantages(rewards), args)
        updated.append((metrics["loss"], metrics["grad_norm"], model.model.layers[0].mlp.up_proj.weight.detach()))
    (loss, norm, weight), whole = updated
    assert loss == pytest.approx(whole[0], abs=1e-5)
    assert norm == pytest.approx(whole[1], rel=1e-3)
    torch.testing.assert_close(weight, whole[2], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_it_trains_and_saves_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "model"
    arguments = ["--task", "countdown", "--task-options", OPTIONS, "--prompt-template", "compact", "--steps", "3"]
    arguments += ["--prompts-per-step", "8", "--group-size", "8", "--max-completion-tokens", "32"]
    arguments += ["--eval-problems", "16", "--learning-rate", "1e-3", "--model", str(TINY_MODEL)]
    grpo.main([*arguments, "--output", str(output)])
    printed = capsys.readouterr().out
    steps = re.findall(r"^step \d/3 .* loss (\S+)  grad norm (\S+)", printed, re.MULTILINE)
    assert len(steps) == 3
    assert all(math.isfinite(float(value)) for step in steps for value in step)
    assert any(float(norm) > 0 for _, norm in steps)
    assert re.search(r"held-out accuracy: \d+\.\d% -> \d+\.\d%", printed)
    before, after = (grpo.load_model(str(path))[0].state_dict() for path in (TINY_MODEL, output))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
