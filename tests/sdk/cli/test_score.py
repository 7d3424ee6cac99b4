"""`tinyzero score` and `rescore`, as they are typed."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("scored_here")

GOOD = {"completion": "<answer>1</answer>", "ground_truth": 1}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.usefixtures("real_workers")
def test_clean_file_ends_with_zero_and_a_summary(run, write_task, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"ground_truth": 2}))
    code, out, err = run("score", tmp_path / "in.jsonl", "--task", write_task(), "--output", tmp_path / "out.parquet")
    assert (code, err) == (0, "")
    assert "2 rows scored" in out
    assert "accuracy 50.0% (95% interval 9.5% to 90.5%) · mean score 0.5\n" in out
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [["ok", "1", "50.0%"], ["wrong", "1", "50.0%"]]


def test_bad_rows_are_reported_with_their_lines_and_end_with_one(run, write_task, tmp_path):
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(GOOD)}\n[bold]\n{json.dumps(GOOD)}\n{{}}\n")
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(), "-o", tmp_path / "out.jsonl", "--workers", 1]
    code, out, err = run(*words)
    assert code == 1
    lines = err.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'in.jsonl'}:2: not JSON: ")
    assert lines[1].startswith(f"{tmp_path / 'in.jsonl'}:4: no completion")
    assert "2 bad rows not scored" in out
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    (tmp_path / "in.jsonl").write_text('{"completion": 1}\n')
    code, out, _ = run(*words)
    assert code == 1
    assert f"no row of {tmp_path / 'in.jsonl'} can be scored" in out
    assert "1 bad row not scored" in out


@pytest.mark.usefixtures("real_workers")
def test_json_stays_json_whatever_the_task_prints(run, write_task, tmp_path):
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


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_limits_are_taken(run, write_task, tmp_path):
    slow = "import time\n@hookimpl\ndef score(answer):\n    time.sleep(30)\n"
    (tmp_path / "in.jsonl").write_text(json.dumps(GOOD))
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(score=slow), "-o", tmp_path / "out.jsonl"]
    code, out, _ = run(*words, "--timeout", 0.2, "--memory-limit", 2)
    assert code == 1
    assert out.splitlines()[-1].split()[:3] == ["timeout", "1", "100.0%"]


def several(path):
    """Outputs with several completions of a prompt, difficulties and lengths."""
    return write_rows(
        path,
        [
            {"completion": f"<answer>{answer}</answer>", "ground_truth": 1, "tokens": 10 * answer}
            | {"extra_info": {"key": key, "difficulty": 3}}
            for key, answers in {"a": [1, 1, 2, 2], "b": [2, 2, 2, 1]}.items()
            for answer in answers
        ],
    )


def test_summary_has_prompts_difficulty_and_tokens(run, write_task, tmp_path):
    words = ["score", several(tmp_path / "in.jsonl"), "-t", write_task(), "-o", tmp_path / "out.jsonl"]
    code, out, _ = run(*words)
    assert code == 0
    assert max(map(len, out.splitlines()[1:])) <= 80
    for heading in ("tokens", "difficulty", "pass@k"):
        assert heading in out
    _, out, _ = run(*words, "--json")
    summary = json.loads(out)["summary"]
    assert summary["prompts"] == 2
    assert summary["at_k"][-1] == {"k": 4, "prompts": 2, "pass_at_k": 1.0, "majority_at_k": 0.25, "best_at_k": 1.0}
    assert summary["by_reason"][0]["mean_length"] == 20
    _, out, _ = run(*words, "--json", "--by", "tokens")
    assert json.loads(out)["summary"]["prompts_by"] == "tokens"
    code, _, err = run(*words, "--by", "nothing")
    assert code == 2
    assert "no row at the start of the file has 'nothing'" in err


def test_rescore_shows_what_flipped(run, write_task, tmp_path):
    scored = tmp_path / "scored.parquet"
    run("score", several(tmp_path / "in.jsonl"), "-t", write_task(), "-o", scored)
    code, out, _ = run("rescore", scored, "-t", write_task())
    assert code == 0
    assert "0 scores changed" in out
    task = write_task(score="@hookimpl\ndef score(answer):\n    return float(answer == '2')\n")
    code, out, _ = run("rescore", scored, "-t", task, "-o", tmp_path / "new.jsonl", "--limit", 1)
    assert code == 1
    assert "8 scores changed, 8 of them flipped" in out
    assert "row 1: ok 1 → wrong 0" in out
    assert "row 2: wrong 0 → ok 1" not in out
    assert "... and 2 more ok → wrong" in out
    assert "... and 4 more wrong → ok" in out
    new = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert [(row["old_correct"], row["correct"]) for row in new] == [
        (row["tokens"] == 10, row["tokens"] == 20) for row in new
    ]
    code, out, _ = run("rescore", scored, "-t", task, "--json")
    assert code == 1
    assert json.loads(out)["reasons"] == [
        {"old": "wrong", "new": "ok", "rows": 5},
        {"old": "ok", "new": "wrong", "rows": 3},
    ]
    code, _, err = run("rescore", tmp_path / "in.jsonl", "-t", task)
    assert code == 2
    assert "does not say what scored it" in err


TUNABLE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Options:
    wanted: int = 1
    colour: str = "red"

@hookimpl
def options():
    return Options
"""
WANTED = "@hookimpl\ndef score(answer, options):\n    return float(answer == str(options.wanted))\n"


def test_rescore_shows_which_options_differ_and_how_many_rows_it_compared(run, write_task, tmp_path):
    task = write_task(extra=TUNABLE, score=WANTED)
    run("score", several(tmp_path / "in.jsonl"), "-t", task, "-o", tmp_path / "scored.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    for row in rows[4:]:
        del row["correct"]
    write_rows(tmp_path / "scored.jsonl", rows)
    words = ["rescore", tmp_path / "scored.jsonl", "-t", task, "--allow-version-mismatch", "task.wanted=2"]
    code, out, _ = run(*words, f"task.colour={'long ' * 30}")
    assert code == 1
    assert "colour" in out
    code, out, _ = run(*words)
    before, now = out.splitlines()[1].split(" · ")
    assert before.startswith("before: say ")
    assert before.endswith('with {"wanted": 1}')
    assert now.endswith('with {"wanted": 2}')
    assert "colour" not in out
    assert "4 of these rows compared" in out
    assert "accuracy 50.0% before, 50.0% now" in out
    code, out, _ = run(*words, "--json")
    report = json.loads(out)
    assert [report[name] for name in ("rows", "compared", "old_accuracy", "new_accuracy")] == [8, 4, 0.5, 0.5]
    assert report["new"]["accuracy"] == 0.625


def test_ground_truths_of_another_form_are_reported_with_their_column(run, write_task, tmp_path):
    task = write_task(score="@hookimpl\ndef score(answer, ground_truth):\n    return ground_truth['target']\n")
    rows = [{"completion": "none", "ground_truth": "1"}, GOOD | {"ground_truth": "seven"}]
    write_rows(tmp_path / "in.jsonl", rows)
    code, _, err = run("score", tmp_path / "in.jsonl", "-t", task, "-o", tmp_path / "out.jsonl")
    assert code == 1
    assert "ground_truth of row 2 is 'seven'" in err
    assert "TypeError" in err
    assert "Traceback" not in err
    row = {"completion": GOOD["completion"], "reward_model": {"ground_truth": 2}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    _, _, err = run("score", tmp_path / "in.jsonl", "-t", task, "-o", tmp_path / "out.jsonl")
    assert "reward_model.ground_truth of row 1 is 2" in err


def test_what_is_odd_in_the_grouping_is_reported(run, write_task, tmp_path):
    keyed = "".join(json.dumps(GOOD | {"extra_info": {"key": str(n // 2)}}) + "\n" for n in range(1100))
    bare = json.dumps(GOOD) + "\n"
    words = ["score", tmp_path / "in.jsonl", "-t", write_task(), "-o", tmp_path / "out.jsonl"]
    (tmp_path / "in.jsonl").write_text(bare * 1100 + keyed)
    _, out, _ = run(*words)
    assert "extra_info.key does not identify prompts, since the first rows have none" in out
    (tmp_path / "in.jsonl").write_text(keyed + bare * 3)
    _, out, _ = run(*words)
    assert "3 rows without extra_info.key, each counted as its own prompt" in out
    assert "does not identify" not in out


LENGTHS = {"a": (20, True), "b": (60, True), "c": (100, False)}


def with_lengths(path, **columns):
    """Right answers of three lengths, with what the file calls length and end."""
    rows = []
    for count, finished in LENGTHS.values():
        values = {"count": count, "list": [1] * count, "end": finished}
        rows.append(GOOD | {name: values[kind] for name, kind in columns.items()})
    return write_rows(path, rows)


@pytest.mark.parametrize(
    ("column", "kind", "ending"), [("token_count", "count", "jsonl"), ("tokens", "list", "parquet")]
)
def test_wrappers_shape_by_the_files_lengths_and_are_kept_with_the_scores(
    run, write_task, tmp_path, column, kind, ending
):
    import pyarrow.json
    import pyarrow.parquet

    source, out = with_lengths(tmp_path / "in.jsonl", **{column: kind}), tmp_path / "out.jsonl"
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.json.read_json(source), source := tmp_path / "in.parquet")
    task, wrapper = write_task(), "overlong(limit=100, buffer=80)"
    code, shown, err = run("score", source, "-t", task, "-o", out, "--wrapper", wrapper, "--workers", 1)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["score"] for row in rows] == [1.0, 0.5, 0.0]
    assert all(row["correct"] for row in rows)
    assert json.loads(rows[0]["task_wrappers"]) == [wrapper]
    assert "accuracy 100.0%" in shown
    assert wrapper in shown
    assert run("rescore", out, "-t", task, "--wrapper", wrapper, "--workers", 1)[0] == 0
    code, _, err = run("rescore", out, "-t", task, "--workers", 1)
    assert code == 2
    assert f"the row was scored with --wrapper '{wrapper}', and this is with no wrapper" in err


def test_wrappers_may_be_several_and_one_needs_to_know_the_end(run, write_task, tmp_path):
    source = with_lengths(tmp_path / "in.jsonl", token_count="count", finished="end")
    words = ["score", source, "-t", write_task(), "-o", tmp_path / "out.jsonl", "--workers", 1]
    code, _, _ = run(*words, "--wrapper", "cosine(limit=200)", "--wrapper", "format")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert code == 0
    assert json.loads(rows[0]["task_wrappers"]) == ["cosine(limit=200)", "format"]
    assert rows[0]["score"] > rows[1]["score"] > 1.0 > rows[2]["score"] == -10.0


@pytest.mark.parametrize(
    ("columns", "wrapper", "problem"),
    [
        ({}, "overlong(limit=9)", "has no token_count, which the score wrapper 'overlong' needs; add that column, or"),
        ({"finished": "end"}, "cosine(limit=9)", "has no token_count, which the score wrapper 'cosine' needs"),
        ({"token_count": "count"}, "mask_truncated", "has no finished, which the score wrapper 'mask_truncated' needs"),
        ({"token_count": "count"}, "overlong", "the score wrapper 'overlong' needs limit: overlong(limit=…)"),
        ({"token_count": "count"}, "overlon", "no score wrapper 'overlon'; did you mean 'overlong'?"),
    ],
)  # fmt: skip
def test_what_a_wrapper_lacks_is_one_line(run, write_task, tmp_path, columns, wrapper, problem):
    source = with_lengths(tmp_path / "in.jsonl", **columns)
    code, out, err = run("score", source, "-t", write_task(), "-o", tmp_path / "o.jsonl", "--wrapper", wrapper)
    assert (code, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "o.jsonl").exists()
