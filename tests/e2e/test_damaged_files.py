"""Damaged and hostile files: a sample of benchmarks/fuzz_readers.py, and what it has found."""

import json
import pickle
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.fuzz_readers import (
    CASES,
    attempt,
    read_data,
    read_examples,
    read_format,
    read_scored,
    scored_rows,
)
from tests.environments import ROOT
from tinyzero_sdk.data import arrow_files
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_sdk.report.completions import read_completions
from tinyzero_trainer.data.tokenization import encode_prompt
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.loading import ModelError, load_model, load_tokenizer
from tinyzero_trainer.models.spec import has_graphs

TINY_MODEL = ROOT / "trainer/tinyzero_trainer/tiny_model"
QUICK = [name for name in CASES if not name.startswith(("model", "examples", "run"))]


@pytest.mark.parametrize("name", QUICK)
def test_a_damaged_file_is_read_or_refused(name, tmp_path):
    original, work = tmp_path / "original", tmp_path / "work"
    original.mkdir()
    CASES[name].make(original)
    shutil.copytree(original, work)
    outcomes = {attempt(CASES[name], original, work, f"{name} sample.{seed}") for seed in range(6)}
    assert outcomes <= {None, "refused"}


def write(path: Path, rows: list) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (read_examples, {"extra_info": 7}),
        (read_data, {"extra_info": {"difficulty": 10**400}}),
        (read_scored, {"parts": {"task": 10**400}}),
        (read_format("rows"), {"data_source": [1]}),
        *((read_scored, {"logprobs": values}) for values in ([1, [2]], [10**400, 1], ["x", 0.5])),
    ],
    ids=["no table", "a difficulty", "a part", "no text", "tokens: mixed", "large", "text"],
)
def test_a_value_that_is_none_of_its_kind_is_left_out(read, change, tmp_path):
    rows = [row | change for row in scored_rows()]
    for place, row in enumerate(rows):
        if "logprobs" in change:
            row["logprobs"] = change["logprobs"][place % 2]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read(tmp_path)


def test_columns_of_another_type_than_in_the_first_file_are_left_out(tmp_path):
    table = pa.Table.from_pylist(scored_rows())
    pq.write_table(table, tmp_path / "a.parquet")
    other = table.set_column(table.column_names.index("parts"), "parts", pa.array([True] * len(table)))
    pq.write_table(other, tmp_path / "b.parquet")
    found = read_completions(sorted(tmp_path.iterdir()))
    texts = found.texts_at(pa.array(range(len(found))).to_numpy(), ["completion", "parts"])
    assert texts["completion"].null_count == 0
    assert texts["parts"].null_count == len(other)


def test_a_log_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "log.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="is not a log of Inspect"):
        read_format("inspect")(tmp_path)


def test_a_rope_that_is_no_table_has_no_graphs():
    assert not has_graphs({"model_type": "qwen2", "rope_scaling": 7})


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch escaped') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].__setitem__('role', 'x') }}",
        "{{ dict.fromkeys.__globals__ }}",
        "{{ strftime_now.__globals__['os'].mkdir('escaped') }}",
        "{{ lipsum.__globals__['os'].mkdir('escaped') }}",
        "{{ namespace(__class__=1) }}",
        "{{ ('{0.__class__}' | attr('format'))(messages) }}",
        "{{ [].__class__.__base__ }}",
        "{% include '/etc/passwd' %}",
        "{% for",
    ],
)
def test_a_chat_template_cannot_leave_its_sandbox(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.chat_template = template
    with suppress(ModelError):
        assert encode_prompt(tokenizer, [{"role": "user", "content": "hi"}])[0] == ""  # of what is undefined
    assert not Path("escaped").exists()


@pytest.mark.parametrize(
    "settings", [{"model_max_length": "7"}, {"model_max_length": [7]}, {"chat_template": "\ud800"}], ids=str
)
def test_a_tokenizer_that_cannot_read_a_prompt_is_named(settings, tmp_path):
    model = shutil.copytree(TINY_MODEL, tmp_path / "model")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ModelError, match="cannot read the prompt"):
        encode_prompt(load_tokenizer(str(model)), "1" if "model_max_length" in settings else [{"role": "user"}])


def test_a_model_whose_config_lacks_a_size_is_refused_before_it_is_built(tmp_path, monkeypatch):
    model = shutil.copytree(TINY_MODEL, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    del config["hidden_size"]  # transformers would take 4,096 in place of 128
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("it is built"))
    with pytest.raises(ModelError, match=r"config\.json has no 'hidden_size'"):
        load_model(str(model), torch.device("cpu"))


@pytest.mark.parametrize("column", ["completion", "ground_truth"])
def test_texts_of_parquet_that_are_not_utf8_are_refused(column, tmp_path):
    rows = pa.Table.from_pylist([row | {"ground_truth": "3"} for row in scored_rows()])
    content = pa.array([b"a\xff"] * len(rows)).view(pa.string())
    pq.write_table(rows.set_column(rows.column_names.index(column), column, content), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet"):
        read_scored(tmp_path)


ONCE = pa.array(["x" * 1_000_000])  # what 4,096 rows share: 4 GB
SHARED = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), ONCE)
CELL = pa.concat_arrays([ONCE.cast(pa.string_view())])
VIEWS = pa.py_buffer(CELL.buffers()[1].to_pybytes() * 4096)
VIEWED = pa.Array.from_buffers(pa.string_view(), 4096, [None, VIEWS, *CELL.buffers()[2:]])
HOLLOW = pa.Array.from_buffers(pa.string_view(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\xff" * 16)])
LISTS = pa.array(range(4097), pa.int32())
OUTSIDE = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 2**30, 3], pa.int32()).buffers()[1], pa.py_buffer(b"abc")]
)
REPEATS = r"has rows of over 8 MB, and over 1,000 times its size, as of row \d+; write it anew without what repeats"


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (SHARED, {"store_schema": False}, REPEATS),
        (SHARED, {}, REPEATS),
        (pa.ListArray.from_arrays(pa.array([0, 4096]), SHARED), {"store_schema": False}, REPEATS),
        (pa.ListArray.from_arrays(LISTS, SHARED), {"store_schema": False}, REPEATS),
        (
            pa.ListArray.from_arrays(LISTS, pa.StructArray.from_arrays([SHARED], ["content"])),
            {"store_schema": False, "data_page_version": "2.0"},
            REPEATS,
        ),
        (pa.ListArray.from_arrays(pa.array([0, 2**20], pa.int32()), pa.nulls(2**20)), {}, REPEATS),
        (pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1)), None, REPEATS),
        (VIEWED, None, REPEATS),
        (ONCE.take(pa.array([0] * 20, pa.int32())), {"use_dictionary": False}, REPEATS),
        (HOLLOW, None, "a missing text that leads elsewhere"),
        (OUTSIDE, None, r"rows\.arrow is not Arrow, or damaged after row 0"),
    ],
    ids=[
        "texts",
        "typed",
        "a list",
        "lists",
        "messages",
        "nulls",
        "nulls of Arrow",
        "views",
        "pages",
        "hollow",
        "outside",
    ],
)
def test_few_bytes_that_stand_for_gigabytes_are_refused_in_little_memory(
    column, options, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(arrow_files, "_MOST_DECODED", 8 << 20)
    scores = {"score": [1.0], "correct": [True], "reason": ["ok"]}
    table = pa.table({"completion": column} | {name: value * len(column) for name, value in scores.items()})
    path = tmp_path / ("rows.parquet" if isinstance(options, dict) else "rows.arrow")
    if isinstance(options, dict):
        pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**30, **options)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    completions = read_completions([path]) if isinstance(options, dict) else None  # cached: not of a pool that ends
    default, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(DataError, match=message):
            list(read_rows(path))
        if completions:
            for read in (completions.texts_at, lambda rows: completions.select({"text": "y"})):
                with pytest.raises(DataError, match=message):
                    read(np.arange(len(completions)))
    finally:
        pa.set_memory_pool(default)
    assert pool.max_memory() < 150 * 2**20


class Opened:
    """Leaves a file where it is unpickled."""

    def __reduce__(self):
        return open, ("escaped", "w")


@pytest.mark.parametrize(
    ("settings", "is_loaded"),
    [
        ({"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}, True),
        ({"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}, "model_type": "own"}, False),
        ({"architectures": ["own.Own"], "custom_generate": "own", "trust_remote_code": True}, True),
        ({"attn_implementation": "own/kernel", "experts_implementation": "own/kernel"}, True),
        ({}, False),
    ],
    ids=["known type", "own type", "other keys", "kernels of the Hub", "a pickle alone"],
)
def test_code_of_a_model_directory_is_not_run(settings, is_loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(TINY_MODEL, tmp_path / "model")
    code = f"open({str(tmp_path / 'escaped')!r}, 'w')\nclass Own: pass\n"
    names = ("own", "modeling_own", "configuration_own", "tokenization_own", "generate", "custom_generate/generate")
    for name in names:
        (model / f"{name}.py").parent.mkdir(exist_ok=True)
        (model / f"{name}.py").write_text(code)
    (model / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | settings))
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Opened()))
    if not settings:
        (model / "model.safetensors").unlink()
    with nullcontext() if is_loaded else pytest.raises(TinyZeroError):
        load_model(str(model), torch.device("cpu"))
    with suppress(TinyZeroError):
        find_spec(str(model))
    assert not (tmp_path / "escaped").exists()


def test_code_that_a_tokenizer_names_is_not_run(tmp_path):
    model = shutil.copytree(TINY_MODEL, tmp_path / "model")
    (model / "own.py").write_text(f"open({str(tmp_path / 'escaped')!r}, 'w')\nclass Own: pass\n")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    named = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings | named))
    with suppress(ModelError):
        load_tokenizer(str(model))
    assert not (tmp_path / "escaped").exists()
