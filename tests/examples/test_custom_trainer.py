"""examples/custom_trainer.py: it is short, and its loop trains."""

from pathlib import Path

import pytest
import torch

from examples import custom_trainer

torch.set_num_threads(1)


def test_it_has_at_most_sixty_lines() -> None:
    assert len(Path(custom_trainer.__file__).read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
def test_it_takes_two_steps(capsys: pytest.CaptureFixture[str]) -> None:
    rewards = custom_trainer.train(steps=2, prompts_per_step=8)
    assert len(rewards) == 2
    assert all(0 <= reward <= 1 for reward in rewards)
    assert max(rewards) > 0
    losses = [line.rpartition("loss ")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 2
    assert any(float(loss) for loss in losses)
