"""`tinyzero replay`: a step again gives the metrics of the run, shows what is not finite, and leaves the run alone."""

import json
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import call
from tests.trainer.runs import Configure, lines, short_run, short_sft
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.rollout_batch import from_json
from tinyzero_trainer.sft.train import fine_tune
from tinyzero_trainer.training import policy
from tinyzero_trainer.training.optimizer import UpdateError

pytestmark = pytest.mark.slow
STEPS = 5
ADAPTIVE = {
    "length_control__mode": "adaptive",
    "length_control__warmup_steps": 1,
    "length_control__min_tokens": 2,
    "algorithm__kl_target": 0.01,
    "data__max_refill_rounds": 2,
}


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Configure:
    settings = {"run__task": toy_task, "task__limit": 5, "run__steps": STEPS, "optimizer__num_mini_batches": 2}
    settings |= {"algorithm__kl_coefficient": 0.05, "optimizer__lr_schedule": "linear"}
    return lambda **changes: short_run(warm_model, tmp_path / "run", **{**settings, **changes})


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the loss of the least likely token of these micro-batches of a run be infinite, whenever it is computed."""

    def poison(config: Any, *calls: int) -> None:
        function, seen = policy.policy_objective, list[float]()

        def watched(statistics: Any, inputs: Any, **settings: Any) -> Any:
            seen.append(inputs.old_logprobs.min().item())
            return function(statistics, inputs, **settings)

        def poisoned(statistics: Any, inputs: Any, **settings: Any) -> Any:
            loss, metrics = function(statistics, inputs, **settings)
            is_bad = torch.isin(inputs.old_logprobs, torch.tensor([seen[number - 1] for number in calls]))
            return loss * torch.where(is_bad, torch.inf, 1.0), metrics

        with monkeypatch.context() as patch:
            patch.setattr(policy, "policy_objective", watched)
            train(config)
        shutil.rmtree(config.run.output)
        monkeypatch.setattr(policy, "policy_objective", poisoned)

    return poison


def fingerprints(run: Path) -> dict[str, Any]:
    """All entries of a run, with their times."""
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and sha256(path.read_bytes()).digest())
        for path in (run, *run.rglob("*"))
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora__rank": 2},
        {"algorithm__advantage_estimator": "gae"},
        ADAPTIVE,
    ],
    ids=["GRPO", "LoRA", "PPO", "all that adapts"],
)
def test_a_healthy_step_has_the_metrics_of_the_run_which_is_left_alone(
    changes, configure, capsys, tmp_path, monkeypatch
) -> None:
    output = Path(train(configure(**changes)).output)
    before = fingerprints(output)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for step, origin in ((5, "the checkpoint of step 4"), (2, "the start of the run")):
        capsys.readouterr()
        code, out, error = call(capsys, "replay", str(output), str(step))
        assert code == 0, out + error
        assert f"{output}, step {step}: taken again from {origin}\n" in out
        count = int(out.rpartition("metrics: all ")[2].partition(" ")[0])
        row = lines(output)[step]
        assert count == len([name for name in row if not name.startswith(("val", "audit/"))]) - 1 > 40
        assert "all weights are finite before the step" in out
        assert "skipped" not in out
        assert max(map(len, out.splitlines()[1:])) <= 80
    assert fingerprints(output) == before
    assert not any((tmp_path / "temporary").iterdir())


def test_a_step_of_supervised_fine_tuning_too(toy_task, tmp_path, capsys) -> None:
    fine_tune(short_sft(tmp_path / "run", toy_task))
    before = fingerprints(tmp_path / "run")
    for step in ("5", "1"):
        code, out, error = call(capsys, "replay", str(tmp_path / "run"), step)
        assert code == 0, out + error
        assert "equal those in metrics.jsonl" in out
    assert fingerprints(tmp_path / "run") == before


def test_a_step_that_skipped_an_update_shows_the_completion_it_was_skipped_for(
    configure, poison, capsys, monkeypatch
) -> None:
    poison(configure(), 10)  # the second update of step 5
    output = Path(train(configure()).output)
    assert [row.get("actor/skipped_updates") for row in lines(output)] == [None, 0, 0, 0, 0, 1]
    batch = from_json((output / "skipped/step_5.json").read_bytes())
    before = fingerprints(output)
    capsys.readouterr()
    code, out, _ = call(capsys, "replay", str(output), "5")
    assert code == 0
    assert "from the checkpoint of step 4, on the batch that was kept" in out
    assert "metrics: all" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    code, text, _ = call(capsys, "replay", str(output), "5", "--json")
    assert fingerprints(output) == before
    found = json.loads(text)
    first, second = found["models"]["policy"]["updates"]
    assert (first["skipped"], second["skipped"]) == (False, True)
    assert all(norm is not None for norm in first["group_norms"].values())
    (micro_batch,) = second["micro_batches"]
    (completion,) = micro_batch["nonfinite"]
    rollout = batch.kept[completion["index"]]
    assert (completion["prompt"], completion["completion"]) == (rollout.prompt.text, rollout.text)
    assert completion["value"] == "loss"
    assert len(micro_batch["parameters"]) == found["models"]["policy"]["parameters"]
    assert f"  completion {completion['index'] + 1}: loss from token {completion['token'] + 1}: " in out

    monkeypatch.undo()  # whatever made it infinite is gone
    code, out, _ = call(capsys, "replay", str(output), "5")
    assert code == 1
    assert "the run skipped an update here, this time none was: its cause is neither in" in out
    assert "differ from metrics.jsonl" in out


def test_the_step_at_which_a_run_broke_can_be_taken_again(configure, poison, capsys) -> None:
    config = configure(optimizer__max_nonfinite_updates=2)
    poison(config, 5, 6)  # both updates of step 3
    with pytest.raises(UpdateError):
        train(config)
    output = Path(config.run.output)
    code, out, _ = call(capsys, "replay", str(output), "3")
    assert code == 0
    assert "from the checkpoint of step 2, on the batch that was kept" in out
    ending = "the run ends here: 2 updates in a row had a loss or gradient that is not finite,\nand were skipped\n"
    assert out.endswith(ending)
    code, _, error = call(capsys, "replay", str(output), "4")
    assert code == 2
    assert error == f"error: {output} has done 2 steps, got step 4; give one from 1 to 3\n"


def test_metrics_that_differ_are_shown_and_checkpoints_that_are_damaged_named(configure, capsys) -> None:
    output = Path(train(configure(checkpoint__keep=4)).output)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rows[5] |= {"actor/entropy": 0.5, "time/elapsed_s": 0.0}
    del rows[5]["actor/lr"]
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (output / "checkpoints/step_4/model.safetensors").write_bytes(b"")
    code, out, error = call(capsys, "replay", str(output), "5")
    assert code == 1
    assert "taken again from the checkpoint of step 2" in out
    assert "checkpoints/step_4/model.safetensors has changed" in error
    assert "metrics: 2 of " in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["actor/entropy", "actor/lr"]
    for step in (2, 4):
        shutil.rmtree(output / f"checkpoints/step_{step}")
    code, out, _ = call(capsys, "replay", str(output), "4")
    assert code == 0
    assert "taken again from the start of the run" in out


def test_what_cannot_be_taken_again_ends_in_one_line(configure, warm_model, tmp_path, capsys, monkeypatch) -> None:
    config = configure()
    output = Path(train(config).output)
    capsys.readouterr()
    model = tmp_path / "model"
    (output / "config.toml").write_text((output / "config.toml").read_text().replace(str(warm_model), str(model)))
    for words, expected in {
        ("nowhere", "1"): "error: nowhere holds no run; give the directory of one (tinyzero runs lists them)\n",
        (str(tmp_path), "1"): f"error: {tmp_path} holds no run; give the directory of one (tinyzero runs lists them)\n",
        (str(output), "6"): f"error: {output} has done 5 steps, got step 6; give one from 1 to 5\n",
        (str(output), "0"): f"error: {output} has done 5 steps, got step 0; give one from 1 to 5\n",
        (str(output), "1", "rollout.group_size=2"): "error: --resume cannot change rollout.group_size",
        (str(output), "1"): f"error: cannot load the model '{model}'",
    }.items():
        code, out, error = call(capsys, "replay", *words)
        assert (code, out) == (2, "")
        assert error.splitlines()[-1].startswith(expected.strip()), error
