"""The benchmarks find the faults they look for, and every one of them is documented. None is run here."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import common, data, learn, score_file, startup

BENCHMARKS = Path(common.__file__).parent
SOLVABLE, UNSOLVABLE = ((3, 5, 17), 4), ((1, 1, 1), 100)


@pytest.mark.parametrize(
    "script", sorted({path.name for path in BENCHMARKS.glob("*.py")} - {"common.py", "training.py"})
)
def test_every_script_is_documented(script):
    assert f"`benchmarks/{script}" in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


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


def test_the_gain_is_that_of_the_last_step_over_the_first():
    rows = [
        {"step": 0, learn.held_out_key("countdown"): 0.2, learn.size_key("countdown"): 400.0, "timing_s/testing": 3.0},
        {"step": 1, "timing_s/testing": 2.0},
        {"step": 2, learn.held_out_key("countdown"): 0.5, learn.size_key("countdown"): 400.0},
    ]
    learnt = learn.learning(rows, learn.Times(first_line=1.0, evaluated=5.0, whole=60.0))
    assert (learnt.before, learnt.after, learnt.evaluation_seconds) == (0.2, 0.5, 3.0)
    assert learnt.points == pytest.approx(30)
    assert learnt.percent(learnt.before) == "20.0 ± 2.0 %"


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
        assert found == {"rows": 3, "hang": 1, "of them timeouts": 1, "others with another verdict": differ}


def test_the_file_to_score_is_what_it_claims(tmp_path):
    score_file.make_file(tmp_path / "outputs.parquet", 64)
    rows = pq.read_table(tmp_path / "outputs.parquet").to_pylist()
    assert {len(row["completion"]) for row in rows} == {score_file.LENGTH}
    assert len({row["extra_info"]["key"] for row in rows}) == 64 / score_file.SAMPLES
