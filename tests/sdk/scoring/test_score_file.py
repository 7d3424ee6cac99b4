"""Scoring a file: each pair of formats, order, and rows that are unusual or bad."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sdk.rows import write_rows
from tinyzero_sdk import load_task
from tinyzero_sdk.data import arrow_files, files
from tinyzero_sdk.data.files import read_blocks, read_rows
from tinyzero_sdk.errors import DataError, VersionMismatchError
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.outputs import read_outputs
from tinyzero_sdk.scoring.provenance import Provenance, accept_any, scoring_check
from tinyzero_sdk.scoring.score_file import METADATA_KEY, ScoringOptions, score_file

pytestmark = pytest.mark.usefixtures("scored_in_process")

FORMATS = ("jsonl", "parquet")

OUTPUTS: list[dict[str, Any]] = [
    {"id": 5, "completion": "<answer>1</answer>", "ground_truth": 1, "note": {"by": ["ann"]}},
    {"id": 4, "completion": "<answer>2</answer>", "ground_truth": 1, "note": {"by": []}},
    {"id": 3, "completion": "é\0 no answer", "ground_truth": 1, "note": None},
]
RESULTS: list[dict[str, Any]] = [
    {"score": 1.0, "correct": True, "reason": "ok", "answer": "1"},
    {"score": 0.0, "correct": False, "reason": "wrong", "answer": "2"},
    {"score": 0.0, "correct": False, "reason": "no_answer", "answer": None},
]


@pytest.fixture
def task(write_task):
    return load_task(write_task())


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(files, "_BLOCK_ROWS", 100)
    monkeypatch.setattr(arrow_files, "_BLOCK_ROWS", 100)


def score_rows(task, tmp_path, rows, into="jsonl"):
    """The rows, scored by way of files."""
    score_file(task, write_rows(tmp_path / "in.jsonl", rows), tmp_path / f"out.{into}")
    return list(read_rows(tmp_path / f"out.{into}"))


def without_provenance(rows):
    return [{name: cell for name, cell in row.items() if name not in Provenance._fields} for row in rows]


def bad_numbers(report):
    assert report.bad_rows == len(report.bad)
    return [row.number for row in report.bad]


@pytest.mark.slow
@pytest.mark.parametrize("into", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.usefixtures("real_workers")
def test_rows_keep_their_columns_and_order_and_get_their_score(task, tmp_path, source, into):
    report = score_file(task, write_rows(tmp_path / f"in.{source}", OUTPUTS), tmp_path / f"out.{into}")
    scored = list(read_rows(tmp_path / f"out.{into}"))
    assert without_provenance(scored) == [row | result for row, result in zip(OUTPUTS, RESULTS, strict=True)]
    assert list(scored[0]) == [*OUTPUTS[0], "score", "correct", "reason", "answer", *Provenance._fields]
    assert [scored[0][name] for name in Provenance._fields] == ["say", task.version, "{}", "[]"]
    assert (report.rows, report.correct, report.accuracy, report.mean_score) == (3, 1, 1 / 3, 1 / 3)
    assert report.reasons == {"ok": 1, "wrong": 1, "no_answer": 1}
    assert report.is_clean


BAD_LINES = {
    "broken": '{"completion": "a", "ground_truth": 1',
    "no completion": '{"ground_truth": 1}',
    "null completion": '{"completion": null, "ground_truth": 1}',
    "wrong type": '{"completion": ["a"], "ground_truth": 1}',
    "no ground truth": '{"completion": "a"}',
    "null ground truth": '{"completion": "a", "ground_truth": null, "reward_model": {}}',
    "odd reward model": '{"completion": "a", "reward_model": "rule"}',
}


@pytest.mark.parametrize("into", FORMATS)
def test_bad_lines_are_listed_and_the_rest_is_scored(task, tmp_path, into):
    good = json.dumps(OUTPUTS[0])
    lines = [line for bad in BAD_LINES.values() for line in (good, bad)]
    (tmp_path / "in.jsonl").write_text("\ufeff" + "\r\n".join(lines))
    report = score_file(task, tmp_path / "in.jsonl", tmp_path / f"out.{into}")
    assert bad_numbers(report) == [2 * place for place in range(1, len(BAD_LINES) + 1)]
    assert without_provenance(read_rows(tmp_path / f"out.{into}")) == [OUTPUTS[0] | RESULTS[0]] * len(BAD_LINES)
    assert not report.is_clean


@pytest.mark.parametrize("into", FORMATS)
def test_file_of_bad_rows_alone_gives_an_empty_output(task, tmp_path, into):
    pq.write_table(pa.table({"completion": [None, "a"], "ground_truth": [1, None]}), tmp_path / "in.parquet")
    report = score_file(task, tmp_path / "in.parquet", tmp_path / f"out.{into}")
    assert (bad_numbers(report), report.accuracy, report.mean_score) == ([1, 2], None, None)
    assert list(read_rows(tmp_path / f"out.{into}")) == []


def test_no_row_is_lost_to_a_column_of_several_types(task, tmp_path, small_blocks):
    """Within a block and between two."""
    ids = [5, "five", None, 2**64, [1, "x"], {"a": 1}, {"a": [{}]}, 2**60, 0.5, True]
    infos = [{"key": 1}, [["key", 1]], "text", 7, 2**80, {"key": "x", "more": {"a": [1]}}, {"key": 2.5, "more": []}]
    for width in (1, 11):
        rows = [
            OUTPUTS[n % 2] | {"id": cell, "extra_info": infos[n % 7]}
            for n, cell in enumerate(ids)
            for _ in range(width)
        ]
        report = score_file(task, write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet")
        assert (report.rows, report.bad_rows) == (len(rows), 0)
        scored = list(read_rows(tmp_path / "out.parquet"))
        assert [(row["id"], row["extra_info"]) for row in scored] == [(row["id"], row["extra_info"]) for row in rows]
        assert scored[0]["note"] == OUTPUTS[0]["note"]


def test_fields_of_a_column_of_json_are_read_as_of_one_of_objects(task, tmp_path):
    infos = [{"key": "a", "difficulty": 1}, "text", {"key": "b", "difficulty": [2]}, {"key": "a"}]
    source = write_rows(tmp_path / "in.jsonl", [OUTPUTS[0] | {"extra_info": info} for info in infos])
    paths = [tmp_path / f"out.{into}" for into in FORMATS]
    for path in paths:
        score_file(task, source, path)
    for pair in ([paths[0]] * 2, paths, paths[::-1], [paths[1]] * 2):
        report = compare_files(pair)
        assert (report.problems, report.problems_by) == (2, "extra_info.key")
    assert len(list(read_blocks(paths[1], ["extra_info.key", "extra_info.difficulty", "score"]))) == 1


NAMES = st.sampled_from(["key", "index", "difficulty", "a"])
CELLS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**53, 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda cells: (
        st.lists(cells, max_size=3)
        # In Parquet a field that is null is one that is missing.
        | st.dictionaries(NAMES, cells.filter(lambda cell: cell is not None), max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(["extra_info", "num", "prompt", "tokens"], CELLS)),
        min_size=1,
        max_size=8,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_mixed_cells_score_alike_as_json_lines_and_as_parquet(task, tmp_path_factory, monkeypatch, rows):
    folder = tmp_path_factory.mktemp("mixed")
    monkeypatch.setattr(files, "_BLOCK_ROWS", 3)
    source = write_rows(folder / "in.jsonl", [OUTPUTS[n % 3] | row for n, row in enumerate(rows)])
    lines, table = (score_file(task, source, folder / f"out.{into}") for into in FORMATS)
    assert (
        (lines.rows, lines.bad, lines.reasons)
        == (table.rows, table.bad, table.reasons)
        == (len(rows), [], lines.reasons)
    )
    assert lines.summary.as_json() == table.summary.as_json()
    kept = [[row[name] for name in ("id", *RESULTS[0])] for row in read_rows(folder / "out.jsonl")]
    assert [[row[name] for name in ("id", *RESULTS[0])] for row in read_rows(folder / "out.parquet")] == kept


def test_ground_truths_reach_the_task_as_they_are_in_the_line(write_task, tmp_path):
    task = load_task(
        write_task(score="@hookimpl\ndef score(ground_truth):\n    return float(len(ground_truth) == 1)\n")
    )
    rows = [{"completion": "<answer>1</answer>", "ground_truth": {key: 1}} for key in "ab"]
    assert [row["score"] for row in score_rows(task, tmp_path, rows, "parquet")] == [1.0, 1.0]


def test_parquet_types_survive(task, tmp_path):
    table = pa.table(
        {
            "completion": pa.array(["<answer>1</answer>"] * 2).dictionary_encode(),
            "ground_truth": pa.array([1, 2], pa.int8()),
            "when": pa.array([1, 2], pa.timestamp("ns", "UTC")),
            "half": pa.array([0.5, None], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    score_file(task, tmp_path / "in.parquet", tmp_path / "out.parquet")
    scored = pq.read_table(tmp_path / "out.parquet")
    assert scored.select(table.column_names).equals(table)
    assert json.loads(scored.schema.metadata[METADATA_KEY])["task_version"] == task.version
    with pytest.raises(DataError, match=r"column 'when'.*JSON lacks"):
        score_file(task, tmp_path / "in.parquet", tmp_path / "out.jsonl")


def test_scoring_again_replaces_the_results(task, tmp_path):
    old = [row | {"score": 9.0, "correct": None, "reason": 3, "answer": {"x": 1}} for row in OUTPUTS]
    for into in FORMATS:
        scored = score_rows(task, tmp_path, old, into)
        assert [{name: row[name] for name in RESULTS[0]} for row in scored] == RESULTS


@pytest.mark.parametrize(
    ("ending", "content", "problem"),
    [
        *(("jsonl", content, "has no rows") for content in (b"", b"\n\n", b"\xef\xbb\xbf")),
        ("parquet", pa.table({"completion": pa.array([], pa.string())}), "has no rows"),
        ("parquet", pa.table({"text": ["a"]}), "has the columns text: no completion; expected"),
        ("parquet", b"PAR1", "is not Parquet, or damaged"),
    ],
)
def test_empty_or_foreign_file_is_refused(task, tmp_path, ending, content, problem):
    path = tmp_path / f"in.{ending}"
    path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(content, path)
    with pytest.raises(DataError, match=problem):
        score_file(task, path, tmp_path / f"out.{ending}")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize(
    ("source", "output", "problem"),
    [
        ("none.jsonl", "out.jsonl", "does not exist"),
        ("in.txt", "out.jsonl", r"in\.txt ends in \.txt; expected"),
        ("in.jsonl", "out", "ends in nothing; expected"),
        ("in.jsonl", "sub/../in.jsonl", "is the input itself"),
        ("in.jsonl", "none/out.jsonl", "does not exist; create it"),
        ("folder.jsonl", "out.jsonl", "is a directory"),
    ],
)
def test_impossible_names_are_refused(task, tmp_path, source, output, problem):
    write_rows(tmp_path / "in.jsonl", OUTPUTS)
    (tmp_path / "sub").mkdir()
    (tmp_path / "folder.jsonl").mkdir()
    before = (tmp_path / "in.jsonl").read_bytes()
    with pytest.raises(DataError, match=problem):
        score_file(task, tmp_path / source, tmp_path / output)
    assert (tmp_path / "in.jsonl").read_bytes() == before


def test_progress_goes_up_to_one(task, tmp_path, small_blocks):
    for source in FORMATS:
        fractions: list[float] = []
        path = write_rows(tmp_path / f"in.{source}", OUTPUTS * 140)
        score_file(task, path, tmp_path / "out.jsonl", ScoringOptions(on_progress=fractions.append))
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0 > fractions[0]


@pytest.mark.parametrize(
    "truths",
    [
        pa.array(["1", "2", "3"], pa.large_string()),
        pa.array(["1", "2", "3"]).dictionary_encode(),
        pa.array([1, 2, 3], pa.int8()),
        pa.array([{"a": [1, None], "b": "é"}, {"a": [], "b": None}, {"a": None, "b": "x"}]),
        pa.array([[1.5], [2.5, 3.5], []], pa.large_list(pa.float64())),
        pa.array([True, False, True]),
    ],
    ids=lambda array: str(array.type),
)
def test_ground_truth_of_any_type_reaches_a_worker_as_it_is(tmp_path, truths):
    texts = pa.array(["", "é<answer>1</answer>", "plain", ""]).dictionary_encode()[1:4]
    pq.write_table(pa.table({"completion": texts, "ground_truth": truths}), tmp_path / "in.parquet")
    (batch,) = read_outputs(read_blocks(tmp_path / "in.parquet"), tmp_path, accept_any)
    for start, stop in ((0, 3), (1, 3), (1, 1)):
        parcel = batch.pack(start, stop)
        assert list(parcel.completions()) == texts.to_pylist()[start:stop]
        assert parcel.ground_truths == truths.to_pylist()[start:stop]


@pytest.mark.parametrize("source", FORMATS)
def test_a_ground_truth_of_its_own_precedes_that_of_the_reward_model(task, tmp_path, source):
    rows = [
        {"completion": "<answer>1</answer>", "ground_truth": own, "reward_model": {"ground_truth": other}}
        for own, other in ((1, 2), (None, 1))
    ]
    score_file(task, write_rows(tmp_path / f"in.{source}", rows), tmp_path / "out.jsonl")
    assert [row["correct"] for row in read_rows(tmp_path / "out.jsonl")] == [True, True]


def test_ground_truths_of_types_that_json_lacks_are_bad_rows(task, tmp_path):
    table = pa.table({"completion": ["a"] * 2, "ground_truth": pa.array([1, 2], pa.timestamp("s"))})
    pq.write_table(table, tmp_path / "in.parquet")
    report = score_file(task, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert bad_numbers(report) == [1, 2]
    assert "datetime" in report.bad[0].error


def test_a_length_that_is_no_number_is_unknown(write_task, tmp_path):
    path = write_rows(tmp_path / "in.jsonl", [OUTPUTS[0] | {"token_count": count} for count in (7, "x")])
    score_file(load_task(write_task(), wrappers=["overlong(limit=100)"]), path, tmp_path / "out.jsonl")
    assert [row["reason"] for row in read_rows(tmp_path / "out.jsonl")] == ["ok", "error"]


def of(source, version=None, **columns):
    """An output that tells of its origin."""
    return OUTPUTS[0] | {"data_source": source, "extra_info": {"task_version": version}} | columns


@pytest.mark.slow
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (of("say", "0"), "generated by task say 0, but say VERSION would score it"),
        (of("shout", "VERSION"), "generated by task shout VERSION"),
        (of("countdown"), "generated by task countdown, but"),
        (of("say", task="say", task_version="0"), "scored by task say 0 before"),
        (of("say", task="shout", task_version="VERSION"), "scored by task shout VERSION before"),
        (of("say", "VERSION"), None),
        (of("openai/gsm8k"), None),
        (of(None), None),
        (of("say", "VERSION", task="say", task_version="VERSION"), None),
        (of("say", task="anything"), None),
    ],
)
def test_rows_of_another_task_or_version_are_refused(task, tmp_path, source, row, problem):
    rows = json.loads(json.dumps([of("say", None, task="", task_version=""), row]).replace("VERSION", task.version))
    path = write_rows(tmp_path / f"in.{source}", rows)
    outputs = read_outputs(read_blocks(path), path, scoring_check(task))
    if problem is None:
        assert [len(batch) for batch in outputs] == [2]
        return
    with pytest.raises(VersionMismatchError, match=problem.replace("VERSION", task.version)) as caught:
        list(outputs)
    assert ":2: " in str(caught.value)


def test_mismatch_ends_scoring_without_an_output_unless_it_is_allowed(task, tmp_path):
    path = write_rows(tmp_path / "in.jsonl", [of("say", "0")])
    with pytest.raises(VersionMismatchError, match="--allow-version-mismatch"):
        score_file(task, path, tmp_path / "out.jsonl")
    assert list(tmp_path.glob("*out*")) == []
    assert score_file(task, path, tmp_path / "out.jsonl", ScoringOptions(allow_version_mismatch=True)).rows == 1


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.fault(
    "F21",
    "Rows are scored by several processes at once",
    made="one and three workers, over small blocks",
    seen="",
    kept="the same rows in the same order with the same scores",
)
def test_many_blocks_and_several_workers_keep_every_row_in_order(fault_row, write_task, tmp_path, source, small_blocks):
    """Rows on which the scorer raises are among them, and are written like any other."""
    code = "@hookimpl\ndef score(answer, ground_truth): return 1 / (answer != '7') * (answer == str(ground_truth))"
    task = load_task(write_task(score=code))
    rows = [{"id": n, "completion": f"<answer>{n % 10}</answer>", "ground_truth": n % 5} for n in range(420)]
    path = write_rows(tmp_path / f"in.{source}", rows)
    for workers in (1, 3):
        score_file(task, path, tmp_path / f"{workers}.{source}", ScoringOptions(workers=workers))
    assert (tmp_path / f"1.{source}").read_bytes() == (tmp_path / f"3.{source}").read_bytes()
    reasons = [(n, "error" if n % 10 == 7 else "ok" if n % 10 < 5 else "wrong") for n in range(420)]
    assert [(row["id"], row["reason"]) for row in read_rows(tmp_path / f"3.{source}")] == reasons
    fault_row.check("")
