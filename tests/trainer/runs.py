"""Runs of a few steps on the toy task: their settings, their metrics, and what interrupts them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from tests.trainer.configurations import changed
from tinyzero_sdk.settings import merge
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.sft import compose_sft

UNTIMED = ("timing_", "perf/", "time/")
Configure = Callable[..., TrainConfig]


def short_run(model: Path, output: Path, **changes: Any) -> TrainConfig:
    """The configuration of a run from the warm model; `changes` are keys with `__` for the dot."""
    values: dict[str, Any] = {
        "run": {"output": str(output), "device": "cpu"},
        "model": {"path": str(model)},
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
        "rollout": {"group_size": 4, "max_completion_tokens": 8, "max_num_seqs": 8},
        "optimizer": {"learning_rate": 1e-3},
        "eval": {"num_problems": 8, "num_problems_during": 4, "every": 2},
        "checkpoint": {"every": 2},
        "log": {"rollouts_every": 0, "held_out_count": 0},
    }
    return changed(values, changes)


def short_sft(output: Path, task: str, **groups: dict[str, Any]) -> SftConfig:
    """The configuration of a fine-tuning of a few steps, of a new decoder unless a model is named."""
    values: dict[str, Any] = {
        "run": {"output": str(output), "device": "cpu", "steps": 5},
        "tasks": {"toy": {"task": task, "options": {"limit": 5}}},
        "new_model": {"hidden_size": 32, "layers": 1, "head_size": 16, "mlp_size": 48, "context": 64},
        "data": {"prompt_template": "base", "batch_size": 8, "test_fraction": 0.4},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 0},
        "rollout": {"max_completion_tokens": 6},
        "eval": {"num_problems": 5, "num_problems_during": 3, "every": 2, "greedy": False},
        "checkpoint": {"every": 2},
    }
    replaced = {"tasks"} if "tasks" in groups else {"new_model"} if "model" in groups else set()
    return compose_sft(merge({name: group for name, group in values.items() if name not in replaced}, groups))


def lines(output: str | Path, without: tuple[str, ...] = UNTIMED) -> list[dict[str, Any]]:
    """The metrics of a run, without what the clock decides."""
    rows = [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(without)} for row in rows]


def completions(output: str | Path, split: str = "train") -> list[dict[str, Any]]:
    """The completions that a run has kept."""
    files = sorted(Path(output, "completions").glob(f"{split}_*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def assert_same_weights(ours: str | Path, theirs: str | Path, step: int) -> None:
    """Compare all tensors in the checkpoints of two runs, bit for bit."""
    folders = [Path(output, f"checkpoints/step_{step}") for output in (ours, theirs)]
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors")) for folder in folders]
    assert files[0] == files[1]
    for file in files[0]:
        left, right = (load_file(folder / file) for folder in folders)
        assert left.keys() == right.keys()
        assert all(left[name].equal(right[name]) for name in right), file


class Killed(BaseException):
    """Stands for a kill: nothing in the loop catches it."""


@contextmanager
def on_call(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, act: Callable[[], None] | BaseException
) -> Iterator[None]:
    """Within the block, do or raise something right before the `call`-th call of a function."""
    function, calls = getattr(owner, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            if isinstance(act, BaseException):
                raise act
            act()
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wrapped)
        yield


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> Iterator[None]:
    """Let the `call`-th call of a function end the run as a kill would, before it does anything."""
    with on_call(monkeypatch, owner, name, call, Killed()), pytest.raises(Killed):
        yield
