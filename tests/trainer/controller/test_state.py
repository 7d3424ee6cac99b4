"""The state that a checkpoint holds comes back as it was, from version 0.1 too."""

import json
import math
from pathlib import Path

import pytest

from tinyzero_trainer.algorithms.adaptive_length import LengthControlState
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.data.prompts import StreamState


@pytest.mark.parametrize("pending", [None, {"critic/score/mean": 0.1, "actor/grad_norm": float("inf")}])
def test_the_state_survives_a_checkpoint(pending: dict[str, float] | None, tmp_path: Path) -> None:
    progress = {"toy": StreamState(7, 1, 5, (2, 1), (0.25, None)), "other": StreamState()}
    adapted = {"kl_coefficient": 0.1 + 0.2, "window": LengthControlState(max_tokens=64, success_rate=1 / 3)}
    state = TrainerState(3, pending, 1e-7, cumulative_reward=-7 / 9, progress=progress, **adapted)  # type: ignore[arg-type]
    state.save(tmp_path)
    assert TrainerState.load(tmp_path) == state


def test_a_nan_metric_survives_a_checkpoint(tmp_path: Path) -> None:
    TrainerState(pending={"actor/pg_loss": float("nan")}).save(tmp_path)
    found = TrainerState.load(tmp_path).pending
    assert found is not None
    assert math.isnan(found["actor/pg_loss"])


def test_the_state_of_version_0_1_is_read(tmp_path: Path) -> None:
    stream = {"taken": 7, "epoch": 1, "read": 5, "taken_from": [2, 1], "pass_rates": [0.25, None]}
    window = {"tokens": 64, "success_rate": 0.5, "correct_length": None, "length": 9.0, "truncated": 0.0, "held": 2}
    carried = {"progress": {"toy": stream}, "kl_coefficient": 0.3, "window": window}
    saved = {"step": 3, "pending": None, "elapsed_s": 1.5, "carried": carried, "cumulative_reward": 2.0}
    saved |= {"prompt_tokens": 5, "response_tokens": 6}
    (tmp_path / "state.json").write_text(json.dumps(saved))
    state = TrainerState.load(tmp_path)
    assert (state.step, state.kl_coefficient, state.response_tokens) == (3, 0.3, 6)
    assert (state.window.max_tokens, state.window.unchanged_steps) == (64, 2)
    assert state.progress == {"toy": StreamState(7, 1, 5, (2, 1), (0.25, None))}
    state.save(tmp_path)
    window["max_tokens"], window["unchanged_steps"] = window.pop("tokens"), window.pop("held")
    assert json.loads((tmp_path / "state.json").read_text()) == saved
