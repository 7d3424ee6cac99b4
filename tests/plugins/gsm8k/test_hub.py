"""The Hub: its two caches, the download, and the one line that is said where there is neither copy nor network."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest

from tests.plugins.gsm8k.rows import TEST, TRAIN, as_dataset, write_datasets_cache, write_hub_cache
from tinyzero_gsm8k import sources
from tinyzero_sdk import load_task
from tinyzero_sdk.data import hub
from tinyzero_sdk.errors import DataError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home of caches, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    sources._problems.cache_clear()
    yield tmp_path
    sources._problems.cache_clear()


@pytest.mark.parametrize("fill", [write_hub_cache, write_datasets_cache])
def test_a_cached_copy_is_used_without_a_request(fill, home):
    fill(home)
    task = load_task("gsm8k")
    assert task.has_own_splits
    assert {item.ground_truth for item in task.generate("train", 99)} == {str(1000 + n) for n in range(len(TRAIN))}
    assert len(list(task.dataset("test", len(TEST)))) == len(TEST)


def test_a_copy_of_one_split_names_what_lacks(home):
    snapshot = write_hub_cache(home)
    (snapshot / "main" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match="has no test problems, its splits are train"):
        load_task("gsm8k").generate("test", 1)


@pytest.fixture
def download(home, monkeypatch):
    """The download, which a test may let return or fail."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "unreachable", lambda endpoint: None)
    monkeypatch.setattr(datasets, "load_dataset", loaded := Mock())
    return loaded


def test_what_is_reachable_is_downloaded(download, tmp_path):
    datasets.DatasetDict(train=as_dataset(TRAIN), test=as_dataset(TEST)).save_to_disk(tmp_path / "saved")
    download.return_value = datasets.load_from_disk(tmp_path / "saved")
    task = load_task("gsm8k")
    assert len(list(task.generate("train", 99))) == len(TRAIN)
    assert len(list(task.generate("test", 99))) == len(TEST)
    download.assert_called_with("openai/gsm8k", "main")


def test_a_download_that_fails_is_one_line(download):
    download.side_effect = ConnectionError("Couldn't reach it\nreally")
    with pytest.raises(DataError, match=r"reach it really\), and no copy.*task\.path=.*task\.source=synthetic"):
        load_task("gsm8k").generate("train", 1)


@pytest.mark.slow
def test_the_command_ends_in_one_line(tmp_path):
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    done = subprocess.run(
        [Path(sys.executable).parent / "tinyzero", "data", "--task", "gsm8k", "--output", tmp_path / "data"],
        env=environment | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "task.path=" in done.stderr
    assert "task.source=synthetic" in done.stderr
