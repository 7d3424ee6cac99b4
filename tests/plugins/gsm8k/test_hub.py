"""The Hub: the download, and the one line that is said where there is neither a copy nor a network."""

from unittest.mock import Mock

import datasets
import huggingface_hub.constants
import pytest

from tests.plugins.gsm8k.rows import TEST, TRAIN, as_dataset
from tinyzero_gsm8k import sources
from tinyzero_sdk import load_task
from tinyzero_sdk.errors import DataError


@pytest.fixture
def download(tmp_path, monkeypatch):
    """The download, which a test may let return or fail, where no copy is cached."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(huggingface_hub, "dataset_info", Mock())
    monkeypatch.setattr(datasets, "load_dataset", loaded := Mock())
    sources._problems.cache_clear()
    yield loaded
    sources._problems.cache_clear()


def test_what_is_reachable_is_downloaded(download, tmp_path):
    datasets.DatasetDict(train=as_dataset(TRAIN), test=as_dataset(TEST)).save_to_disk(tmp_path / "saved")
    download.return_value = datasets.load_from_disk(tmp_path / "saved")
    task = load_task("gsm8k")
    assert task.has_own_splits
    assert len(list(task.generate("train", 99))) == len(TRAIN)
    assert len(list(task.generate("test", 99))) == len(TEST)
    download.assert_called_with("openai/gsm8k", "main")


def test_a_download_that_fails_is_one_line(download):
    download.side_effect = ConnectionError("Couldn't reach it\nreally")
    with pytest.raises(DataError, match=r"reach it really\), and no copy.*task\.path=.*task\.source=synthetic"):
        load_task("gsm8k").generate("train", 1)
