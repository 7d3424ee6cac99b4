"""Losses and gradients that are not finite: the update is skipped, counted, reported, and its batch kept.

Two ranks of which one alone has such a loss: tests/trainer/distributed/test_ranks.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.runs import lines, short_run, short_sft
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.rollout_batch import from_json, rollouts_from_json
from tinyzero_trainer.controller.skipped_updates import MOST_SKIPPED, SkippedUpdates
from tinyzero_trainer.sft.train import fine_tune
from tinyzero_trainer.training import critic, policy
from tinyzero_trainer.training.optimizer import UpdateError

pytestmark = pytest.mark.slow
SETTINGS: dict[str, dict[str, Any]] = {
    "actor": {"algorithm__kl_coefficient": 0.05},
    "actor of LoRA": {"lora__rank": 2},
    "critic": {"algorithm__advantage_estimator": "gae", "rollout__group_size": 2},
}


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the loss of one token not finite in these micro-batches of policy or critic, counted from 1."""

    def poison(*numbers: int, of: str = "actor", value: float = torch.nan) -> None:
        module: Any = critic if of == "critic" else policy
        name, calls = "value_loss" if of == "critic" else "policy_objective", 0
        function = getattr(module, name)

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            loss, values = function(*args, **kwargs)
            first = torch.arange(len(loss)) == 0
            return (torch.where(first, value * loss, loss) if calls in numbers else loss), values

        monkeypatch.setattr(module, name, poisoned)

    return poison


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Callable[..., Any]:
    settings = {"run__task": toy_task, "task__limit": 5, "run__steps": 3, "optimizer__num_mini_batches": 2}
    settings |= {"eval__every": 9, "eval__greedy": False}
    return lambda **changes: short_run(warm_model, tmp_path / "run", **{**settings, **changes})


def assert_finite(checkpoint: Path) -> None:
    for file in checkpoint.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(file).values()), file


@pytest.mark.parametrize("which", SETTINGS)
@pytest.mark.fault(
    "F8",
    "A loss or gradient is not finite",
    made="the loss of one token becomes infinite, in the policy, an adapter or the critic",
    seen="warning: step 2: skipped 1 update, whose loss or gradient is not finite; to see where: tinyzero replay …",
    kept="weights and moments stay finite, the batch is kept; the run goes on",
)
def test_an_update_that_is_not_finite_costs_only_itself(fault_row, which, configure, poison, capsys) -> None:
    of = which.partition(" ")[0]
    poison(4, of=of, value=torch.inf)  # the second update of step 2
    output = train(configure(**SETTINGS[which])).output
    assert [row.get(f"{of}/skipped_updates") for row in lines(output)] == [None, 0, 1, 0]
    fault_row.check(capsys.readouterr().err)
    assert [file.name for file in (output / "skipped").iterdir()] == ["step_2.json"]
    batch = from_json((output / "skipped/step_2.json").read_bytes())
    assert batch.step == 2
    assert len(batch.kept) == len(batch.rollouts) > 0
    assert_finite(output / "checkpoints/step_3")


@pytest.mark.fault(
    "F8",
    "Several in a row are not finite",
    made="the same, in three updates in a row",
    seen=(
        "3 updates in a row had a loss or gradient that is not finite, and were skipped, the last in step 4; to "
        "see where: tinyzero replay … 4; …; step 2 is saved; resume with: tinyzero train …"
    ),
    kept="the newest checkpoint, finite; the batches of the skipped steps",
    code=2,
)
def test_several_in_a_row_end_the_run_which_can_be_resumed(fault_row, configure, poison, tmp_path) -> None:
    output, config = tmp_path / "run", configure(run__steps=5, checkpoint__every=2)
    poison(2, 6, 7, 8)  # one by itself, and three: the last of step 3 and both of step 4
    with pytest.raises(UpdateError) as error:
        train(config)
    fault_row.check(error.value)
    assert [row.get("actor/skipped_updates") for row in lines(output)] == [None, 1, 0, 1]
    assert sorted(file.name for file in (output / "skipped").iterdir()) == [f"step_{step}.json" for step in (1, 3, 4)]
    newest = store.latest(output / "checkpoints")
    assert newest is not None
    assert_finite(newest.path)
    poison()
    train(config, resume=True)
    assert [row.get("actor/skipped_updates") for row in lines(output)] == [None, 1, 0, 0, 0, 0]
    assert [file.name for file in (output / "skipped").iterdir()] == ["step_1.json"]  # the others went well now


def test_examples_are_kept_too_and_a_run_without_a_checkpoint_says_so(poison, toy_task, tmp_path) -> None:
    changes: dict[str, Any] = {"data": {"batch_size": 4}, "optimizer": {"max_nonfinite_updates": 2}}
    changes |= {"eval": {"num_problems": 2, "every": 0, "num_problems_during": 256}, "checkpoint": {"every": 9}}
    poison(1, 3, 4)
    with pytest.raises(TinyZeroError, match=r"the last in step 4; .* 4; .* nothing has been saved yet: start again$"):
        fine_tune(short_sft(tmp_path / "run", toy_task, **changes))
    assert [row.get("train/skipped_updates") for row in lines(tmp_path / "run")] == [None, 1, 0, 1]
    assert len(rollouts_from_json((tmp_path / "run/skipped/step_1.json").read_bytes())) == 4


def test_the_newest_batches_are_kept_and_a_full_disk_ends_nothing(tmp_path) -> None:
    run, told = RunDirectory(tmp_path / "run"), list[str]()
    folder = run.skipped_batch(1).parent
    skipped = SkippedUpdates(run, told.append)
    for step in range(2, MOST_SKIPPED + 3):
        skipped.watch(step, lambda: {"actor/skipped_updates": 2.0}, lambda: b"{}")
    assert told[-1] == (
        f"step {MOST_SKIPPED + 2}: skipped 2 updates, whose loss or gradient is not finite; to see where: tinyzero "
        f"replay {run.path} {MOST_SKIPPED + 2}"
    )
    kept = {f"step_{step}.json" for step in range(3, MOST_SKIPPED + 3)}
    assert {file.name for file in folder.iterdir()} == kept
    (tmp_path / "file").touch()
    skipped = SkippedUpdates(RunDirectory(tmp_path / "file"), told.append)
    skipped.watch(1, lambda: {"actor/skipped_updates": 1.0}, lambda: b"{}")
    assert "; its batch is not kept: cannot write" in told[-1]
