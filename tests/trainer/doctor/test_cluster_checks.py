"""What the doctor says of Rays and nodes that are made up; two real nodes are in test_ray.py."""

import dataclasses
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.doctor.clusters import (
    ADDRESS,
    INSIDE,
    NODE,
    OTHER,
    TOKEN,
    VERSIONS,
    bad,
    inside,
    of_gpus,
    of_two,
    only,
    with_ray,
)
from tests.trainer.doctor.machines import facts_of, seen
from tinyzero_sdk.cli import main
from tinyzero_trainer.cli import doctor as command
from tinyzero_trainer.doctor import cluster_probe, node_probe, probe
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.cluster_probe import look_at_ray, marker, ray_of, trouble_of
from tinyzero_trainer.doctor.facts import Facts, Package, Requirements
from tinyzero_trainer.doctor.ray_facts import Inside, Node, Ray, Token, Trouble
from tinyzero_trainer.executors.ray.cluster import in_one_line
from tinyzero_trainer.models.files import Model


def test_nothing_is_said_without_ray_and_nothing_is_wrong_with_two_nodes_that_are_alike() -> None:
    assert not {"ray", "node", "layout"} & {finding.check for finding in examine(facts_of(), Requirements())}
    found = {finding.check: finding for finding in examine(with_ray(NODE, OTHER), Requirements(address=ADDRESS))}
    assert bad(with_ray(NODE, OTHER)) == []
    assert found["ray"].what == "Ray 2.60.0 at 10.0.0.1:6379: 2 nodes"
    assert found["2 nodes"].what == (
        "10.0.0.1 and 10.0.0.2, each: 8 of 8 GPUs free, 30 of 32 CPUs, NVIDIA H200, object store 9.0 GiB, "
        "/dev/shm 16.0 GiB"
    )
    assert found["run directory"].what == "all nodes see /data/runs, and may write it"
    assert "Python, Ray, torch and TinyZero are the same" in found["versions"].what
    one = dataclasses.replace(NODE, gpus=0, gpus_free=0, inside=None)
    assert seen(with_ray(one), "node").what == "10.0.0.1 (the head), no GPU, 30 of 32 CPUs, object store 9.0 GiB"


# ---- Ray -------------------------------------------------------------------------------------------------------------

REFUSED = (
    "ConnectionError: Failed to connect to Ray cluster at 10.0.0.1:6379\nRuntimeError: Failed to connect to GCS. Last "
    "connection error: Traceback\nRpcError: InvalidAuthToken: Authentication token is missing or incorrect"
)
NO_TOKEN = (
    "AuthenticationError: Token authentication is enabled but no authentication token was found. Ensure that the token "
    "for the cluster is available in a local file (e.g., ~/.ray/auth_token or via RAY_AUTH_TOKEN_PATH)"
)
UNLIKE = (
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.55.0\n    Python: 3.12.3\nThis process "
    "on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
)


@pytest.mark.parametrize(
    ("error", "trouble", "said"),
    [
        (REFUSED, "token", "Failed to connect to Ray cluster at 10.0.0.1:6379"),
        (NO_TOKEN, "no token", "Token authentication is enabled but no authentication token was found"),
        (UNLIKE, "versions", "Ray 2.55.0, Python 3.12.3 there, Ray 2.60.0, Python 3.11.2 here"),
        ("ConnectionError: Could not find any running Ray instance. Please specify", "nobody", None),
        ("Exception: This node has an IP address of 10.9.9.9, and Ray expects this IP address", "outside", None),
        ("it takes longer than 75 s", "time", "it takes longer than 75 s"),
        ("ValueError: Invalid address format: x", "form", None),
        ("RuntimeError: something new\nand more", "other", "something new"),
    ],
)
def test_what_ray_says_when_it_cannot_be_reached(error: str, trouble: Trouble, said: str | None) -> None:
    assert trouble_of(error) == trouble
    found = ray_of({"connect_error": error}, ADDRESS, "")
    assert (found.address, found.trouble) == (ADDRESS, trouble)
    assert said is None or found.error == said


@pytest.mark.parametrize(
    ("trouble", "error", "what", "typed"),
    [
        ("missing", "", "--address needs Ray", "pip install 'tinyzero-trainer[ray]'"),
        ("nobody", "Connection refused", f"no Ray at {ADDRESS} (Connection refused)", "ray start --head --port=6379"),
        ("versions", in_one_line(UNLIKE), "Ray 2.55.0, Python 3.12.3 there", "pip install 'ray==2.55.0'"),
        ("outside", "", "this machine is no node of", f"ray start --address={ADDRESS}"),
        ("time", "it takes longer", "gives no answer", f"ray status --address={ADDRESS}"),
        ("scheme", "", "client or dashboard", "tinyzero doctor --address HOST:6379"),
        ("form", "", "no address", "tinyzero doctor --address HOST:6379"),
        ("other", "something new", "something new", f"ray status --address={ADDRESS}"),
    ],
)
def test_each_reason_has_its_words(trouble: Trouble, error: str, what: str, typed: str) -> None:
    finding = only(facts_of(ray=Ray(ADDRESS, trouble, error), token=TOKEN))
    assert (finding.check, finding.level) == ("ray", "error")
    assert what in finding.what
    assert finding.commands[0] == typed


def test_the_same_ray_in_another_python_asks_for_no_other_ray() -> None:
    same = in_one_line(UNLIKE.replace("2.55.0", "2.60.0"))
    assert only(facts_of(ray=Ray(ADDRESS, "versions", same))).commands == ()


@pytest.mark.parametrize(
    ("trouble", "token", "what", "typed"),
    [
        ("token", Token(), "asks for a token", ("export RAY_AUTH_MODE=token", "export RAY_AUTH_TOKEN=SECRET")),
        ("token", Token("", "RAY_AUTH_TOKEN"), "asks for a token", ("export RAY_AUTH_MODE=token",)),
        ("token", Token("token", "RAY_AUTH_TOKEN_PATH"), "does not take the token of RAY_AUTH_TOKEN_PATH", None),
        ("no token", Token("token"), "RAY_AUTH_MODE=token, but there is no token", None),
        ("no token", Token("TOKEN", "RAY_AUTH_TOKEN_PATH"), "in the file that RAY_AUTH_TOKEN_PATH names", None),
    ],
)
def test_tokens(trouble: Trouble, token: Token, what: str, typed: tuple[str, ...] | None) -> None:
    finding = only(facts_of(ray=Ray(ADDRESS, trouble, "Failed"), token=token))
    assert what in finding.what
    assert finding.commands == (typed or ("export RAY_AUTH_TOKEN=SECRET", "export RAY_AUTH_TOKEN_PATH=FILE"))


def test_where_a_token_would_be_from_and_that_it_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cluster_probe.token() == Token()
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("s3cret")
    assert cluster_probe.token() == Token("", "~/.ray/auth_token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "s3cret")
    assert cluster_probe.token() == Token("", "RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert cluster_probe.token() == TOKEN


def test_several_nodes_without_a_token_are_open_to_all() -> None:
    facts = dataclasses.replace(with_ray(NODE, OTHER), token=Token())
    assert "run code on all of them" in only(facts).what
    assert bad(dataclasses.replace(with_ray(NODE), token=Token())) == []
    of_home = dataclasses.replace(facts, token=Token("", "~/.ray/auth_token"))
    assert [len(bad(of_home, Requirements(address=address))) for address in (ADDRESS, "auto")] == [1, 0]


def test_ray_address_is_told_of_where_ray_is_installed() -> None:
    ray = (Package("transformers", "5.23.0"), Package("ray", "2.60.0"))
    finding = only(facts_of(packages=ray, ray_address=ADDRESS), Requirements())
    assert (finding.level, finding.commands) == ("note", ("tinyzero doctor --address auto",))
    assert bad(facts_of(ray_address=ADDRESS), Requirements()) == []


# ---- nodes -----------------------------------------------------------------------------------------------------------


def test_dead_and_silent_nodes() -> None:
    dead = Node("10.0.0.3", "three", alive=False, reason="health check failed")
    finding = only(with_ray(NODE, OTHER, dead))
    assert finding.level == "warning"
    assert finding.what == "10.0.0.3 has left: health check failed"
    again = dataclasses.replace(dead, address="10.0.0.2")
    assert bad(with_ray(NODE, OTHER, again)) == []
    silent = dataclasses.replace(OTHER, inside=None, error="no answer within 25 s")
    finding = only(with_ray(NODE, silent))
    assert (finding.level, finding.what) == ("error", "10.0.0.2 takes no task: no answer within 25 s")


def test_shared_memory_and_open_files_of_a_node() -> None:
    finding = only(of_two(shared_memory=64 * 2**20))
    assert finding.level == "error"
    assert finding.what.startswith("64 MiB of shared memory (/dev/shm) on 10.0.0.2, too little for NCCL")
    finding = only(of_two(open_files=1024))
    assert (finding.level, finding.commands) == ("warning", ("ulimit -n 65536",))


def test_gpus_that_ray_does_not_count() -> None:
    finding = only(with_ray(dataclasses.replace(NODE, gpus=4, gpus_free=4)))
    assert (finding.level, finding.commands[-1]) == ("warning", "ray start --head --num-gpus=8")
    few = dataclasses.replace(OTHER, inside=inside(gpus=("NVIDIA H200",)))
    assert only(with_ray(NODE, few)).level == "error"
    assert bad(of_two(gpus=None)) == []


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"packages": VERSIONS | {"torch": "2.11.0"}}, "error", "torch: 2.13.0+cu130 here and on 10.0.0.1; 2.11.0 on"),
        ({"packages": VERSIONS | {"tinyzero-sdk": "0.2"}}, "error", "tinyzero-sdk: 0.1.0 here and on 10.0.0.1; 0.2 on"),
        ({"packages": VERSIONS | {"tinyzero-countdown": "0.2"}}, "warning", "tinyzero-countdown: 0.1.0 here and"),
        ({"packages": VERSIONS | {"my-task": "1"}}, "warning", "my-task: none here and on 10.0.0.1; 1 on 10.0.0.2"),
        ({"python": "3.11.2"}, "error", "python: 3.12.3 here and on 10.0.0.1; 3.11.2 on 10.0.0.2"),
        ({"python": "3.12.9"}, "warning", "python: 3.12.3 here"),
        ({"directory": "missing"}, "error", "/data/runs is not on 10.0.0.2"),
        ({"directory": "other"}, "error", "/data/runs is another one on 10.0.0.2"),
        ({"directory": "unwritable"}, "error", "/data/runs cannot be written on 10.0.0.2"),
        ({"model": False}, "error", "the tiny model is not on 10.0.0.2"),
        ({"packages": VERSIONS | {"vllm": "0.25.1"}}, "none", ""),
    ],
)
def test_what_one_of_two_nodes_has_otherwise(changes: dict[str, Any], level: str, what: str) -> None:
    found = bad(of_two(**changes))
    assert [finding.level for finding in found] == ([level] if what else [])
    assert all(what in finding.what for finding in found)


def test_vllm_is_missed_where_it_would_generate() -> None:
    requirements = Requirements(address=ADDRESS, engine="vllm")
    there = inside(packages=VERSIONS | {"vllm": "0.25.1"})
    both = [dataclasses.replace(node, inside=there) for node in (NODE, OTHER)]
    head = dataclasses.replace(NODE, gpus=0, gpus_free=0, inside=inside(gpus=None))
    packages = (Package("transformers", "5.23.0"), Package("vllm", "0.25.1"))
    for nodes, missed in ((both, ""), ([head, both[1]], ""), ([both[0], OTHER], "not installed on 10.0.0.2")):
        found = [f for f in bad(with_ray(*nodes, packages=packages), requirements) if f.check == "vllm"]
        assert [missed in finding.what for finding in found] == ([True] if missed else [])


def replace_inside(found: Inside) -> Node:
    return dataclasses.replace(OTHER, inside=found)


# ---- looking ---------------------------------------------------------------------------------------------------------


def test_an_address_is_tried_before_ray_is() -> None:
    assert cluster_probe.not_reached("auto") is None
    for address, trouble in {
        "http://10.0.0.1:8265": "scheme",
        "ray://x:1": "scheme",
        "x": "form",
        "x:y": "form",
    }.items():
        assert cluster_probe.not_reached(address) == (trouble, "")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert cluster_probe.not_reached(address) == ("nobody", "Connection refused")
        server.listen()
        assert cluster_probe.not_reached(address) is None


def test_auto_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://user:s3cret@10.0.0.1:8265")
    found = cluster_probe.with_ray(facts_of(), "auto", directory=tmp_path, model="")
    assert (found.ray, found.ray_address) == (Ray("http://10.0.0.1:8265", "scheme"), "http://10.0.0.1:8265")
    assert only(found).commands == ("unset RAY_ADDRESS",)


SAID = {
    "address": ADDRESS,
    "here": dataclasses.asdict(INSIDE),
    "nodes": [dataclasses.asdict(node) for node in (OTHER, NODE)],
}


@pytest.mark.parametrize(
    ("lines", "trouble", "errors"),
    [
        ([SAID], "", ["", ""]),
        ([SAID | {"stage": "inside"}], "", ["its process ended with code 0"] * 2),
        ([{"stage": "connect"}], "other", []),
        ([{"stage": "connect"}, {"connect_error": REFUSED}], "token", []),
    ],
)
def test_what_a_process_of_its_own_says(
    lines: list[Any], trouble: str, errors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = f"print({chr(10).join(map(json.dumps, lines))!r})"
    found = look_at_ray("auto", directory=tmp_path / "run", model="", command=(sys.executable, "-c", code))
    assert (found.trouble, [node.error for node in found.nodes]) == (trouble, errors)
    assert list(tmp_path.iterdir()) == []
    if found.nodes:
        assert [node.address for node in found.nodes] == ["10.0.0.1", "10.0.0.2"]
        assert (found.nodes[0].inside, found.here) == (INSIDE, INSIDE)


@pytest.mark.slow
def test_a_ray_that_never_answers_costs_no_more_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = (sys.executable, "-c", 'import time; print(\'{"stage": "connect"}\', flush=True); time.sleep(60)')
    found = look_at_ray("auto", directory=tmp_path, model="", command=code, timeout=0.3)
    assert (found.trouble, found.error) == ("time", "it takes longer than 0.3 s")


def test_the_marker_is_seen_where_it_is_and_gone_afterwards(tmp_path: Path) -> None:
    with marker(tmp_path / "not/yet") as (path, content):
        assert Path(path).parent == tmp_path
        assert node_probe.directory(path, content) == "shared"
        assert node_probe.directory(path, "another", seconds=0) == "other"
        assert node_probe.directory(str(tmp_path / "no/x"), content) == "missing"
    assert list(tmp_path.iterdir()) == []
    if os.geteuid():
        tmp_path.chmod(0o500)
        with marker(tmp_path) as (path, _):
            assert path == ""


def test_this_machine_as_a_node_would_tell_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    found = node_probe.look(["torch", "of-nobody"], "", "", str(tmp_path))
    read = ray_of({"address": ADDRESS, "here": json.loads(json.dumps(found)), "nodes": []}, ADDRESS, "").here
    assert read is not None
    assert (read.directory, read.model) == ("", True)
    assert "s3cret" not in json.dumps(found)
    assert {"torch", "tinyzero-countdown"} <= read.packages.keys()
    assert "of-nobody" not in read.packages


# ---- the command -----------------------------------------------------------------------------------------------------


def run(facts: Facts, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(probe, "look", lambda *_, **__: facts)
    monkeypatch.setattr(cluster_probe, "look_at_ray", lambda *_, **__: facts.ray)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    return int(ended.value.code or 0)


def test_flags_are_those_of_train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    facts = with_ray(*of_gpus(8, 8), model=Model("the tiny model", True, 820_000))
    asked = ["--address", ADDRESS, "--gpus", "16", "run.task=countdown", "rollout.engine=vllm"]
    run(facts, monkeypatch, "--json", *asked, "rollout.num_engines=2", "vllm.tensor_parallel=4")
    said = json.loads(capsys.readouterr().out)
    [layout] = [finding for finding in said["findings"] if finding["check"] == "layout"]
    assert layout["what"].startswith("8 ranks, 2 engines of 4 GPUs and 1 scorer take 16 GPUs and 11 CPUs")
    assert [node["gpus_free"] for node in said["facts"]["ray"]["nodes"]] == [8, 8]
    assert run(facts, monkeypatch, *asked, "rollout.num_engines=4", "vllm.tensor_parallel=4") == 2
    assert "leave no GPU of ray.gpus=16" in " ".join(capsys.readouterr().err.split())
    assert run(facts, monkeypatch, "--address", ADDRESS, f"ray.address={ADDRESS}") == 2
    assert "given twice" in capsys.readouterr().err


def test_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command.stdout, "_width", 80)
    facts = of_two(packages=VERSIONS | {"torch": "2.11.0"}, directory="missing", shared_memory=2**26)
    assert run(facts, monkeypatch, "--address", ADDRESS, "--gpus", "32") == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\n  pip install 'torch==2.13.0+cu130'\n" in shown
    assert shown.splitlines()[-1] == "4 errors"


def test_the_guide_shows_what_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command.stdout, "_width", 80)
    words = "--gpus 16 rollout.engine=vllm rollout.num_engines=1 vllm.tensor_parallel=4"
    guide = (Path(__file__).parents[3] / "docs/doctor.md").read_text(encoding="utf-8")
    assert f"    $ tinyzero doctor --address auto {words}\n" in guide
    run(with_ray(*of_gpus(8, 4)), monkeypatch, "--address", ADDRESS, *words.split())
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    sample = shown[next(place for place, line in enumerate(shown) if " layout " in line) : -1]
    assert "\n".join(f"    {line}" for line in sample) in guide


def test_this_machine_only_loads_a_model_that_is_trained_elsewhere() -> None:
    seven = Model("seven", True, 7_000_000_000)
    assert seen(facts_of(model=seven), "memory").level == "warning"
    assert seen(facts_of(model=seven), "memory", Requirements(address=ADDRESS)).level == "ok"
