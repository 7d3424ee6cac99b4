"""`tinyzero score` and `rescore`, as they are typed."""

import gzip
import io
import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.sdk.conftest import options_source

pytestmark = pytest.mark.usefixtures("scored_in_process")

OF_TEXT = {
    "generate_dataset": "@hookimpl\ndef generate_dataset(size): return [Item('1')] * size",
    "score": "@hookimpl\ndef score(answer, ground_truth): return float(answer == ground_truth)",
}
GOOD = {"completion": "<answer>1</answer>", "ground_truth": 1}


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def source(tmp_path):
    return tmp_path / "in.jsonl"


@pytest.fixture
def score(run, write_task, source, tmp_path):
    """`tinyzero score` of rows, of text or of a file into out.jsonl, by the task with some hooks changed."""

    def score(outputs, *words, **hooks):
        if not isinstance(outputs, Path):
            text = outputs if isinstance(outputs, str) else "".join(json.dumps(row) + "\n" for row in outputs)
            source.write_text(text)
        words = ("-t", write_task(**hooks), "-o", tmp_path / "out.jsonl", "--workers", 1, "--overwrite", *words)
        return run("score", outputs if isinstance(outputs, Path) else source, *words)

    return score


@pytest.mark.usefixtures("real_workers")
@pytest.mark.parametrize("output", [(), ("--output", "out.parquet")])
def test_clean_file_ends_with_zero_and_a_summary(run, write_task, source, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    source.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"ground_truth": 2}))
    code, out, err = run("score", source, "--task", write_task(), *output)
    assert (code, err) == (0, "")
    assert out.startswith("2 rows scored in ")
    assert ("written" in out.splitlines()[0]) == bool(output) == (tmp_path / "out.parquet").exists()
    assert "accuracy 50.0% (95% interval 9.5% to 90.5%) · mean score 0.5\n" in out
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [["ok", "1", "50.0%"], ["wrong", "1", "50.0%"]]


@pytest.mark.fault(
    "F11",
    "Lines of a file are damaged",
    made="a line that is no JSON, and one without a completion, among two good ones",
    seen="…:2: not JSON: …:4: no completion…",
    kept="all other rows are scored; the bad ones are in no number",
    code=1,
)
def test_bad_rows_are_reported_with_their_lines_and_end_with_one(fault_row, score, source, tmp_path):
    code, out, err = score(f"{json.dumps(GOOD)}\n[bold]\n{json.dumps(GOOD)}\n{{}}\n")
    first, second = err.splitlines()
    fault_row.check(err, code)
    assert first.startswith(f"{source}:2: not JSON: ")
    assert second.startswith(f"{source}:4: no completion")
    assert "2 bad rows not scored, and in no number above; accuracy 50.0% if they count as wrong" in out
    assert len(rows_of(tmp_path / "out.jsonl")) == 2
    code, out, _ = score([{"completion": 1}])
    assert code == 1
    assert f"no row of {source} can be scored" in out
    assert "1 bad row not scored" in out


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_json_stays_json_whatever_the_task_prints(score):
    noisy = "@hookimpl\ndef score(answer):\n    print('noise', flush=True)\n    return 1 / (int(answer) - 1)\n"
    code, out, err = score(f"{json.dumps(GOOD)}\nnull\n", "--json", score=noisy)
    summary = json.loads(out)
    assert code == 1
    assert "ZeroDivisionError" in err
    assert (summary["rows"], summary["reasons"]) == (1, {"error": 1})
    assert summary["bad"] == [{"number": 2, "problem": "null; expected a JSON object"}]


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_limits_apply(score):
    slow = "import time\n@hookimpl\ndef score(answer):\n    time.sleep(30)\n"
    code, out, _ = score([GOOD], "--timeout", 0.2, "--memory-limit", 2, score=slow)
    assert code == 1
    assert out.splitlines()[-1].split()[:3] == ["timeout", "1", "100.0%"]


SEVERAL = [
    {"completion": f"<answer>{answer}</answer>", "ground_truth": 1, "tokens": 10 * answer}
    | {"extra_info": {"key": key, "difficulty": 3}}
    for key, answers in {"a": [1, 1, 2, 2], "b": [2, 2, 2, 1]}.items()
    for answer in answers
]
"""Several completions of a prompt, with difficulties and lengths."""


def test_summary_has_prompts_difficulty_and_tokens(score):
    code, out, _ = score(SEVERAL)
    assert code == 0
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert all(heading in out for heading in ("tokens", "difficulty", "pass@k"))
    summary = json.loads(score(SEVERAL, "--json")[1])["summary"]
    assert summary["prompts"] == 2
    last = {"k": 4, "prompts": 2, "pass_at_k": 1.0, "majority_at_k": 0.25, "best_at_k": 1.0}
    assert summary["at_k"][-1].items() >= last.items()
    assert summary["by_reason"][0]["mean_length"] == 20
    assert json.loads(score(SEVERAL, "--json", "--by", "tokens")[1])["summary"]["prompts_by"] == "tokens"
    code, _, err = score(SEVERAL, "--by", "nothing")
    assert code == 2
    assert "no row at the start of the file has 'nothing'" in err


def test_pass_at_chooses_k_and_the_share_of_cut_off_completions_is_shown(score):
    rows = [row | {"finished": place % 4 > 0} for place, row in enumerate(SEVERAL)]
    code, out, _ = score(rows, "--pass-at", "3,9,3")
    assert code == 0
    assert "cut off 25.0%" in out
    assert "no pass@k for k=9: no prompt has as many completions" in out
    summary = json.loads(score(rows, "--pass-at", "3,9", "--json")[1])["summary"]
    assert [entry["k"] for entry in summary["at_k"]] == [3]
    assert summary["too_large_k"] == [9]
    assert [bucket["truncated_frac"] for bucket in summary["by_difficulty"]] == [0.25]
    assert [entry["truncated_frac"] for entry in summary["by_reason"]] == [0.2, 1 / 3]
    code, _, err = score(rows, "--pass-at", "2,x")
    assert code == 2
    assert "--pass-at=2,x: expected numbers from 1 to 1,024" in err


def test_rescore_shows_what_flipped(run, score, write_task, tmp_path):
    score(SEVERAL)
    scored = tmp_path / "out.jsonl"
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
    for row in rows_of(tmp_path / "new.jsonl"):
        assert (row["old_correct"], row["correct"]) == (row["tokens"] == 10, row["tokens"] == 20)
    code, out, _ = run("rescore", scored, "-t", task, "--json")
    changes = [("wrong", "ok", 5), ("ok", "wrong", 3)]
    assert code == 1
    assert [tuple(change.values()) for change in json.loads(out)["reasons"]] == changes


TUNABLE = options_source("wanted: int = 1", 'colour: str = "red"')
WANTED = "@hookimpl\ndef score(answer, options):\n    return float(answer == str(options.wanted))\n"


def test_rescore_shows_which_options_differ_and_how_many_rows_it_compared(run, score, write_task, tmp_path):
    score(SEVERAL, extra=TUNABLE, score=WANTED)
    rows = rows_of(tmp_path / "out.jsonl")
    for row in rows[4:]:
        del row["correct"]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = write_task(extra=TUNABLE, score=WANTED)
    words = ["rescore", tmp_path / "scored.jsonl", "-t", task, "--allow-version-mismatch", "task.wanted=2"]
    code, out, _ = run(*words, f"task.colour={'long ' * 30}")
    assert code == 1
    assert "colour" in out
    out = run(*words)[1]
    before, now = out.splitlines()[1].split(" · ")
    assert before.startswith("before: say ")
    assert (json.loads(before.split(maxsplit=3)[3])["wanted"], json.loads(now.split(maxsplit=3)[3])["wanted"]) == (1, 2)
    assert "4 of these rows compared" in out
    assert "accuracy 50.0% before, 50.0% now" in out
    report = json.loads(run(*words, "--json")[1])
    assert [report[name] for name in ("rows", "compared", "old_accuracy", "new_accuracy")] == [8, 4, 0.5, 0.5]
    assert report["new"]["accuracy"] == 0.625


def test_ground_truths_of_another_form_are_reported_with_their_column(score):
    hook = "@hookimpl\ndef score(answer, ground_truth):\n    return ground_truth['target']\n"
    rows = [{"completion": "none", "ground_truth": "1"}, GOOD | {"ground_truth": "seven"}]
    code, _, err = score(rows, score=hook)
    assert code == 1
    assert "ground_truth of row 2 is 'seven'" in err
    assert "TypeError" in err
    assert "Traceback" not in err
    rows = [{"completion": GOOD["completion"], "reward_model": {"ground_truth": 2}}]
    assert "reward_model.ground_truth of row 1 is 2" in score(rows, score=hook)[2]


LENGTHS = [(20, True), (60, None), (100, False)]  # an end that is unknown is not one that was cut off


def with_lengths(**columns):
    """Right answers of three lengths, under the names that the file has for length and end."""
    values = [{"count": count, "list": [1] * count, "end": finished} for count, finished in LENGTHS]
    return [GOOD | {name: value[kind] for name, kind in columns.items()} for value in values]


@pytest.mark.parametrize(
    ("column", "kind", "ending"), [("token_count", "count", "jsonl"), ("tokens", "list", "parquet")]
)
def test_wrappers_shape_by_length_and_are_kept_with_the_scores(run, score, write_task, tmp_path, column, kind, ending):
    outputs, wrapper, scored = with_lengths(**{column: kind}), "overlong(limit=100, buffer=80)", tmp_path / "out.jsonl"
    if ending == "parquet":
        table = pyarrow.Table.from_pylist(outputs)
        pyarrow.parquet.write_table(table, outputs := tmp_path / "in.parquet")
    code, shown, err = score(outputs, "--wrapper", wrapper)
    assert (code, err) == (0, "")
    rows = rows_of(scored)
    assert [(row["score"], row["correct"]) for row in rows] == [(1.0, True), (0.5, True), (0.0, True)]
    assert json.loads(rows[0]["task_wrappers"]) == [wrapper]
    assert "accuracy 100.0%" in shown
    assert wrapper in shown
    task = write_task()
    assert run("rescore", scored, "-t", task, "--wrapper", wrapper, "--workers", 1)[0] == 0
    code, _, err = run("rescore", scored, "-t", task, "--workers", 1)
    assert code == 2
    assert f'the row was scored with task wrappers ["{wrapper}"], and this is []' in err


@pytest.mark.parametrize(
    ("columns", "wrapper", "problem"),
    [
        ({}, "overlong(limit=9)", "has no token_count, which the score wrapper 'overlong' needs; add that column, or"),
        ({"finished": "end"}, "cosine(limit=9)", "has no token_count, which the score wrapper 'cosine' needs"),
        ({"token_count": "count"}, "mask_truncated", "has no finished, which the score wrapper 'mask_truncated' needs"),
    ],
)  # fmt: skip
def test_what_a_wrapper_lacks_is_one_line(score, tmp_path, columns, wrapper, problem):
    code, out, err = score(with_lengths(**columns), "--wrapper", wrapper)
    assert (code, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_an_unknown_end_is_not_one_that_was_cut_off(score, tmp_path):
    rows = with_lengths(token_count="count", finished="end")
    assert score(rows, "--wrapper", "cosine(limit=1000)")[0] == 0
    assert [row["score"] > 0 for row in rows_of(tmp_path / "out.jsonl")] == [True, True, False]


def test_an_output_is_replaced_only_on_request(run, write_task, source, tmp_path):
    source.write_text(json.dumps(GOOD))
    output = tmp_path / "out.jsonl"
    output.write_text("mine")
    words = ("score", source, write_task(), "-o", output, "--workers", 1)
    code, _, error = run(*words)
    assert (code, output.read_text()) == (2, "mine")
    assert "out.jsonl already exists; choose another --output, or overwrite it (--overwrite)" in error
    assert run(*words, "--overwrite")[0] == 0
    assert rows_of(output)[0]["correct"] is True


@pytest.mark.slow
def test_csv_compressed_files_and_stdin_are_scored_like_json_lines(score, tmp_path, monkeypatch):
    lines = "".join(json.dumps(GOOD | {"ground_truth": truth, "token_count": 7}) + "\n" for truth in (1, 2))
    table = 'completion,ground_truth,token_count\n"<answer>1</answer>",1,7\n"<answer>1</answer>",2,7\n'
    for name, content in {"in.csv": table, "in.csv.gz": table, "in.jsonl.gz": lines}.items():
        packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
        (tmp_path / name).write_bytes(packed)
    results = []
    for name in ("in.csv", "in.csv.gz", "in.jsonl.gz"):
        assert score(tmp_path / name)[0] == 0
        results.append(rows_of(tmp_path / "out.jsonl"))
    for typed in (lines, table):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        assert score(Path("-"))[0] == 0
        results.append(rows_of(tmp_path / "out.jsonl"))
    assert [row["correct"] for row in results[0]] == [True, False]
    assert results[1:] == results[:1] * 4


@pytest.mark.slow
def test_what_csv_cannot_be_is_said_by_row(score, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("completion,ground_truth,n\n<answer>1</answer>,1,a\nx\n\ny,nope,2\n")
    code, _, error = score(file)
    assert code == 1
    assert error.splitlines() == [
        f"{file}:3: a row of 1 where the header has 3",
        f"{file}:5: the ground_truth 'nope' (str) is not JSON, as those of the task are",
    ]
    assert rows_of(tmp_path / "out.jsonl")[0]["n"] == "a"
    assert score(file, extract_answer="@hookimpl\ndef extract_answer(completion): return completion", **OF_TEXT)[0] == 1
    assert [row["ground_truth"] for row in rows_of(tmp_path / "out.jsonl")] == ["1", "nope"]
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"{}" * 999)[:-9])
    assert "error: cannot read" in score(tmp_path / "in.jsonl.gz")[2]
    file.write_text("a,a\n1,2")
    assert "has two columns of one name, among: a, a; rename one" in score(file)[2]


@pytest.mark.parametrize(
    ("command", "other", "advice"),
    [
        ("score", "b.jsonl", ", or several as one: cat a.jsonl b.jsonl | tinyzero score -"),
        ("score", "./b.parquet", ", or several as their folder: tinyzero score FOLDER --format hf"),
        ("score", "b.eval", ", or several as their folder: tinyzero score FOLDER --format inspect"),
        ("score", "runs/b.csv.gz", ", and score the files one after another"),
        ("rescore", "b.parquet", ", and rescore the files one after another"),
    ],
)
def test_several_files_are_refused_with_what_to_do(run, write_task, command, other, advice):
    for words in (["a.jsonl", other, "--task", write_task()], ["a.jsonl", other]):
        assert run(command, *words) == (2, "", f"error: got another file, {other}; give one{advice}\n")


def test_a_folder_of_parquet_files_is_scored_as_one(run, write_task, tmp_path):
    folder = tmp_path / "outputs"
    folder.mkdir()
    for name in "ab":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([GOOD]), folder / f"{name}.parquet")
    code, out, _ = run("score", folder, "--format", "hf", "--task", write_task())
    assert (code, "2 rows scored" in out) == (0, True)
    assert "error: got the data file a.jsonl; expected a task" in run("check", "a.jsonl")[2]
