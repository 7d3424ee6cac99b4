"""Why a run cannot reach Ray."""

import builtins
import gc
from typing import NoReturn
from unittest.mock import Mock

import psutil
import pytest

from tests.faults import Faults
from tests.trainer.doctor.test_findings import MISMATCH
from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.executors.ray.cluster import RayError, check_address, placement_group, start


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@pytest.mark.fault(
    "F5",
    "Ray does not start, as one of its servers has died or is slow",
    made="Ray finds no raylet within its time",
    seen="Ray cannot be started: The current node timed out during startup. This could happen",
    kept="everything: of Ray's processes none is left, and `train` has tried it twice",
    code=2,
)
def test_what_was_started_of_a_ray_that_could_not_be_is_ended(
    monkeypatch: pytest.MonkeyPatch, fault_row: Faults
) -> None:
    import ray
    from ray._private.node import Node

    def time_out(node: Node) -> NoReturn:
        """As where its raylet was killed, without the 30 seconds that Ray waits for it."""
        started.update({child: child.name() for child in psutil.Process().children(recursive=True)})
        raise Exception("The current node timed out during startup. This could happen")

    started = dict[psutil.Process, str]()
    ray.shutdown()  # another test of this process may have started it
    before = psutil.Process().children(recursive=True)
    monkeypatch.setattr(Node, "start_ray_processes", time_out)
    with pytest.raises(RayError) as error:
        start(RayConfig(), [{"CPU": 1}])
    fault_row.check(error.value)
    ours = {process: name for process, name in started.items() if process not in before}
    assert "gcs_server" in ours.values()
    psutil.wait_procs(ours, timeout=60)
    assert not any(process.is_running() for process in ours)
    del error
    gc.collect()  # Ray's own records of these processes, which do not know of their end
