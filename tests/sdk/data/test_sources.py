"""Rows by index, from files, folders and caches of the Hub."""

import datasets
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_sdk.data.files import JsonLinesWriter
from tinyzero_sdk.data.sources import open_rows
from tinyzero_sdk.errors import DataError

ROWS = [
    {"prompt": [{"role": "user", "content": f"Sé {n}."}], "reward_model": {"ground_truth": [n, n + 1]}, "n": n or None}
    for n in range(5000)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    with JsonLinesWriter(folder / "rows.jsonl") as writer:
        writer.write(ROWS)
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, folder / "rows.parquet", row_group_size=700)
    datasets.Dataset(table).save_to_disk(folder / "saved", num_shards=3)
    for split, part in {"train": table[:4000], "test": table[4000:]}.items():
        (folder / "split").mkdir(exist_ok=True)
        pq.write_table(part[: len(part) // 2], folder / "split" / f"{split}-00000-of-00002.parquet")
        pq.write_table(part[len(part) // 2 :], folder / "split" / f"{split}-00001-of-00002.parquet")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "saved"])
@settings(max_examples=10)
@given(indices=st.lists(st.integers(0, len(ROWS) - 1), max_size=30))
def test_rows_at_any_indices_are_those_read_in_order(folder, name, indices):
    rows = open_rows(str(folder / name))
    if not indices:
        assert list(rows) == ROWS
    assert rows.take(indices) == [ROWS[index] for index in indices]


def test_a_folder_of_splits_gives_each(folder):
    rows = open_rows(str(folder / "split"), ["test"])
    assert [row["prompt"][0]["content"] for row in rows] == [f"Sé {n}." for n in range(4000, 5000)]
    assert rows.place(999) == f"{folder / 'split' / 'test-00001-of-00002.parquet'}:500"
    with pytest.raises(DataError, match="has no dev split; it has test, train"):
        open_rows(str(folder / "split"), ["dev", "valid"])


def test_a_place_is_the_line_and_a_bad_line_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}\n')
    rows = open_rows(str(path))
    assert [rows[0], rows[1]] == [{"a": 1}, {"a": 2}]
    assert rows.place(1) == f"{path}:4"
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: not JSON"):
        open_rows(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "missing.jsonl",
            None,
            "does not exist; expected a file \\(.parquet, .jsonl, .json\\), a folder of them, or a data set",
        ),
        ("rows.csv", b"a", "ends in .csv; expected a name that ends in .parquet, .jsonl or .json"),
        ("rows.parquet", b"PAR1", "not Parquet, or damaged"),
        ("rows.arrow/0.arrow", b"x", "not Arrow, or damaged"),
        ("empty/readme.txt", b"x", "has no file like"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_rows(str((tmp_path / name).parent if "/" in name else tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["data/my--set", "données/exemples", "data/x.git/main", "hf://-a/b"])
def test_a_name_that_the_hub_does_not_allow_is_one_line(name):
    with pytest.raises(DataError, match=r"there is no file or folder .* allows no data set of that name; give a file"):
        open_rows(name)


def test_a_cached_data_set_of_the_hub_is_read_without_a_request(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "openai___gsm8k" / "main" / "0.0.0" / "e53f"
    datasets.Dataset.from_list([{"question": "1 + 1?"}]).save_to_disk(cached / "saved")
    next((cached / "saved").glob("*.arrow")).rename(cached / "gsm8k-train.arrow")
    for name in ("openai/gsm8k/main", "hf://datasets/openai/gsm8k/main"):
        assert list(open_rows(name)) == [{"question": "1 + 1?"}]
    repository = tmp_path / "hub" / "datasets--some--one"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("e53f")
    (repository / "snapshots" / "e53f" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), repository / "snapshots" / "e53f" / "data" / "train-00000-of-00001.parquet")
    assert list(open_rows("some/one")) == [{"a": 1}]
    with pytest.raises(DataError, match="cannot get some/one/other"):
        open_rows("some/one/other")
    with pytest.raises(DataError, match=r"cannot get openai/gsm8k/socratic .*HF_HUB_OFFLINE.*give a file"):
        open_rows("openai/gsm8k/socratic")
