"""Datasets in local folders, read by the `datasets` library, which knows their many forms. Never asks the network."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import DataError

Rows = list[dict[str, Any]]


def read_saved(path: Path) -> Rows:
    """The rows of a dataset without splits that `Dataset.save_to_disk` wrote.

    Raises:
        DataError: it is damaged.
    """
    with reading(f"the dataset in {path}"):
        import datasets

        return datasets.Dataset.load_from_disk(str(path), keep_in_memory=True).to_list()


def read_folder(path: Path) -> dict[str, Rows]:
    """The rows of each split: of a `DatasetDict.save_to_disk` folder, or of one with files named for the splits.

    A copy of the Hub's repository has the files in a folder `main`, beside another configuration.

    Raises:
        DataError: there are no data, or they are damaged.
    """
    with reading(f"the dataset in {path}"), tempfile.TemporaryDirectory() as scratch:
        import datasets

        if (path / "dataset_dict.json").is_file():
            found = datasets.DatasetDict.load_from_disk(str(path), keep_in_memory=True)
        else:
            folder = path / "main" if (path / "main").is_dir() else path
            # With its usual cache it would leave a copy of every file in the user's home.
            found = datasets.load_dataset(str(folder), cache_dir=scratch, keep_in_memory=True)
        return {str(split): part.to_list() for split, part in found.items()}


@contextmanager
def reading(what: str) -> Iterator[None]:
    """No progress bars inside, and every fault a DataError of one line."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except Exception as error:  # the border to a library that raises many kinds, most of several lines
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise DataError(f"cannot read {what} ({reason}); expected one with train and test problems of GSM8K") from error
    finally:
        if shown:
            enable_progress_bars()
