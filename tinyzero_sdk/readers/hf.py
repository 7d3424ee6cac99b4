"""A folder of Hugging Face `datasets`: what `save_to_disk` wrote (Arrow), or Parquet files. Read with pyarrow alone.

The first column found of each row of `COMPLETIONS` and `GROUND_TRUTHS` is taken; a list of completions becomes rows.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.files import Block, invalid_rows, read_blocks
from tinyzero_sdk.readers.records import files_of

COMPLETIONS = ("completion", "completions", "response", "responses", "generation", "generations", "output", "outputs")
"""Columns that hold a completion, or a list of them."""

GROUND_TRUTHS = ("ground_truth", "reward_model", "target", "answer", "solution")
"""Columns that hold the ground truth."""


def read(path: Path) -> Iterator[Block]:
    """The rows of a split."""
    files, row = _files(path), 0
    for place, file in enumerate(files):
        for block in read_blocks(file) if file.suffix == ".parquet" else _ended(_read_arrow(file)):
            block.numbers = [row + number for number in block.numbers]
            _take_columns(path, block)
            block.progress = (place + block.progress) / len(files)
            yield block
        row = block.numbers[-1] if block.numbers else row


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DataError(f"{path} is a file; --format hf expects a folder")
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        if len(splits) > 1:
            raise DataError(f"{path} has the splits {', '.join(splits)}; name one, such as {path / splits[0]}")
        path = path / splits[0]
    state = path / "state.json"
    if state.is_file():  # the order of the rows
        return [path / entry["filename"] for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    return files_of(path, "*.parquet", "*.arrow")


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
    """The blocks of a file, of which the last one says that it is (the end marker comes after it)."""
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
    if truth not in ("ground_truth", "reward_model"):
        table = table.append_column("ground_truth", table[truth])
    texts = table[completion].combine_chunks()
    if pa.types.is_list(texts.type) or pa.types.is_large_list(texts.type):
        parents = pc.list_parent_indices(texts)
        table = table.drop_columns([completion]).take(parents).append_column("completion", pc.list_flatten(texts))
        block.numbers = [block.numbers[place] for place in parents.to_pylist()]
    elif completion != "completion":
        table = table.rename_columns(
            ["completion" if name == completion else name for name in names] + table.column_names[len(names) :]
        )
    block.table = table
