"""The benchmark of several GPUs: jobs keep to their GPUs and limits, and ask for runs that the trainer accepts."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import common
from benchmarks import several_gpus as benchmark
from benchmarks.several import parts, replay, side_by_side, tables
from benchmarks.several.parts import Setup
from benchmarks.several.side_by_side import Board, Failed, Job, Place
from tinyzero_sdk import Item, Score
from tinyzero_sdk.settings import merge, parse_overrides, to_mapping
from tinyzero_trainer.algorithms.adaptive_length import WindowState
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose, gather, make_config
from tinyzero_trainer.config.parallel import parallel_dims
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.collector import RolloutBatch
from tinyzero_trainer.sft.default_model import SETTINGS
from tinyzero_trainer.types import Generation, Prompt, Rollout

SCRIPT = Path(common.__file__).with_name("several_gpus.py")
NUMBERS = st.lists(st.floats(0.01, 10) | st.floats(-10, -0.01), min_size=1)


@pytest.fixture
def board(tmp_path, monkeypatch):
    """Makes one with so many GPUs, which nobody has; saves are counted in `board.saves`."""
    monkeypatch.setattr(side_by_side, "APART_SECONDS", 0.0)

    def make(count, *, seconds=60.0, together=True):
        saves = []
        cards = [str(number) for number in range(count)]
        made = Board(
            cards,
            folder=tmp_path / "logs",
            ends=time.monotonic() + seconds,
            save=lambda: saves.append(1),
            gpus=False,
            together=together,
        )
        return made, saves

    return make


# ---- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("together", "most"), [(True, 3), (False, 2)])
def test_jobs_share_the_gpus_and_never_take_more_than_there_are(board, together, most):
    running, peak, lock, order = 0, [], threading.Lock(), []

    def work(gpus):
        def do(place):
            nonlocal running
            with lock:
                running += gpus
                peak.append(running)
                order.append(place.name)
            time.sleep(0.05)
            with lock:
                running -= gpus
            return {"cards": gpus}

        return do

    sizes = {"b": 2, "c": 2, "d": 1, "e": 1}
    jobs = [Job(name, gpus, work(gpus), ("b",) if name == "c" else ()) for name, gpus in sizes.items()]
    made, saves = board(3, together=together)
    found = {}
    made.run(jobs, found)
    assert {name: result["cards"] for name, result in found.items()} == sizes
    assert max(peak) == most
    assert order.index("b") < order.index("c")
    assert len(saves) == len(jobs)


def test_a_job_that_fails_stops_only_those_that_need_it(board, capsys):
    def fail(place):
        raise ValueError("no luck")

    jobs = [
        Job("bad", 1, fail),
        Job("needs bad", 1, lambda place: {}, ("bad",)),
        Job("needs that", 1, lambda place: {}, ("needs bad",)),
        Job("too large", 5, lambda place: {}),
        Job("good", 1, lambda place: {"value": 1}),
    ]
    found = {}
    made, _ = board(2)
    made.run(jobs, found)
    assert found["good"]["value"] == 1
    assert found["bad"]["error"] == "ValueError: no luck"
    assert found["needs bad"]["error"] == "not started: it needs what 'bad' was to make"
    assert "needs bad" in found["needs that"]["error"]
    assert found["too large"]["error"] == "not started: it needs 5 GPUs"
    assert "bad: FAILED after 0 s: ValueError: no luck" in capsys.readouterr().err


def test_what_is_done_is_not_done_again_and_what_has_no_time_is_not_begun(board):
    began = []
    jobs = [Job(name, 1, lambda place: began.append(place.name) or {}) for name in ("done", "failed", "new")]
    found = {"done": {"value": 1}, "failed": {"error": "…"}}
    board(1)[0].run(jobs, found)
    assert sorted(began) == ["failed", "new"]
    assert found["done"] == {"value": 1}
    late = {}
    board(1, seconds=side_by_side.LEAST_SECONDS - 1)[0].run(jobs[:1], late)
    assert late == {"done": {"error": "not started: no time left"}}


@pytest.mark.slow
def test_a_job_at_its_limit_is_killed_with_all_that_it_started_even_what_has_left_it(board, tmp_path):
    file = tmp_path / "pid"
    child = (
        "import subprocess, sys, time; print('here I am', flush=True); "
        "gone = subprocess.Popen(['sleep', '60'], start_new_session=True); "
        f"open({str(file)!r}, 'w').write(str(gone.pid)); time.sleep(60)"
    )

    def work(place):
        place.run([sys.executable, "-c", child])
        return {}

    found = {}
    board(1)[0].run([Job("hangs", 1, work, limit=1.0)], found)
    assert found["hangs"]["error"].startswith("stopped at its limit, after 1 s\n")
    assert "here I am" in found["hangs"]["error"]
    assert "here I am" in (tmp_path / "logs" / "hangs.txt").read_text()
    assert not _runs(int(file.read_text()))


def _runs(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_a_command_is_ended_once_it_has_done_what_is_wanted_and_one_that_fails_says_why(tmp_path):
    def place(seconds=30.0):
        return Place("job", ("5", "7"), time.monotonic() + seconds, tmp_path / "log", f"{os.getpid()}/job/")

    file = tmp_path / "file"
    child = f"import os, time; open({str(file)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(60)"
    began = time.monotonic()
    place().run([sys.executable, "-c", child], until=lambda: file.exists() and file.read_text() != "")
    assert time.monotonic() - began < 20
    assert file.read_text() == "5,7"
    with pytest.raises(Failed, match=r"^exit code 1\n.* s  why$"):
        place().run([sys.executable, "-c", "import sys; sys.exit('why')"])
    with pytest.raises(Failed, match="stopped at its limit"):
        place(seconds=-1.0).run(["sleep", "60"])  # after an interruption nothing more is begun


# ---- what is asked of the trainer ------------------------------------------------------------------------------------


class Recorder(Place):
    """Notes commands, and runs none."""

    def run(self, command, *, until=None):
        COMMANDS.append(list(command))
        raise Failed("not run")


COMMANDS: list[list[str]] = []


def asked(job, folder):
    """The commands that a job begins with."""
    COMMANDS.clear()
    with pytest.raises(Failed, match="not run"):
        job.work(Recorder(job.name, (), time.monotonic(), folder / "log", "x"))
    return COMMANDS[0]


def said_of(command):
    """The settings in a command for `tinyzero train` or `replay.py`."""
    words = [word for word in command if "=" in word and not word.startswith(("-", "import"))]
    flags = {
        name: command[command.index(f"--{name}") + 1] for name in ("task", "model", "output") if f"--{name}" in command
    }
    named = {"run.task": flags.get("task"), "model.path": flags.get("model")}
    if "--resume" in command or "train" in command:
        named["run.output"] = flags["output"]
    return gather(TrainConfig, {key: value for key, value in named.items() if value is not None}, words)


@pytest.mark.parametrize(("gpus", "cpu"), [(4, False), (2, True)])
def test_every_run_is_one_that_the_trainer_accepts_on_so_many_gpus(tmp_path, gpus, cpu):
    setup = Setup(tmp_path, gpus, cpu, 60.0)
    for shape in ("10M", "0.5B"):
        setup.model(shape).mkdir(parents=True)
    jobs = benchmark.chosen([job for build in parts.PARTS.values() for job in build(setup)], [])
    assert {job.name.partition(" ")[0].rstrip(":") for job in jobs} == {*parts.PARTS, "model"}
    assert max(job.gpus for job in jobs) == gpus
    for job in jobs:
        if job.name.startswith(("model", "resume: on", tables.OWN_MODEL)):
            continue
        said = said_of(asked(job, tmp_path))
        own = merge(SETTINGS, {"data": {"prompt_template": "compact"}}) if "path" not in said.get("model", {}) else None
        config = compose(said, own).config
        if config.run.executor == "local":
            assert job.gpus == 1, job.name
            continue
        dims = parallel_dims(config)
        taken = dims.world_size + dims.dedicated_engines * dims.engine_tp
        assert taken == job.gpus, job.name
        assert (dims.device == "cpu") is cpu
        assert config.rollout.max_async_level == int("one step off" in job.name)


def test_a_run_is_resumed_from_its_middle_and_the_trainer_accepts_where(tmp_path):
    setup = Setup(tmp_path, 4, False, 60.0)
    setup.model("10M").mkdir(parents=True)
    whole, *resumed = [job for job in parts.resume(setup) if job.name.startswith("resume")]
    run = setup.run(whole.name)
    for name in ("step_2", "step_4"):
        (run / "checkpoints" / name).mkdir(parents=True)
    config = make_config(said_of(asked(whole, tmp_path)))
    run.mkdir(parents=True, exist_ok=True)
    for job in resumed:
        (run / "checkpoints" / "step_2").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / "step_4").mkdir(parents=True, exist_ok=True)
        (run / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
        command = asked(job, tmp_path)
        copy = setup.run(job.name)
        assert [path.name for path in (copy / "checkpoints").iterdir()] == ["step_2"]
        assert (run / "checkpoints" / "step_4").exists()
        going_on = resume_config(copy, parse_overrides([word for word in command if "=" in word]))
        assert going_on.run.executor == ("local" if job.gpus == 1 else "ray")
        assert job.gpus == 1 or going_on.ray.gpus == job.gpus


def test_a_choice_of_jobs_brings_what_they_need():
    jobs = [
        Job(name, 1, lambda place: {}, needs) for name, needs in (("a", ()), ("b", ("a",)), ("c", ("b",)), ("d", ()))
    ]
    jobs.append(jobs[0])
    assert [job.name for job in benchmark.chosen(jobs, ["c"])] == ["a", "b", "c"]
    assert [job.name for job in benchmark.chosen(jobs, [])] == ["a", "b", "c", "d"]
    assert [job.name for job in benchmark.chosen(jobs, ["d", "b"])] == ["a", "b", "d"]


def test_recorded_completions_are_cut_right_ones_shorter_and_keep_their_scores():
    prompt = Prompt(Item(None), "p", [1, 2])
    samples = [
        Rollout(
            prompt,
            Generation([*range(100)], [-0.01 * place for place in range(100)], True),
            "t",
            Score(right, right, "ok"),
        )
        for right in (True, False) * 8
    ]
    whole = RolloutBatch(3, 2, samples, samples, None, 100, WindowState(), {}, {}, {})
    cut = replay.shortened(whole)
    assert cut == replay.shortened(whole)
    assert cut.kept is cut.rollouts
    for before, after in zip(samples, cut.rollouts, strict=True):
        length = len(after.generation.token_ids)
        assert length <= 50 if after.score.correct else length >= 50
        assert after.generation == replace(
            before.generation,
            token_ids=before.generation.token_ids[:length],
            logprobs=before.generation.logprobs[:length],
            finished=False,
        )
        assert after.score == before.score
    assert len({len(sample.generation.token_ids) for sample in cut.rollouts}) > 8


# ---- the tables ------------------------------------------------------------------------------------------------------


@given(NUMBERS, st.floats(0.5, 2), st.floats(1e-6, 0.1))
def test_differences_are_relative(theirs, scale, share):
    ours = [value * (1 + share) for value in theirs]
    found = tables.differences([scale * value for value in ours], [scale * value for value in theirs])
    assert max(found) <= share * 1.001 + 1e-9
    assert max(found) == pytest.approx(share, rel=1e-3, abs=1e-9)  # the largest value is no less than their mean
    assert tables.differences(theirs, theirs) == [0.0] * len(theirs)


def rows_of(*losses):
    return [{"step": n, "seconds": 1.0, "loss": loss, "gradient norm": 2.0} for n, loss in enumerate(losses, start=1)]


def test_the_tables_show_what_there_is_and_what_failed():
    def scaled(rate):
        return {"timing_s": {"timing_s/step": 10.0, "timing_s/gen": 4.0}, "tokens_per_s": rate}

    run = {"step": 3, "critic/score/mean": 0.5, "actor/grad_norm": 1.25}
    learnt = {"before": 0.2, "after": 0.8, "seconds": 100.0, "tokens": 3e6, "steps": 9, "tokens_per_s": 3e4}
    curve = [{"seconds": at, "tokens": 3e4 * at, "accuracy": 0.2 + at / 200} for at in (0.0, 60.0, 100.0)]
    learnt |= {"curve": curve, "last_steps": {}, "settled_tokens_per_s": 31234.0}
    found = {
        f"same 10M: {tables.RECORDED}": {"rows": rows_of(1.0, 2.0)},
        "same 10M: 2, sharded": {"rows": rows_of(1.0, 2.02)},
        "same 10M: 4, sharded": {"error": "exit code 1\nlong story"},
        "weak 1": scaled(1000.0),
        "weak 2": scaled(1900.0),
        "strong 2": scaled(1500.0),
        "resume: without a break": {"rows": [run]},
        "one_step_off: synchronous": learnt,
        "one_step_off: one step off": learnt
        | {"curve": curve[:2], "settled_tokens_per_s": None, "failed": "stopped at its limit\n…"},
    }
    same, weak, strong, third, fourth, off, *failures = tables.all_tables(found)
    assert [cell.strip() for cell in same.splitlines()[3].split("|")[1:-1]] == [
        *("2, sharded", "1.0e-02", "", "0.0e+00", "2", "1.00 s", "NO")
    ]
    assert "4, sharded" not in same
    assert "| 1.90 |" in weak
    assert [line.split("|")[1].strip() for line in strong.splitlines()[2:]] == ["1", "2"]
    assert "| 1.50 |" in strong
    assert "1.25" in third
    assert "1.25" not in fourth
    assert "after 60 s" in off
    assert off.count("31,234") == 1
    assert off.count("50.0 %") == 4  # of both, after as much time and after as many tokens
    assert failures == ["same 10M: 4, sharded: exit code 1", "one_step_off: one step off: stopped at its limit"]


@pytest.mark.nightly(
    reason="a benchmark's run; tests/trainer/distributed/test_ranks.py holds the ranks to the same losses"
)
def test_two_ranks_find_the_losses_of_one_on_recorded_rollouts(tmp_path):
    from tinyzero_trainer.config.sft import TinyShape
    from tinyzero_trainer.models.loading import from_parts, save_model
    from tinyzero_trainer.sft.tiny_model import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    small = TinyShape(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=256)
    setup = Setup(tmp_path, 2, True, 60.0)
    setup.model("10M").parent.mkdir(parents=True)
    save_model(setup.model("10M"), from_parts("toy", build_model(small, tokenizer, seed=0), tokenizer))
    script = [sys.executable, str(SCRIPT), "--cpu", "--part", "same", "--only", "2, sharded"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(
        [*script, "--output", str(tmp_path)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    jobs = json.loads((tmp_path / "results.json").read_text())["jobs"]
    alone, together = (jobs[f"same 10M: {name}"]["rows"] for name in (tables.RECORDED, "2, sharded"))
    assert [row["step"] for row in together] == [1, 2]
    for key in tables.COMPARED:
        values = [row[key] for row in alone]
        assert any(values), key
        assert max(tables.differences([row[key] for row in together], values)) <= tables.WANTED
    assert alone[0]["loss"] > 0.01  # or there would be nothing to compare
    assert "| 2, sharded" in done.stdout
