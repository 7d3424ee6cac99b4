"""The Hub: its two caches, the download, and the one line that is said where there is neither copy nor network."""

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest

from tests.plugins.gsm8k.rows import TEST, TRAIN, as_dataset, write_datasets_cache, write_hub_cache
from tinyzero_gsm8k.data import hub, sources
from tinyzero_sdk import load_task
from tinyzero_sdk.errors import DataError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home of caches, and no network."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    sources._published.cache_clear()
    yield tmp_path
    sources._published.cache_clear()


@pytest.mark.parametrize("fill", [write_hub_cache, write_datasets_cache])
def test_a_cached_copy_is_used_without_a_request(fill, home):
    fill(home)
    task = load_task("gsm8k")
    assert task.has_own_splits
    assert {item.ground_truth for item in task.generate("train", 99)} == {str(1000 + n) for n in range(len(TRAIN))}
    assert len(list(task.dataset("test", len(TEST)))) == len(TEST)


def test_half_a_copy_is_none(home):
    snapshot = write_hub_cache(home)
    (snapshot / "main" / "test-00000-of-00001.parquet").unlink()
    (write_datasets_cache(home) / "gsm8k-train.arrow").unlink()
    with pytest.raises(DataError, match=r"HF_HUB_OFFLINE is set\), and no copy of it is cached here"):
        hub.published()


@pytest.fixture
def download(home, monkeypatch):
    """The download, which a test may let return or fail."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "unreachable", lambda endpoint: None)
    monkeypatch.setattr(datasets, "load_dataset", loaded := Mock())
    return loaded


def test_what_is_reachable_is_downloaded(download):
    download.return_value = datasets.DatasetDict(train=as_dataset(TRAIN), test=as_dataset(TEST))
    task = load_task("gsm8k")
    assert len(list(task.generate("train", 99))) == len(TRAIN)
    assert len(list(task.generate("test", 99))) == len(TEST)
    download.assert_called_once_with("openai/gsm8k", "main")  # for both splits


def test_a_download_that_fails_is_one_line(download):
    download.side_effect = ConnectionError("Couldn't reach it\nreally")
    with pytest.raises(DataError, match=r"Couldn't reach it\), and no copy.*task\.path=.*task\.source=synthetic"):
        hub.published()


class Refuses(BaseHTTPRequestHandler):
    """A Hub that wants a token."""

    def do_HEAD(self):
        self.send_error(401)

    def log_message(self, *arguments):
        pass


def test_a_server_that_answers_is_reachable_and_a_closed_port_is_not(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert hub.unreachable(f"http://127.0.0.1:{server.server_port}") is None
    assert "refused" in (hub.unreachable(f"http://127.0.0.1:{server.server_port}") or "")
    assert hub.unreachable("no address") is not None


def test_a_server_that_never_answers_takes_no_longer_than_the_patience(monkeypatch):
    patience = hub._PATIENCE
    monkeypatch.setattr(hub, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        begin = time.monotonic()
        assert "timed out" in (hub.unreachable(f"http://127.0.0.1:{deaf.getsockname()[1]}") or "")
        assert time.monotonic() - begin < patience


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_the_command_ends_in_one_line(variables, tmp_path):
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    done = subprocess.run(
        [Path(sys.executable).parent / "tinyzero", "data", "--task", "gsm8k", "--output", tmp_path / "data"],
        env=environment | {"HF_HOME": str(tmp_path / "home")} | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "task.path=" in done.stderr
    assert "task.source=synthetic" in done.stderr
