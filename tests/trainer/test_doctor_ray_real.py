"""The doctor looks at a real Ray of two nodes, which are one machine; made-up ones are in test_doctor_ray.py."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.processes import apart
from tests.trainer.test_doctor_ray import UNLIKE
from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.doctor import node_probe
from tinyzero_trainer.doctor.cluster_probe import look_at_ray
from tinyzero_trainer.doctor.ray_facts import Ray
from tinyzero_trainer.executors.ray.cluster import RayError, room

pytestmark = pytest.mark.slow

ALIKE = ("python", "packages", "code", "shared_memory", "interfaces")
TINYZERO = (sys.executable, "-c", "from tinyzero_sdk.cli import main; main()")


def of_two_nodes(words: list[str], directory: str) -> tuple[str, int, str, str, Ray]:
    """What the doctor says of two nodes, and what it sees when one has gone.

    Returns:
        Ray's address; of the command exit code, standard output and error; the Ray that was seen afterwards.
    """
    from ray.cluster_utils import Cluster

    given: dict[str, Any] = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=given | {"include_dashboard": False})
    try:
        other = cluster.add_node(**given)
        command = [*TINYZERO, "doctor", "--output", directory, "--address", cluster.address, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        cluster.remove_node(other)
        later = look_at_ray(cluster.address, directory=Path(directory), model="")
        return cluster.address, done.returncode, done.stdout, done.stderr, later
    finally:
        cluster.shutdown()


def test_two_nodes_as_they_are(tmp_path: Path) -> None:
    words = ["--json", "--gpus", "4", "run.task=countdown"]
    address, code, out, error, later = apart(of_two_nodes, tmp_path, words, str(tmp_path / "run"))
    said = json.loads(out)
    assert (code, error) == (1, "")
    assert [file.name for file in tmp_path.iterdir()] == ["result"]
    ray = said["facts"]["ray"]
    assert (ray["address"], ray["trouble"], ray["directory"]) == (address, "", str(tmp_path))
    assert [node["head"] for node in ray["nodes"]] == [True, False]
    for node in ray["nodes"]:
        assert (node["alive"], node["error"], node["store"]) == (True, "", 2**28)
        assert [node[name] for name in ("gpus", "gpus_free", "cpus", "cpus_free")] == [2] * 4
        inside, here = node["inside"], ray["here"]
        assert inside["packages"]["torch"] == metadata.version("torch")
        assert [inside[name] for name in ALIKE] == [here[name] for name in ALIKE]
        assert inside["directory"] == "shared"
    levels = {finding["check"]: finding["level"] for finding in said["findings"]}
    assert (levels["2 nodes"], levels["versions"], levels["run directory"]) == ("ok",) * 3
    [layout] = [finding for finding in said["findings"] if finding["check"] == "layout"]
    assert (layout["level"], "4 CPUs are there" in layout["what"]) == ("error", True)  # five actors
    assert (later.trouble, [node.alive for node in later.nodes]) == ("", [True, False])
    assert later.nodes[0].inside is not None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("AuthenticationError", r": no token\b.*; `tinyzero doctor --address 10\.0\.0\.1:6379`.*same RAY_AUTH_TOKEN$"),
        (
            "RuntimeError",
            r": Ray 2\.55\.0, Python 3\.12\.3 there, Ray 2\.60\.0, Python 3\.11\.2 here; `tinyzero doctor",
        ),
    ],
)
def test_a_run_says_in_one_line_why_it_cannot_reach_ray(
    error: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    kinds = {
        "AuthenticationError": (ray.exceptions.AuthenticationError, "no token"),
        "RuntimeError": (RuntimeError, UNLIKE),
    }
    kind, text = kinds[error]

    def fail(*_: Any, **__: Any) -> None:
        raise kind(text)

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(RayError, match=words) as raised, room(RayConfig(address="10.0.0.1:6379"), [{"CPU": 1}]):
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
    assert not {"tinyzero_sdk", "tinyzero_trainer"} & found["code"].keys()
