"""`tinyzero score`, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tinyzero_sdk.cli import main

GOOD = {"completion": "<answer>1</answer>", "ground_truth": 1}


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line: its exit code, and all that it and its workers wrote to stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return end.value.code or 0, out, err  # type: ignore[return-value]

    return run


Run = Callable[..., tuple[int, str, str]]


def test_clean_file_ends_with_zero_and_a_summary(run: Run, write_task: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"ground_truth": 2}))
    code, out, err = run("score", tmp_path / "in.jsonl", "--task", write_task(), "--output", tmp_path / "out.parquet")
    assert (code, err) == (0, "")
    assert "2 rows scored" in out
    assert "accuracy 50.0% · mean score 0.5\nok 1 · wrong 1\n" in out


def test_bad_rows_are_told_with_their_lines_and_end_with_one(
    run: Run, write_task: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(GOOD)}\n[bold]\n{json.dumps(GOOD)}\n{{}}\n")
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(), "-o", tmp_path / "out.jsonl", "--workers", 1]
    code, out, err = run(*words)
    assert code == 1
    lines = err.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'in.jsonl'}:2: not JSON: ")
    assert lines[1].startswith(f"{tmp_path / 'in.jsonl'}:4: no completion")
    assert "2 bad rows left out" in out
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_json_stays_json_whatever_the_task_prints(run: Run, write_task: Callable[..., str], tmp_path: Path) -> None:
    noisy = "@hookimpl\ndef score(answer):\n    print('noise', flush=True)\n    return 1 / (int(answer) - 1)\n"
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(GOOD)}\nnull\n")
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(score=noisy), "-o", tmp_path / "out.jsonl", "--json"]
    code, out, err = run(*words)
    summary = json.loads(out)
    assert code == 1
    assert "ZeroDivisionError" in err
    assert summary["rows"] == 1
    assert summary["reasons"] == {"error": 1}
    assert summary["bad"] == [{"number": 2, "problem": "null; expected a JSON object"}]


def test_limits_are_taken(run: Run, write_task: Callable[..., str], tmp_path: Path) -> None:
    slow = "import time\n@hookimpl\ndef score(answer):\n    time.sleep(30)\n"
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(score=slow), "-o", tmp_path / "out.jsonl"]
    code, out, _ = run(*words, "--time-limit", 0.2, "--memory-limit", 2)
    assert code == 1
    assert "timeout 1" in out


@pytest.mark.parametrize(
    ("source", "output", "problem"),
    [
        ("none.jsonl", "out.jsonl", "none.jsonl does not exist"),
        ("in.jsonl", "out.json", "out.json ends in .json; expected"),
        ("in.jsonl", "in.jsonl", "is the input itself"),
    ],
)
def test_wrong_names_are_one_line_on_stderr(
    run: Run, write_task: Callable[..., str], tmp_path: Path, source: str, output: str, problem: str
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))
    code, out, err = run("score", tmp_path / source, "-t", write_task(), "-o", tmp_path / output)
    assert (code, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1


def test_unknown_task_is_told(run: Run, tmp_path: Path) -> None:
    code, _, err = run("score", tmp_path / "in.jsonl", "-t", "nonesuch", "-o", tmp_path / "out.jsonl")
    assert code == 2
    assert "no task 'nonesuch'" in err


@pytest.mark.parametrize("limit", ["--memory-limit", "--time-limit"])
def test_limit_that_is_none_is_one_line(run: Run, write_task: Callable[..., str], tmp_path: Path, limit: str) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))
    code, _, err = run("score", tmp_path / "in.jsonl", "-t", write_task(), "-o", tmp_path / "o.jsonl", limit, "inf")
    assert code == 2
    assert "expected finite numbers above 0" in err
    assert len(err.splitlines()) == 1
