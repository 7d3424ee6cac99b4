"""The whole loop on a toy: what a run leaves, and that an interruption of any kind changes nothing."""

import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

import tinyzero_trainer
from tests.trainer.configurations import changed
from tests.trainer.runs import Configure, assert_same_weights, completions, killed, lines, on_call, short_run
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TinyZeroError
from tinyzero_sdk.settings import build, merge, read_toml, to_mapping
from tinyzero_trainer.advisor import target_gpu
from tinyzero_trainer.advisor.limits import refuse_model
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller import checkpointer, ending, heldout_eval, session
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller.ending import Change, TrainResult
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.rollout import TorchEngine
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils import signals
from tinyzero_trainer.utils.signals import Interrupted, Stopped

STEPS = 5


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    """Makes the configuration of a run in a directory."""
    settings = {
        "run__task": toy_task,
        "run__steps": STEPS,
        "task__limit": 5,
        "optimizer__num_mini_batches": 2,
        "optimizer__micro_batch_tokens": 40,
        "algorithm__kl_coefficient": 0.05,
        "log__rollouts_every": 2,
        "log__rollouts_count": 3,
        "log__held_out_count": 8,
    }
    return lambda output, **changes: short_run(warm_model, output, **{**settings, **changes})


@pytest.fixture
def config(configure: Configure, tmp_path: Path) -> Configure:
    """The same in the test's directory."""
    return lambda name="run", **changes: configure(tmp_path / name, **changes)


@pytest.fixture(scope="module")
def whole(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.slow
def test_what_a_run_chooses_is_told_and_recorded(
    config: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, by the plan for a GPU: no choice changes what is learned."""
    left = {"optimizer__micro_batch_tokens": "auto", "rollout__max_num_seqs": "auto", "run__steps": 1}
    plain = tinyzero_trainer.train(config("plain", **left, rollout__engine="auto")).output
    assert "auto: rollout.engine=torch (no GPU is used)" in capsys.readouterr().err
    assert read_toml(plain / "config.toml")["rollout"]["engine"] == "torch"
    assert read_toml(plain / "config.toml")["optimizer"]["micro_batch_tokens"] == "auto"
    monkeypatch.setattr(target_gpu, "present_gpu", lambda _: TargetGpu("a GPU", 24 * GIB, None))
    chosen = tinyzero_trainer.train(config("chosen", **left)).output
    saved = read_toml(chosen / "config.toml")
    assert saved["memory"] == {
        "activation_checkpointing": False,
        "cpu_offload": "none",
        "recompute_logits": False,
        "reshard_after_forward": "auto",  # of several ranks
    }
    assert f" optimizer.micro_batch_tokens={saved['optimizer']['micro_batch_tokens']} " in capsys.readouterr().err
    assert_same_weights(plain, chosen, 1)


@pytest.mark.slow
def test_a_run_leaves_all_that_it_promises(whole):
    output = whole.output
    rows = lines(output)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert [row["step"] for row in rows if "val-core/toy_task/acc/mean@1" in row] == [0, 2, 4, 5]
    held_out = [row["val-core/toy_task/acc/mean@1"] for row in (rows[0], rows[-1])]
    assert whole.accuracy == {"toy_task": Change(*held_out)}
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["step_4", "step_5"]
    assert (output / "curve.png").stat().st_size > 10_000
    assert [row["step"] for row in completions(output)] == [2] * 4 + [4] * 4
    held_out = completions(output, "heldout")
    for row in rows:
        if "val-core/toy_task/acc/mean@1" in row:
            same = [kept for kept in held_out if (kept["step"], kept["decoding"]) == (row["step"], "sampled")]
            assert sum(kept["correct"] for kept in same) / len(same) == row["val-core/toy_task/acc/mean@1"]


@pytest.mark.slow
def test_metrics_carry_verls_names(whole):
    names = {name for row in lines(whole.output) for name in row}
    groups, parts = ("critic/score", "critic/rewards", "response_length"), ("mean", "max", "min")
    assert {f"{group}/{part}" for group in groups for part in parts} <= names
    assert {"actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "actor/lr"} <= names
    assert {"response_length/clip_ratio", "group/zero_std_frac", "reward/no_answer_frac"} <= names
    assert any(name.startswith("train/acc_by_difficulty/") for name in names)
    timed = [json.loads(line) for line in (whole.output / "metrics.jsonl").read_text().splitlines()]
    saved = {row["step"]: row["timing_s/save_checkpoint"] for row in timed if "timing_s/save_checkpoint" in row}
    assert list(saved) == [3, 5], "the line after a checkpoint says how long it took"
    assert min(saved.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (TrainingStep, "take", 2),  # before a checkpoint; other places: test_any_history.py
        (heldout_eval, "evaluate", 3),  # at step 2: its line is not yet written
        (store, "save", 2),  # line 4 is written, checkpoint 4 is not
        (Policy, "export", 2),  # amid a checkpoint
        (ending, "plot_curve", 1),  # everything is done
    ],
)
@pytest.mark.fault(
    "F17",
    "A run is killed between or within its phases, and resumed",
    made="the process is gone in rollouts, updates, evaluations, saving and drawing",
    seen="",
    kept="metrics and weights are those of a run that was never interrupted, on the CPU to the bit",
    code="137",
)
def test_a_run_killed_anywhere_resumes_to_the_same_metrics(fault_row, owner, name, call, config, whole, monkeypatch):
    run = config()
    with killed(monkeypatch, owner, name, call):
        train(run)
    output = train(run, resume=True).output
    assert lines(output) == lines(whole.output)
    assert_same_weights(output, whole.output, STEPS)
    fault_row.check("")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "saved", "number"),
    [
        (session, "build_workers", 1, 0, signal.SIGUSR1),
        (TorchEngine, "generate", 1, 0, signal.SIGTERM),  # the first evaluation
        (collecting, "generate", 3, 2, signal.SIGHUP),  # rollouts of step 3
        (collecting, "score", 3, 3, signal.SIGQUIT),
        (Policy, "update", 3, 3, signal.SIGTERM),  # an update is finished: half of one cannot be saved
        (heldout_eval, "evaluate", 3, 2, signal.SIGUSR2),  # the evaluation at step 2
        (store, "save", 1, 2, signal.SIGXCPU),
    ],
)
@pytest.mark.fault(
    "F4",
    "SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 or SIGXCPU (SIGINT too), in each phase",
    made="the process sends it to itself while it starts, samples, scores, updates, evaluates or saves",
    seen="step …resume with: tinyzero train …--resume",
    kept="every whole step; an update under way is finished first",
    code="128 and the signal's number",
)
def test_a_signal_saves_what_is_done_and_the_run_resumes_from_there(
    fault_row, owner, name, call, saved, number, config, whole, monkeypatch
):
    run, terminate = config(), partial(os.kill, os.getpid(), number)
    with on_call(monkeypatch, owner, name, call, terminate), pytest.raises(Interrupted, match="--resume") as stopped:
        train(run)
    assert stopped.value.exit_code == 128 + number
    fault_row.check(str(stopped.value))
    assert latest_step(run) == saved
    assert lines(train(run, resume=True).output) == lines(whole.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "end"), [(1, "nothing has been saved yet: .*"), (3, "step 2 is saved; resume with: .* --resume")]
)
def test_a_second_signal_ends_the_run_at_once_with_its_exit_code_and_how_to_resume(call, end, config, monkeypatch):
    def terminate_twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:
            sys.exit(1)  # as Ray does in its calls

    monkeypatch.setattr(signals, "_ECHO_SECONDS", 0.0)
    with (
        on_call(monkeypatch, TrainingStep, "take", call, terminate_twice),
        pytest.raises(Stopped, match=f"SIGTERM at once; {end}$") as stopped,
    ):
        train(config())
    assert stopped.value.exit_code == 128 + signal.SIGTERM


def latest_step(run: TrainConfig) -> int:
    return store.latest(Path(run.run.output) / "checkpoints").step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "method", "call", "saved", "kind"),
    [
        (TorchEngine, "generate", 7, 3, VllmError),  # two evaluations, steps 1 and 2, an evaluation, step 3
        (TorchEngine, "sleep", 4, 3, VllmError),
        (TorchEngine, "load_weights", 4, 2, VllmError),  # after step 4's update, which nobody can save as a whole step
        (collecting.RolloutCollector, "_score", 4, 3, BrokenTaskError),
    ],
)
def test_what_fails_for_good_costs_no_step_that_is_whole(owner, method, call, saved, kind, config, whole, monkeypatch):
    run, failure = config(), kind("it failed 3 times")
    said = f"it failed 3 times; step {saved} is saved; resume with: tinyzero train "
    with on_call(monkeypatch, owner, method, call, failure), pytest.raises(kind, match=said):
        train(run)
    assert latest_step(run) == saved
    assert lines(train(run, resume=True).output) == lines(whole.output)


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.fault(
    "F1",
    "The disk is full while a checkpoint is saved, for a while or for good",
    made="writing the weights raises ENOSPC from the second checkpoint on, once or always",
    seen="cannot save …/step_4: No space left on device…; trying again after each step, for 2 steps at most",
    kept="everything if there is room before the next checkpoint is due; else all before it, and the run is resumed",
    code="2 if it stays full",
)
def test_a_full_disk_costs_nothing_if_there_is_room_again(stays, fault_row, config, whole, capsys, monkeypatch):
    attempts = 0

    def export(policy: Policy, directory: Path) -> None:
        nonlocal attempts
        attempts += (directory.parent / "step_2").exists()
        if (stays and attempts) or attempts == 1:
            raise OSError(28, "No space left on device")
        exported(policy, directory)

    exported, run = Policy.export, config()
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "export", export)
        if stays:
            with pytest.raises(
                TinyZeroError, match=r"No space left on device.*; step 2 is saved; resume with: tinyzero"
            ):
                train(run)
            assert [path.name for path in (Path(run.run.output) / "checkpoints").iterdir()] == ["step_2"]
        else:
            train(run)
    fault_row.check(capsys.readouterr().err)
    if stays:
        train(run, resume=True)
    assert lines(run.run.output) == lines(whole.output)


@pytest.mark.slow
@pytest.mark.fault(
    "disk",
    "The disk has too little space for the checkpoints of a run",
    made="it says that it has 1 MB free, before the run begins",
    seen="warning: 2 checkpoints and the next take 2.1 MB more of the disk, which has 1.0 MB free; make room, choose "
    "another --output, or keep fewer (checkpoint.keep=2)",
    kept="everything: it is said before the first step",
)
def test_a_disk_too_small_for_the_checkpoints_is_said_before_the_first_step(fault_row, config, monkeypatch, capsys):
    monkeypatch.setattr(checkpointer.shutil, "disk_usage", lambda _: Mock(free=1_000_000))
    output = train(config(run__steps=1)).output
    fault_row.check(capsys.readouterr().err.partition("training: 1 step")[0])
    taken = sum(file.stat().st_size for file in (output / "checkpoints/step_1").rglob("*.safetensors"))
    assert 0.9 * 2.1e6 < 3 * taken < 1.1 * 2.1e6


@pytest.mark.slow
@pytest.mark.fault(
    "threads",
    "A run is resumed with another number of threads, on the CPU",
    made="torch says that it has three, and had one when the checkpoint was saved",
    seen="step 3 was computed by 1 thread, the next by 3, which rounds differently; OMP_NUM_THREADS=1 gives the same",
    kept="everything; further metrics differ in their last digits",
)
def test_a_run_that_is_resumed_with_other_threads_says_so(fault_row, config, monkeypatch, capsys):
    train(config(run__steps=2))
    train(config(run__steps=3), resume=True)
    assert "rounds differently" not in capsys.readouterr().err
    monkeypatch.setattr(checkpointer.torch, "get_num_threads", lambda: 3)
    train(config(run__steps=4), resume=True)
    fault_row.check(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.fault(
    "directory",
    "The run directory is renamed while the run writes in it",
    made="it is renamed before a step, before and while a checkpoint is written, and before it is sealed",
    seen="…/run is now …/moved: it was renamed or deleted while the run writes in it; step 2 is saved; resume with: "
    "tinyzero train --output …/moved --resume",
    kept="what was saved before, at the new place; nothing is left at the old one",
    code=2,
)
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(TrainingStep, "take", 3), (store, "save", 2), (Policy, "export", 2), (Policy, "save", 2), (store, "_seal", 2)],
)
def test_a_run_directory_that_is_renamed_ends_the_run(fault_row, owner, name, call, config, whole, monkeypatch):
    run = config()
    old, new = Path(run.run.output), Path(run.run.output).with_name("moved")
    with on_call(monkeypatch, owner, name, call, partial(old.rename, new)), pytest.raises(TinyZeroError) as ended:
        train(run)
    fault_row.check(ended.value)
    assert not old.exists()
    assert lines(train(changed(to_mapping(run), {"run__output": str(new)}), resume=True).output) == lines(whole.output)


@pytest.mark.slow
@pytest.mark.fault(
    "checkpoint",
    "A run goes on from a checkpoint of another run, which deletes its older ones",
    made="the other run saves twice more with a KL to that checkpoint; then somebody deletes it",
    seen="…/step_2 has been deleted, which this run must load to be resumed; restore it, or start a run in another",
    kept="the checkpoint, as long as the run that needs it is there: others are deleted in its place",
    code=2,
)
def test_a_checkpoint_that_another_run_needs_is_kept(fault_row, config):
    base = Path(train(config("base", run__steps=2)).output) / "checkpoints"
    config = partial(config, "next", model__path=str(base / "step_2"))
    train(config(run__steps=1))
    train(build(TrainConfig, merge(read_toml(base.parent / "config.toml"), {"run": {"steps": 5}})), resume=True)
    assert {path.name for path in base.iterdir()} == {"step_2", "step_4", "step_5"}
    train(run := config(run__steps=2), resume=True)
    shutil.rmtree(base / "step_2")
    with pytest.raises(SettingsError) as error:
        refuse_model(run, resume=True)
    fault_row.check(error.value)


@pytest.mark.slow
def test_another_seed_gives_another_run(config, whole):
    assert lines(train(config(run__seed=1, run__steps=1)).output)[1] != lines(whole.output)[1]
