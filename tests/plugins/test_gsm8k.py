"""The task gsm8k: numbers compared as numbers, problems from templates and from files, and clear refusals."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_gsm8k.numbers import read_number
from tinyzero_sdk import Item, load_task
from tinyzero_sdk.errors import DataError, SettingsError

synthetic = load_task("gsm8k", options={"source": "synthetic"})
ROWS = [
    {"question": f"What is {n} plus 1,000?", "answer": f"{n} + 1000 = {n + 1000}\nSo it is.\n#### 1,{n:03d}"}
    for n in range(60)
]


def write_jsonl(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "answer", ["1042", "1,042", "1042.", "1042.00", "$1,042.00", r"\$1042", "+1042", "1042%", "01042", " 1042\n"]
)
def test_right_spellings(answer: str) -> None:
    assert synthetic.score_completion(f"<answer>{answer}</answer>", "1042").correct


@pytest.mark.parametrize("answer", ["1042.5", "-1042", "104", "1042.0001"])
def test_wrong_numbers(answer: str) -> None:
    assert synthetic.score_completion(f"<answer>{answer}</answer>", "1042").reason == "wrong"


@pytest.mark.parametrize(
    "answer",
    [
        *("", "forty-two", "1042 dollars", "1,04,2", "1 042", "1.042e3", "2084/2", "1_042", "1042,", ".", "9" * 65),
        *("１０４２", "١٠٤٢", "1042²", "nan", "inf", "0x412", "--1042", "$$1042", "1042.0.0"),
    ],
)
def test_look_alikes_are_malformed(answer: str) -> None:
    score = synthetic.score_completion(f"<answer>{answer}</answer>", "1042")
    assert (score.value, score.reason) == (0.0, "malformed")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>42</answer>", "42"),
        ("#### 41\nno: <answer>42</answer> #### 43", "42"),
        ("20 + 22 = 42\n#### 42\n", "42"),
        ("#### 41\n#### 42", "42"),
        ("#### 42</think> hm", None),
        ("42", None),
    ],
)
def test_extraction(text: str, answer: str | None) -> None:
    assert synthetic.extract_answer(text) == answer


@given(value=st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_every_way_to_write_a_number_is_read(value) -> None:  # type: ignore[no-untyped-def]
    assert read_number(f"{value:f}") == read_number(f"{value:,f}") == Fraction(value)
    assert read_number(f"{value:f}000") == Fraction(value)


def test_a_ground_truth_that_is_no_number_is_an_error_and_never_right() -> None:
    assert synthetic.score_completion("<answer>42</answer>", "forty-two").reason == "error"
    assert synthetic.score_completion("<answer>42</answer>", 42).correct


def test_synthetic_problems_are_labelled_solvable_and_different() -> None:
    items = list(synthetic.dataset("train", 400))
    assert {item.data["source"] for item in items} == {"synthetic"}
    assert all(synthetic.score_completion(synthetic.solve(item) or "", item.ground_truth).correct for item in items)
    assert all((read_number(item.ground_truth) or 0) >= 0 for item in items)
    assert {synthetic.difficulty(item) for item in items} == {1.0, 2.0, 3.0, 5.0}
    test_keys = {synthetic.item_key(item) for item in synthetic.dataset("test", 50)}
    assert not test_keys & {synthetic.item_key(item) for item in items}


def test_each_synthetic_step_is_true() -> None:
    for item in synthetic.generate("train", 200):
        for line in item.data["answer"].splitlines()[:-1]:
            words = line.rstrip(" .abcdefghijklmnopqrstuvwxyz").split()
            place = words.index("=")
            left, operator, right, result = (words[place + step] for step in (-3, -2, -1, 1))
            values = [Fraction(word.rstrip(".")) for word in (left, right, result)]
            computed = {"*": values[0] * values[1], "+": values[0] + values[1], "-": values[0] - values[1]}
            computed["/"] = values[0] / values[1]
            assert computed[operator] == values[2], line


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_gives_its_problems_once_each(kind: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "problems.jsonl", ROWS)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = str(tmp_path / "problems.parquet")
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    task = load_task("gsm8k", options={"path": path})
    items = list(task.generate("train", 100, seed=1))
    assert sorted(item.data["question"] for item in items) == sorted(row["question"] for row in ROWS)
    assert items != list(task.generate("train", 100, seed=2))
    assert items[10:20] == list(task.generate("train", 10, seed=1, start=10))
    item = next(item for item in items if item.data["question"] == ROWS[7]["question"])
    assert (item.ground_truth, task.difficulty(item)) == ("1007", 2.0)
    assert task.score_completion(ROWS[7]["answer"], item.ground_truth).correct


def test_reworded_spacing_is_the_same_problem() -> None:
    first, second = (
        Item("1", {"question": text, "answer": "#### 1"}) for text in ("How  many\nare IT?", "how many are it?")
    )
    assert synthetic.item_key(first) == synthetic.item_key(second)


def test_without_file_and_template_the_error_names_both_ways_out() -> None:
    with pytest.raises(SettingsError, match=r"task\.path=FILE.*task\.source=synthetic"):
        list(load_task("gsm8k").generate("train", 1))


def test_a_path_beside_templates_is_refused() -> None:
    with pytest.raises(SettingsError, match="no effect"):
        load_task("gsm8k", options={"source": "synthetic", "path": "x.jsonl"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "q", "answer": "#### 1"}\n{"question": ', ":2: not JSON"),
        ('{"question": "q"}', "problem 1: expected text in the columns question and answer"),
        ("\n[1]\n", ":2: a list"),
        ('{"question": "q", "answer": "1"}', "problem 1: expected the answer to end in"),
        ('{"question": "q", "answer": "#### one"}', "problem 1: expected the answer to end in"),
    ],
)
def test_bad_rows_are_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        list(load_task("gsm8k", options={"path": str(path)}).generate("train", 1))


@pytest.mark.parametrize(
    ("name", "content"), [("missing.jsonl", None), ("a.parquet", b"PAR1"), ("b.jsonl", b"\xff\xfe")]
)
def test_unreadable_files_are_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        list(load_task("gsm8k", options={"path": str(path)}).generate("train", 1))


@pytest.mark.parametrize("template", ["base", "chat", "compact"])
def test_prompts_hold_the_question_alone(template: str) -> None:
    item = next(synthetic.dataset("train"))
    prompt = str(synthetic.make_prompt(item, template))
    assert item.data["question"] in prompt
    assert item.data["answer"] not in prompt


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(SettingsError, match="base, chat, compact"):
        synthetic.make_prompt(Item("1", {"question": "?"}), "compct")
