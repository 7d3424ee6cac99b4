"""A folder of Hugging Face `datasets`: Arrow files of `save_to_disk`, or Parquet files. Reads with pyarrow alone.

Uses the first column present of each of `COMPLETIONS`, `GROUND_TRUTHS` and `PROMPTS`; a list of completions becomes
rows, with the number of their record as key.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.files import BadRow, Block, invalid_rows, read_blocks
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.readers.records import files_of

COMPLETIONS = ("completion", "completions", "response", "responses", "generation", "generations", "output", "outputs")
"""Columns that hold a completion, or a list of them."""

GROUND_TRUTHS = ("ground_truth", "reward_model", "target", "answer", "solution")  # columns that hold the ground truth
PROMPTS = ("prompt", "question", "problem", "query")  # columns that hold the prompt (optional)
_SPLITS = ("train", "test", "validation", "valid", "val", "dev")


def read(path: Path) -> Iterator[Block]:
    """The rows of a split."""
    files, before = _files(path), 0
    for place, file in enumerate(files):
        row = before
        for block in read_blocks(file) if file.suffix == ".parquet" else _ended(_read_arrow(file)):
            block.numbers = [before + number for number in block.numbers]
            block.bad = [BadRow(before + bad.number, bad.problem) for bad in block.bad]
            row = max([row, *block.numbers[-1:], *(bad.number for bad in block.bad[-1:])])
            _take_columns(path, block)
            block.progress = (place + block.progress) / len(files)
            yield block
        before = row


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DataError(f"{path} is a file; --format hf expects a folder")
    if (path / "dataset_dict.json").is_file():
        splits = _read_list(path / "dataset_dict.json", "splits", lambda name: name)
        if len(splits) > 1:
            raise DataError(f"{path} has the splits {', '.join(splits)}; name one, such as {path / splits[0]}")
        path = path / splits[0]
    state = path / "state.json"
    if state.is_file():  # it has the order of the rows
        return [path / name for name in _read_list(state, "_data_files", lambda entry: entry["filename"])]
    files = files_of(path, "*.parquet", "*.arrow")
    splits = sorted({split for split in map(_split_of, files) if split})
    if len(splits) > 1:
        raise DataError(f"{path} has files of the splits {', '.join(splits)}; put each split into its own folder")
    return files


def _split_of(file: Path) -> str | None:
    """The split in the name of a Parquet file, as in `train-00000-of-00002.parquet` or `train.parquet`."""
    shard = re.match(r"(.+?)-\d+-of-\d+", file.name)
    first = re.split(r"[^a-z]", file.name)[0]
    return shard[1] if shard else first if first in _SPLITS else None


def _read_list(path: Path, key: str, name_of: Callable[[Any], Any]) -> list[str]:
    """The names that a file of `save_to_disk` lists under a key; at least one."""
    try:
        names = [name_of(entry) for entry in json.loads(path.read_text(encoding="utf-8"))[key]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of save_to_disk ({type(error).__name__}: {error})") from error
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} names no files under {key!r}; expected a list of names, as save_to_disk writes")
    return names


def _read_arrow(path: Path) -> Iterator[Block]:
    done, size = 0, max(1, path.stat().st_size)
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                table = pa.Table.from_batches([batch])
                for start in range(0, len(table), 1024):
                    part = table[start : start + 1024]
                    block = Block(list(range(done + 1, done + len(part) + 1)), [], part, [], file.tell() / size)
                    done += len(part)
                    block.drop(invalid_rows(part))
                    yield block
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not Arrow, or damaged after row {done}: {' '.join(str(error).split())}") from error


def _ended(blocks: Iterator[Block]) -> Iterator[Block]:
    """The blocks of a file, with progress 1 in the last (the end marker follows it)."""
    last: Block | None = None
    for block in blocks:
        if last is not None:
            yield last
        last = block
    if last is not None:
        last.progress = 1.0
        yield last


def _take_columns(path: Path, block: Block) -> None:
    table = block.table
    assert table is not None
    names = table.column_names
    completion = next((name for name in COMPLETIONS if name in names), None)
    truth = next((name for name in GROUND_TRUTHS if name in names), None)
    if completion is None or truth is None:
        raise DataError(
            f"{path} has the columns {', '.join(names)}; expected one of {', '.join(COMPLETIONS)}, "
            f"and one of {', '.join(GROUND_TRUTHS)}"
        )
    kind = table.schema.field(completion).type
    has_lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if has_lists:
        counts = pc.fill_null(pc.list_value_length(table[completion]), 0).to_pylist()
        block.drop({place: "no completion" for place, count in enumerate(counts) if count == 0})
        table = block.table
        assert table is not None
    prompt = next((name for name in PROMPTS if name in names), None)
    if prompt not in (None, "prompt"):
        table = table.append_column("prompt", table[prompt])
    if truth not in ("ground_truth", "reward_model"):
        table = table.append_column("ground_truth", table[truth])
    if has_lists:
        texts = table[completion].combine_chunks()
        parents = pc.list_parent_indices(texts)
        table = table.drop_columns([completion]).take(parents).append_column("completion", pc.list_flatten(texts))
        block.numbers = [block.numbers[place] for place in parents.to_pylist()]
        if "extra_info" not in names:  # which may have its own key
            keys = pa.array(map(str, block.numbers), pa.string())
            table = table.append_column("extra_info", pa.StructArray.from_arrays([keys], names=["key"]))
    elif completion != "completion":
        table = table.rename_columns(
            ["completion" if name == completion else name for name in names] + table.column_names[len(names) :]
        )
    block.table = table
