"""A folder of Hugging Face `datasets`: Arrow files of `save_to_disk`, or Parquet files. Reads with pyarrow alone.

Uses the first column present of each of `COMPLETIONS`, `GROUND_TRUTHS` and `PROMPTS`; a list of completions becomes
rows, with the number of their record as key.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.data.folders import TABLES, split_files
from tinyzero_sdk.data.rows import OTHER_NAMES
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.readers.records import numbered

COMPLETIONS = ("completion", *OTHER_NAMES["completion"])
"""Columns that hold a completion, or a list of them."""

GROUND_TRUTHS = ("ground_truth", "reward_model", *OTHER_NAMES["ground_truth"])  # columns that hold the ground truth
PROMPTS = ("prompt", *OTHER_NAMES["prompt"])  # columns that hold the prompt (optional)


def read(path: Path) -> Iterator[Block]:
    """The rows of a split."""
    for _, block in numbered(_files(path), read_blocks):
        _take_columns(path, block)
        yield block


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise DataError(f"{path} is a file; --format hf expects a folder")
    splits = split_files(path, TABLES)
    if len(splits) == 1:
        return next(iter(splits.values()))
    names = ", ".join(sorted(splits))
    raise DataError(f"{path} has the splits {names}; name the folder of one, or put the files of each into its own")


def _take_columns(path: Path, block: Block) -> None:
    table = block.data
    names = table.column_names
    completion, truth, prompt = (
        next((name for name in known if name in names), None) for known in (COMPLETIONS, GROUND_TRUTHS, PROMPTS)
    )
    if completion is None or truth is None:
        raise DataError(
            f"{path} has the columns {', '.join(names)}; expected one of {', '.join(COMPLETIONS)}, "
            f"and one of {', '.join(GROUND_TRUTHS)}"
        )
    kind = table.schema.field(completion).type
    has_lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if has_lists:
        counts = pc.fill_null(pc.list_value_length(table[completion]), 0).to_pylist()
        block.drop({row: "no completion" for row, count in enumerate(counts) if count == 0})
        table = block.data
    found = {"prompt": prompt or "prompt", "ground_truth": "ground_truth" if truth == "reward_model" else truth}
    table = block.mapped({ours: name for ours, name in found.items() if name != ours}, path).data
    if has_lists:
        texts = table[completion].combine_chunks()
        parents = pc.list_parent_indices(texts)
        table = table.drop_columns([completion]).take(parents).append_column("completion", pc.list_flatten(texts))
        block.numbers = [block.numbers[row] for row in parents.to_pylist()]
        if "extra_info" not in names:  # which may have its own key
            keys = pa.array(map(str, block.numbers), pa.string())
            table = table.append_column("extra_info", pa.StructArray.from_arrays([keys], names=["key"]))
    else:
        table = table.rename_columns(["completion" if name == completion else name for name in table.column_names])
    block.data = table
