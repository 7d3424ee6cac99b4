"""What of Ray itself the doctor and a run rely on; two real nodes are examined in test_ray.py."""

import json
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from tests.trainer.doctor.test_cluster_checks import UNLIKE
from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.doctor import node_probe
from tinyzero_trainer.executors.ray.cluster import RayError, placement_group

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("AuthenticationError", r": no token\b.*; `tinyzero doctor --address 10\.0\.0\.1:6379`.*same RAY_AUTH_TOKEN$"),
        (
            "RuntimeError",
            r": Ray 2\.55\.0, Python 3\.12\.3 there, Ray 2\.60\.0, Python 3\.11\.2 here; `tinyzero doctor",
        ),
        ("ConnectionError", r"ray\.address='10\.0\.0\.1:6379': Failed to connect; .*same RAY_AUTH_TOKEN$"),
    ],
)
def test_a_run_says_in_one_line_why_it_cannot_reach_ray(
    error: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    kinds = {
        "AuthenticationError": (ray.exceptions.AuthenticationError, "no token"),
        "RuntimeError": (RuntimeError, UNLIKE),
        "ConnectionError": (ConnectionError, "Failed to connect\nand more"),
    }
    kind, text = kinds[error]

    def fail(*_: Any, **__: Any) -> None:
        raise kind(text)

    monkeypatch.setattr(ray, "init", fail)
    with (
        pytest.raises(RayError, match=words) as raised,
        placement_group(RayConfig(address="10.0.0.1:6379"), [{"CPU": 1}]),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_what_nodes_are_asked_needs_nothing_of_tinyzero_there() -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(node_probe)
    try:
        sent = ray.cloudpickle.dumps(node_probe.look)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(node_probe)
    code = (
        "import json, sys; from ray import cloudpickle; "
        "sys.modules |= {'tinyzero_sdk': None, 'tinyzero_trainer': None}; "
        "print(json.dumps(cloudpickle.loads(sys.stdin.buffer.read())(['torch'], '', '', '')))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["packages"]["torch"] == metadata.version("torch")
