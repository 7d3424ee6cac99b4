"""The benchmarks find the faults they look for, and every script is documented and can be imported."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import commands, common, data, host, house, learn, score_file, startup, training
from benchmarks import step as step_benchmark

BENCHMARKS = Path(common.__file__).parent
SOLVABLE, UNSOLVABLE = ((3, 5, 17), 4), ((1, 1, 1), 100)


@pytest.mark.parametrize("script", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_script_can_be_imported_and_is_documented(script):
    importlib.import_module(f"benchmarks.{script}")
    if script not in ("common", "training"):
        assert f"`benchmarks/{script}.py" in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("train", "test", "failing"),
    [
        ([SOLVABLE, ((2, 3), 6)], [((3, 7, 12), 48)], []),
        ([SOLVABLE, UNSOLVABLE], [], ["solvable", "gold"]),
        ([SOLVABLE], [SOLVABLE], ["not in both"]),
        ([SOLVABLE, SOLVABLE], [], ["not twice"]),
    ],
    ids=["sound", "unsolvable", "shared", "repeated"],
)
def test_faulty_data_are_found(train, test, failing):
    found = [what for what, row in data.check(train, test).items() if row["fail"] != "0"]
    assert len(found) == len(failing)
    assert all(map(str.startswith, found, failing))


def test_an_import_deep_inside_is_seen():
    assert {"json", "email"} <= startup.imported_by([*startup.BARE[:2], "import json.decoder, email.message"])
    assert "email" not in startup.imported_by(startup.BARE)


def test_a_table_is_markdown_whatever_its_cells_hold(capsys):
    common.print_table("what", {"`[a]`": {"short": "1", "long": "x" * 200}, ":smile:": {"short": "2", "long": "y"}})
    head, rule, *rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    ]
    assert head == ["what", "short", "long"]
    assert all(set(cell) == {"-"} for cell in rule)
    assert rows == [["`[a]`", "1", "x" * 200], [":smile:", "2", "y"]]


def test_a_verdict_changed_by_a_hang_elsewhere_is_seen(tmp_path):
    rows = [{"completion": text, "score": 1.0, "correct": True, "reason": "ok", "answer": None} for text in "abc"]
    rows[0]["answer"], rows[1]["completion"] = "7", f"<answer>{score_file.MARK}</answer>"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "plain.parquet")
    hung = [rows[0], rows[1] | {"score": 0.0, "correct": False, "reason": "timeout"}, rows[2]]
    for last, differ in (({}, 0), ({"reason": "timeout"}, 1), ({"answer": "1"}, 1), ({"completion": "a"}, 1)):
        pq.write_table(pa.Table.from_pylist([*hung[:2], rows[2] | last]), tmp_path / "hung.parquet")
        found = score_file.compare(tmp_path / "plain.parquet", tmp_path / "hung.parquet")
        assert found == {
            "rows": 3,
            "hanging rows": 1,
            "of these, scored as timeout": 1,
            "other rows with a different score": differ,
        }


def test_the_file_to_score_is_what_it_claims(tmp_path):
    score_file.make_file(tmp_path / "outputs.parquet", 64)
    rows = pq.read_table(tmp_path / "outputs.parquet").to_pylist()
    assert {len(row["completion"]) for row in rows} == {score_file.LENGTH}
    assert len({row["extra_info"]["key"] for row in rows}) == 64 / score_file.SAMPLES


def test_a_run_has_its_gain_its_times_and_an_accuracy_within_the_time():
    accuracy, size = training.held_out_key("countdown"), training.size_key("countdown")
    rows = [{"step": 0, accuracy: 0.2, size: 400.0, "model/parameters": 9.8e6, "timing_s/testing": 9.0}]
    for step in range(1, 101):
        row = {"step": step, "time/elapsed_s": 3.0 * step, "tokens/response_total": 1000.0 * step}
        rows.append(row | {"timing_s/gen": float(step), "timing_s/step": 3.0})
        if step % 25 == 0:
            rows[-1] |= {accuracy: 0.2 + step / 200, size: 400.0, "timing_s/testing": 8.0}
    lines = [(1.0, "countdown"), (5.0, "held-out accuracy before training: 20.0%"), (60.0, "done")]
    found = learn.learning(rows, commands.Finished(lines, 0, 61.0), minutes=4)
    assert (found["before"], found["after"], found["seconds"], found["tokens"]) == (0.2, 0.7, 300.0, 1e5)
    assert found["gain"] == pytest.approx(50)
    assert found["within"] == pytest.approx(0.575)  # step 75 was at 225 s, step 100 at 300 s
    assert [found[name] for name in ("first_line", "evaluation", "evaluated", "command")] == [1.0, 9.0, 5.0, 61.0]
    assert found["first_steps"] == {"timing_s/gen": 15.5, "timing_s/step": 3.0}
    assert found["last_steps"]["timing_s/gen"] == 85.5
    assert [point["step"] for point in found["curve"]] == [0, 25, 50, 75, 100]
    assert training.with_error(found["before"], found["problems"]) == "20.0 ± 2.0%"


@pytest.mark.slow
def test_a_command_at_its_limit_is_killed_with_all_its_processes_even_detached_ones():
    child = (
        "import subprocess, time; gone = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(gone.pid, flush=True); time.sleep(600)"
    )
    printed = []
    ran = commands.run(
        [sys.executable, "-c", child], 600, until=lambda: printed, on_line=lambda _, line: printed.append(line)
    )
    assert (ran.code, ran.output.splitlines()) == (0, printed)
    assert not _runs(int(printed[0]))
    ran = commands.run(["sleep", "600"], 0.1)
    assert (ran.code, ran.output) == (commands.KILLED, "stopped after 0.1 s")
    failed = commands.run([sys.executable, "-c", "import sys; print('out'); sys.exit('why')"], 600)
    assert (failed.code, sorted(failed.output.split())) == (1, ["out", "why"])


def _runs(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_step_that_failed_has_a_row_like_the_others():
    job = {"prompts": 128, "samples": 8, "prompt_tokens": 140, "new_tokens": 1024}
    phases = dict.fromkeys(("gen", "update_actor", "update_weights", "reward"), 2.0)
    seconds = {f"timing_s/{name}": value for name, value in (phases | {"step": 16.0}).items()}
    ours = {"step_s": [14.0, 16.0], "timing_s": seconds, "mfu": 0.46}
    rows = [
        step_benchmark.cells(run, job) for run in (ours | {"peak_bytes": 84.7e9}, {"error": "…", "peak_bytes": None})
    ]
    assert rows[0].keys() == rows[1].keys()
    assert rows[0]["tokens/s"] == "79,462"
    assert (rows[0]["MFU"], rows[0]["peak"], rows[0]["gen"]) == ("46.0%", "85 GB", "2.00 s")
    assert (rows[0]["of computed tokens"], rows[0]["all else"]) == ("41.2%", "75.0%")
    assert rows[1] == dict.fromkeys(rows[0], "") | {"step": "failed"}


@pytest.mark.nightly(reason="trains to a time limit of half a minute; its parts are tested above")
def test_the_small_model_benchmark_runs_and_keeps_to_its_limit(tmp_path):
    few = ["data.prompts_per_step=4", "rollout.group_size=4", "eval.num_problems=16", "eval.every=0", "run.device=cpu"]
    few += ["eval.greedy=false", "rollout.max_completion_tokens=32"]
    script = [sys.executable, str(BENCHMARKS / "learn.py"), "--model", "tiny", "--output", str(tmp_path), *few]
    started = time.monotonic()
    whole = subprocess.run([*script, "--seeds", "0", "--steps", "2"], capture_output=True, text=True, check=True)
    enough = 2 * (time.monotonic() - started)  # for a run to begin, however busy the machine
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["seeds"]["0"]["whole"]
    assert results["seeds"]["0"]["steps"] == 2
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "| 0 " in whole.stdout
    started = time.monotonic()
    limit = learn.GRACE_SECONDS + max(15, enough)
    cut = subprocess.run(
        [*script, "--seeds", "1,2", "--steps", "100000", "--limit", str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - started < 2 * limit + 60  # where 100,000 steps would take days
    assert cut.returncode == 0, cut.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["seeds"]) == ["1"]
    assert not results["seeds"]["1"]["whole"]


@pytest.mark.slow
def test_the_host_benchmark_measures_every_part():
    load = host.Load(prompts=4, samples=2, shortest=3, longest=5)
    parts = host.measure(load, workers=1, repeat=1)
    assert len(parts) == 10
    assert all(milliseconds > 0 for milliseconds in parts.values())


def test_the_lines_of_a_function_count_its_decorators_and_nested_functions():
    assert sorted(house.function_lengths("@cached\ndef outer():\n    def inner():\n        pass\n")) == [2, 4]
