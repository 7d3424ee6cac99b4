"""The benchmark of several GPUs: jobs keep to their GPUs and limits, and the trainer accepts the runs they start."""

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import common, several_gpus
from benchmarks.several import replay, tables
from benchmarks.several.jobs import LEAST_SECONDS, Failed, Job, RunningJob, run_jobs
from benchmarks.several.suites import FIXED_TASK, SUITES, Setup, resume
from tinyzero_sdk import Item, Score
from tinyzero_sdk.settings import merge, parse_overrides, to_mapping
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose, gather, make_config
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.controller.rollout_batch import RolloutBatch
from tinyzero_trainer.distributed.parallel_dims import parallel_dims
from tinyzero_trainer.sft.default_model import SETTINGS
from tinyzero_trainer.types import Generation, Prompt, Rollout

SCRIPT = Path(common.__file__).with_name("several_gpus.py")
NUMBERS = st.lists(st.floats(0.01, 10) | st.floats(-10, -0.01), min_size=1)

# ---- the jobs --------------------------------------------------------------------------------------------------------


def do_jobs(jobs, results, *, seconds=60.0):
    saves = []
    deadline = time.monotonic() + seconds
    run_jobs(jobs, results, gpus=["5", "7"], deadline=deadline, save=lambda: saves.append(1))
    return len(saves)


def test_jobs_run_in_order_on_their_gpus_and_a_failed_one_stops_only_those_that_need_it(capsys):
    def fail(job):
        raise ValueError("no luck")

    def work(job):
        return {"gpus": job.gpus}

    jobs = [
        Job("done", 1, fail),
        Job("bad", 1, fail),
        Job("needs bad", 1, work, "bad"),
        Job("failed before", 2, work, "done"),
        Job("good", 1, work),
    ]
    results = {"done": {"value": 1}, "failed before": {"error": "…"}}
    assert do_jobs(jobs, results) == 4
    assert results["done"] == {"value": 1}
    assert results["bad"]["error"] == "ValueError: no luck"
    assert results["needs bad"]["error"] == "not started: it needs the result of 'bad'"
    assert (results["failed before"]["gpus"], results["good"]["gpus"]) == (["5", "7"], ["5"])
    assert "bad: ValueError: no luck (0 s)" in capsys.readouterr().err
    late = {}
    do_jobs(jobs[-1:], late, seconds=LEAST_SECONDS - 1)
    assert late["good"]["error"] == "not started: no time left"


@pytest.mark.slow
def test_a_job_sees_its_gpus_and_its_failure_shows_the_last_output(tmp_path):
    def job(seconds):
        return RunningJob("job", ("5", "7"), time.monotonic() + seconds)

    file = tmp_path / "file"
    child = f"import os, time; open({str(file)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(600)"
    job(300).run([sys.executable, "-c", child], until=lambda: file.exists() and file.read_text() != "")
    assert file.read_text() == "5,7"
    failing = [sys.executable, "-c", "import sys; sys.exit('why')"]
    with pytest.raises(Failed, match=r"^exit code 1\n.* s  why$"):
        job(300).run(failing)
    useful = job(300)
    useful.run(failing, usable=lambda: True)
    assert useful.failed.endswith(" s  why")
    with pytest.raises(Failed, match="stopped at its limit"):
        job(-1).run(["sleep", "600"])


def test_a_selection_of_jobs_includes_what_they_need():
    jobs = [Job(name, 1, lambda job: {}, "a" if name == "b" else None) for name in "abca"]
    for only, names in ((["b"], "ab"), ([], "abc"), (["c"], "c")):
        assert "".join(job.name for job in several_gpus.select(jobs, only)) == names


# ---- the runs --------------------------------------------------------------------------------------------------------


class Recorder(RunningJob):
    """Runs no command."""

    def run(self, command, **conditions):
        raise Failed(command)


def first_command(job):
    with pytest.raises(Failed) as failed:
        job.work(Recorder(job.name, (), time.monotonic()))
    return failed.value.args[0]


def overrides_of(command):
    """The settings in a command for `tinyzero train` or `replay.py`."""
    settings = [word for word in command if "=" in word and not word.startswith(("-", "import"))]
    flags = {"task": "run.task", "model": "model.path"} | ({"output": "run.output"} if "train" in command else {})
    given = {key: command[command.index(f"--{name}") + 1] for name, key in flags.items() if f"--{name}" in command}
    return gather(TrainConfig, given, settings)


@pytest.mark.parametrize(("gpus", "cpu"), [(4, False), (2, True)])
def test_the_trainer_accepts_every_run_on_its_number_of_gpus(tmp_path, gpus, cpu):
    setup = Setup(tmp_path, gpus, cpu, 60.0, ["optimizer.learning_rate=3e-5"])
    for shape in ("10M", "0.5B"):
        (tmp_path / "models" / shape).mkdir(parents=True)
    jobs = several_gpus.select([job for build in SUITES.values() for job in build(setup)], [])
    assert {job.name.partition(" ")[0].rstrip(":") for job in jobs} == {*SUITES}
    assert max(job.gpus for job in jobs) == gpus
    for job in jobs:
        if job.name.startswith(("resume: on", tables.DEFAULT_MODEL)):
            continue
        overrides = overrides_of(first_command(job))
        default_model = "path" not in overrides.get("model", {})
        defaults = merge(SETTINGS, {"data": {"prompt_template": "compact"}}) if default_model else None
        config = compose(overrides, defaults).config
        assert (config.optimizer.learning_rate == 3e-5) == job.name.startswith("async_levels"), job.name
        if config.run.executor == "local":
            assert job.gpus == 1, job.name
            continue
        dims = parallel_dims(config)
        assert dims.world_size + dims.dedicated_engines * dims.engine_tp == job.gpus, job.name
        assert (dims.device == "cpu") is cpu
        level = int(job.name[-1]) if job.name.startswith("async_levels") else 0
        assert config.rollout.max_async_level == level


def test_a_run_is_resumed_from_step_2_and_the_trainer_accepts_it_on_other_gpus(tmp_path):
    setup = Setup(tmp_path, 4, False, 60.0)
    (tmp_path / "models/10M").mkdir(parents=True)
    original, *resumed = resume(setup)
    run = setup.run(original.name)
    config = make_config(overrides_of(first_command(original)))
    for step in ("step_2", "step_4"):
        (run / "checkpoints" / step).mkdir(parents=True)
    (run / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    for job in resumed:
        command = first_command(job)
        copy = setup.run(job.name)
        assert [path.name for path in (copy / "checkpoints").iterdir()] == ["step_2"]
        assert (run / "checkpoints" / "step_4").exists()
        config = resume_config(copy, parse_overrides([word for word in command if "=" in word]))
        assert config.run.executor == ("local" if job.gpus == 1 else "ray")
        assert job.gpus == 1 or config.ray.gpus == job.gpus


def test_recorded_completions_are_cut_the_correct_ones_shorter_and_keep_their_scores():
    generation = Generation([*range(100)], [-0.01 * index for index in range(100)], True)
    prompt = Prompt(Item(None), "p", [1, 2])
    rollouts = [Rollout(prompt, generation, "t", Score(right, right, "ok")) for right in (True, False) * 8]
    whole = RolloutBatch(3, 2, rollouts, rollouts, None, 100, LengthControlState(), {}, {}, {})
    cut = replay.shortened(whole)
    assert cut == replay.shortened(whole)
    assert cut.kept is cut.rollouts
    for before, after in zip(rollouts, cut.rollouts, strict=True):
        length = len(after.generation.token_ids)
        assert length <= 50 if after.score.correct else length >= 50
        logprobs = generation.logprobs[:length]
        expected = replace(generation, token_ids=[*range(length)], logprobs=logprobs, finished=False)
        assert after == replace(before, generation=expected)
    assert len({len(rollout.generation.token_ids) for rollout in cut.rollouts}) > 8


def test_a_replay_learns_what_was_learnt_when_it_was_recorded(tmp_path):
    settings = shlex.split(f"""
        run.task={FIXED_TASK} model.path=tiny run.device=cpu run.output={tmp_path} run.steps=2 data.prompts_per_step=4
        rollout.group_size=2 rollout.max_completion_tokens=16 rollout.ignore_eos=true data.prompt_template=base
    """)
    rows = {}
    for mode in ("record", "replay"):
        replay.main(mode, settings, tmp_path / "batches", tmp_path / "rows.json")
        rows[mode] = [{**row, "seconds": 0} for row in json.loads((tmp_path / "rows.json").read_text())]
    assert rows["record"] == rows["replay"]
    assert [row["step"] for row in rows["record"]] == [1, 2]
    assert rows["record"][0]["gradient norm"] > 0


# ---- the tables ------------------------------------------------------------------------------------------------------


@given(NUMBERS, st.floats(0.5, 2), st.floats(1e-6, 0.1))
def test_differences_are_relative(theirs, scale, error):
    ours = [value * (1 + error) for value in theirs]
    found = tables.differences([scale * value for value in ours], [scale * value for value in theirs])
    assert max(found) == pytest.approx(error, rel=1e-3, abs=1e-9)  # the largest value is no less than their mean
    assert tables.differences(theirs, theirs) == [0.0] * len(theirs)


def test_the_tables_show_the_results_and_the_failures():
    def rows_of(*losses):
        return [
            {"step": n, "seconds": 1.0, "loss": loss, "gradient norm": 2.0} for n, loss in enumerate(losses, start=1)
        ]

    def scaled(rate):
        return {"timing_s": {"timing_s/step": 10.0, "timing_s/gen": 4.0}, "tokens_per_s": rate}

    curve = [{"seconds": at, "tokens": 3e4 * at, "accuracy": 0.2 + at / 200} for at in (0.0, 60.0, 100.0)]
    synchronous = {"before": 0.2, "after": 0.8, "seconds": 100.0, "tokens": 3e6, "steps": 9, "tokens_per_s": 3e4}
    synchronous |= {"curve": curve, "last_steps": {}, "settled_tokens_per_s": 31234.0, "problems": 1024}
    synchronous["means"] = dict.fromkeys(tables.EXPLAINING, 1.0) | {"response_length/max": 212.0}
    stopped = {"curve": curve[:2], "settled_tokens_per_s": None, "failed": "stopped at its limit\n…"}
    results = {
        f"parity 10M: {tables.RECORDED}": {"rows": rows_of(1.0, 2.0)},
        "parity 10M: 2, sharded": {"rows": rows_of(1.0, 2.02)},
        "parity 10M: 4, sharded": {"error": "exit code 1\nlong story"},
        "weak 1": scaled(1000.0),
        "weak 2": scaled(1900.0),
        "strong 2": scaled(1500.0),
        "resume: uninterrupted": {"rows": [{"step": 3, "critic/score/mean": 0.5, "actor/grad_norm": 1.25}]},
        "async_levels: 2 GPUs, level 0": synchronous,
        "async_levels: 2 GPUs, level 1": synchronous | stopped,
    }
    parity, weak, strong, third, fourth, off, why, *failures = tables.all_tables(results)
    assert [cell.strip() for cell in parity.splitlines()[3].split("|")[1:-1]] == [
        *("2, sharded", "1.0e-02", "", "0.0e+00", "2", "1.00 s", "NO")
    ]
    assert "4, sharded" not in parity
    assert "| 1.90 |" in weak
    assert [line.split("|")[1].strip() for line in strong.splitlines()[2:]] == ["1", "2"]
    assert "| 1.50 |" in strong
    assert ("1.25" in third, "1.25" in fourth) == (True, False)
    assert "after 60 s" in off
    assert off.count("31,234") == 1
    assert off.count("50.0 ± 3.1%") == 4  # of both, after as much time and after as many tokens
    assert why.count("212.00") == 2
    assert failures == ["parity 10M: 4, sharded: exit code 1", "async_levels: 2 GPUs, level 1: stopped at its limit"]


@pytest.mark.nightly(
    reason="a benchmark's run; tests/trainer/distributed/test_ranks.py holds the ranks to the same losses"
)
def test_two_ranks_have_the_losses_of_one_on_recorded_rollouts(tmp_path):
    from tinyzero_trainer.config import NewModelConfig
    from tinyzero_trainer.models.loading import from_parts, save_model
    from tinyzero_trainer.models.new_model import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    small = NewModelConfig(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=256)
    (tmp_path / "models").mkdir()
    save_model(tmp_path / "models/10M", from_parts("toy", build_model(small, tokenizer, seed=0), tokenizer))
    script = [sys.executable, str(SCRIPT), "--cpu", "--suite", "parity", "--only", "2, sharded"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])}
    done = subprocess.run(
        [*script, "--output", str(tmp_path)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    jobs = json.loads((tmp_path / "results.json").read_text())["jobs"]
    alone, together = (jobs[f"parity 10M: {name}"]["rows"] for name in (tables.RECORDED, "2, sharded"))
    assert [row["step"] for row in together] == [1, 2]
    for key in tables.COMPARED:
        values = [row[key] for row in alone]
        assert any(values), key
        assert max(tables.differences([row[key] for row in together], values)) <= tables.TOLERANCE
    assert alone[0]["loss"] > 0.01  # or there would be nothing to compare
    assert "| 2, sharded" in done.stdout
