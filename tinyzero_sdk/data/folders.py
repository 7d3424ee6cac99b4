"""Folders of data: which of their files belong to which split, whether `datasets`, the Hub or a user made them.

Reads names alone; the rows are read elsewhere.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tinyzero_sdk.errors import DataError

TABLES = ("*.parquet", "*.arrow")
_SAVED = ("data-*.arrow", "dataset.arrow")  # by `Dataset.save_to_disk`; beside them may lie caches of `map`
_SPLITS = ("train", "test", "validation", "valid", "val", "dev")


def split_files(path: Path, patterns: Sequence[str] = (*TABLES, "*.jsonl")) -> dict[str, list[Path]]:
    """The files of each split, in the order of their rows; all under "" if they are not divided.

    Raises:
        DataError: the folder has no such files.
    """
    if (path / "dataset_dict.json").is_file() and (saved := sorted(path.glob("*/state.json"))):
        return {file.parent.name: files_of(file.parent, *_SAVED) for file in saved}
    if (path / "state.json").is_file():
        return {"": files_of(path, *_SAVED)}
    files = files_of(path, *patterns)
    names = list(dict.fromkeys(map(_split_of, files)))
    if None in names and len(names) <= 2:
        return {"": files}
    return {name or "": [file for file in files if _split_of(file) == name] for name in names}


def files_of(path: Path, *patterns: str) -> list[Path]:
    """A file, or the files of a folder in the order of the numbers in their names.

    Raises:
        DataError: the folder has no such file.
    """
    if not path.is_dir():
        return [path]
    files = {file for pattern in patterns for file in path.glob(pattern)}
    if not files:
        raise DataError(f"the folder {path} has no file like {' or '.join(patterns)}; name the file, or its folder")
    words = {file: re.split(r"([0-9]+)", file.name) for file in files}
    return sorted(files, key=lambda file: [(int(word), "") if word.isdigit() else (-1, word) for word in words[file]])


def _split_of(file: Path) -> str | None:
    """The split in a file's name, as in `train-00000-of-00002.parquet`, `train.jsonl` or `gsm8k-train.arrow`."""
    shard = re.match(r"(.+?)-\d+-of-\d+", file.name)
    words = re.split(r"[^a-z]+", shard[1] if shard else file.stem)
    return next((word for word in (words[0], words[-1]) if word in _SPLITS), shard[1] if shard else None)
