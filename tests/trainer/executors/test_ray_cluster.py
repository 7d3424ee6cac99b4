"""Why a run cannot reach Ray."""

import builtins
from unittest.mock import Mock

import pytest

from tests.trainer.doctor.test_cluster_checks import MISMATCH
from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.executors.ray.cluster import RayError, check_address, placement_group


@pytest.mark.parametrize("address", ["http://10.0.0.1:8265", "ray://x:1", "x", "x:y", "127.0.0.1:1"])
def test_an_address_at_which_no_ray_can_be(address: str) -> None:
    with pytest.raises(RayError, match="`ray start"):
        check_address(address)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "text", "words"),
    [
        ("AuthenticationError", "no token", r": no token\b.*; `tinyzero doctor --address 10\.0\.0\.1:6379`"),
        ("RuntimeError", MISMATCH, r": Ray 2\.55\.0, Python 3\.12\.3 there, Ray 2\.60\.0, Python 3\.11\.2 here; `tin"),
        ("Exception", "The current node timed out", r"6379': The current node timed out; "),
        ("ConnectionError", "Failed to connect\nand more", r"ray\.address='10\.0\.0\.1:6379': Failed to connect; "),
    ],
)
def test_the_reason_is_one_line(error: str, text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    kind = getattr(builtins, error, None) or getattr(ray.exceptions, error)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test of this process may have started it
    monkeypatch.setattr(ray, "init", Mock(side_effect=kind(text)))
    monkeypatch.setattr("tinyzero_trainer.executors.ray.cluster.check_address", lambda _: None)
    with (
        pytest.raises(RayError, match=f"{words}.*same RAY_AUTH_TOKEN$") as raised,
        placement_group(RayConfig(address="10.0.0.1:6379"), [{"CPU": 1}]),
    ):
        pass
    assert "\n" not in str(raised.value)
