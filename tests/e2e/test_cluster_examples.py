"""The files in examples/cluster: the options they name exist, and they run as far as one machine without a GPU can."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tinyzero_sdk.settings import flatten, to_mapping
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/cluster"
SCRIPTS = sorted([*EXAMPLES.glob("*.sh"), *EXAMPLES.glob("*.sbatch")])
PROSE = [EXAMPLES / "README.md", ROOT / "docs/training/several-gpus.md"]
NAMING = [*SCRIPTS, EXAMPLES / "kuberay-job.yaml", *PROSE]
SMALL = shlex.split(
    "--task countdown --model ./model parallel.world_size=2 data.prompts_per_step=4 rollout.group_size=4 "
    "rollout.max_completion_tokens=16 eval.num_problems=8 eval.every=0 checkpoint.every=1"
)
SBATCH = ("bash", str(EXAMPLES / "slurm.sbatch"))
WITHIN = 240.0  # seconds for what takes 20 on an idle machine


def named(files: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", files, ids=lambda path: path.name)


def commands(text: str) -> list[str]:
    """The arguments of `tinyzero train`, also those that scripts collect for it."""
    joined = text.replace("\\\n", " ")
    found = re.findall(r"tinyzero train ([^`#\n]*)|words\+?=\((.*)\)|sbatch slurm\.sbatch ([^`#\n]*)", joined)
    return ["".join(groups) for groups in found]


@named(NAMING)
def test_options_and_settings_exist(file: Path) -> None:
    from typer.main import get_command

    from tinyzero_sdk.cli.app import build_app

    train: Any = get_command(build_app()).commands["train"]  # type: ignore[attr-defined]
    options = {name for parameter in train.params for name in parameter.opts}
    keys = {key for key, _ in flatten(to_mapping(TrainConfig()))}
    keys |= {"ray.address", "parallel.world_size"}  # none by default
    text = file.read_text(encoding="utf-8")
    assert file.name == "node.sh" or "--task" in text
    for command in commands(text):
        assert set(re.findall(r"(?<!\S)--[a-z-]+", command)) <= options, command
    groups = {key.partition(".")[0] for key in keys}
    for key in re.findall(r"(?<![\w./-])([a-z_]+\.[a-z_]+)(?==)", text):
        assert key.partition(".")[0] not in groups or key in keys, key


@pytest.mark.slow
@named(SCRIPTS)
def test_options_of_ray_exist(file: Path) -> None:
    from ray.scripts.scripts import start

    options = {name for parameter in start.params for name in parameter.opts}
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    used = " ".join(re.findall(r"ray start (.*)|place=\(([^)]*)\)", text)[0])
    assert "--" in used
    assert set(re.findall(r"(?<!\S)--[a-z-]+", used)) <= options


def test_the_job_for_kuberay_is_complete() -> None:
    script, job = yaml.safe_load_all((EXAMPLES / "kuberay-job.yaml").read_text(encoding="utf-8"))
    assert (script["kind"], job["kind"], job["apiVersion"]) == ("ConfigMap", "RayJob", "ray.io/v1")
    train = script["data"]["train.sh"]
    subprocess.run(["bash", "-n"], input=train, text=True, check=True)
    assert job["spec"]["entrypoint"] == "bash /scripts/train.sh"
    cluster = job["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    pods = [(1, cluster["headGroupSpec"]["template"]["spec"]), (workers["replicas"], workers["template"]["spec"])]
    gpus = 0
    for count, pod in pods:
        [container] = pod["containers"]
        gpus += count * int(container["resources"]["limits"]["nvidia.com/gpu"])
        places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert places.keys() == {volume["name"] for volume in pod["volumes"]}
        assert places["shared-memory"] == "/dev/shm"
        assert f"output={places['data']}/" in train
        scripts = next(volume for volume in pod["volumes"] if volume["name"] == "scripts")
        assert scripts["configMap"]["name"] == script["metadata"]["name"]
        memory = next(volume for volume in pod["volumes"] if volume["name"] == "shared-memory")
        assert memory["emptyDir"]["medium"] == "Memory"
    assert f"--gpus {gpus}" in train
    image = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")
    assert f"ray[default]=={cluster['rayVersion']}'" in image


def test_node_sh_starts_nothing_without_a_token(tmp_path: Path) -> None:
    for name in ("ray", "python"):
        write_program(tmp_path / name, '#!/bin/sh\necho "$0 $RAY_AUTH_MODE $*"\n')
    usual = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_TOKEN")}
    usual["PATH"] = f"{tmp_path}:{usual['PATH']}"
    for tokens, code in (({}, 1), ({"RAY_AUTH_TOKEN": "0" * 64}, 0), ({"RAY_AUTH_TOKEN_PATH": "token"}, 0)):
        command = ["bash", str(EXAMPLES / "node.sh"), "10.0.0.1:6379"]
        done = subprocess.run(command, env=usual | tokens, capture_output=True, text=True, check=False)
        assert done.returncode == code
        expected = f"{tmp_path / 'ray'} token start --address=10.0.0.1:6379 --block\n" if not code else ""
        assert done.stdout == expected
        assert ("export RAY_AUTH_TOKEN=SECRET" in done.stderr) == bool(code)


# ---- real runs, on one machine ---------------------------------------------------------------------------------------

SRUN = """#!/bin/bash
# Both nodes are this machine; tasks start in another directory than the job was submitted from.
cd /
while [ "${1#--}" != "$1" ]; do shift; done
tasks=()
for node in 0 1; do SLURM_NODEID=$node "$@" & tasks+=($!); done
trap 'kill -USR2 "${tasks[@]}"' USR2
for task in "${tasks[@]}"; do while kill -0 "$task" 2>/dev/null; do wait "$task"; done; done
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$SCONTROL_LOG"\n'


@contextmanager
def started(
    command: Sequence[str], environment: dict[str, str], directory: Path, log: Path
) -> Iterator[subprocess.Popen]:
    """A running command, which is killed at the end with its children."""
    with log.open("a") as file:
        process = subprocess.Popen(command, env=environment, cwd=directory, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
        process.wait()


def until(condition: Callable[[], Any], log: Path) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with a model."""
    directory = tmp_path / "place"
    shutil.copytree(BUILT_IN_MODEL, directory / "model")
    return directory


def environment_of(programs: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SLURM_"))}
    return kept | more | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def job_of(programs: Path, number: int, **more: str) -> dict[str, str]:
    """The environment of a Slurm job, with fake srun and scontrol."""
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        write_program(programs / name, text)
    job = {"SLURM_JOB_ID": str(number), "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "2"}
    return environment_of(programs, **job, **more, SCONTROL_LOG=str(programs / "scontrol.log"))


def write_program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


FAKE_PROGRAMS = {
    # Prints an address, or waits for all nodes.
    "python": """#!/bin/bash
[ "$1" = - ] || { echo 10.0.0.1; exit; }
until [ "$(grep -c 'ray start' "$STARTED")" = 2 ]; do /bin/sleep 0.05; done
""",
    # The first start fails.
    "ray": """#!/bin/bash
if mkdir failed 2>/dev/null; then exit 1; fi
sleep 60 & sleeping=$!
trap 'kill $sleeping; echo "$SLURM_NODEID: ended" >> "$STARTED"; exit 0' TERM
echo "$SLURM_NODEID: ray $*" >> "$STARTED"
wait $sleeping
""",
    "tinyzero": """#!/bin/bash
echo "$*" >> "$STARTED"
mkdir -p runs/7 && touch runs/7/config.toml
trap 'echo saved; exit 143' TERM
[ "$LASTS" = 0 ] || { touch waiting; sleep 60 & wait; }
exit 3
""",
    "sleep": "#!/bin/bash\nexec /bin/sleep $(($1 > 5 ? $1 : 0))\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "queued"), [(signal.SIGUSR1, 143, True), (signal.SIGTERM, 143, False), (None, 3, False)]
)
def test_a_slurm_job_ends_as_its_signal_asks(
    number: signal.Signals | None, code: int, queued: bool, tmp_path: Path
) -> None:
    programs, log, record = tmp_path / "programs", tmp_path / "log", tmp_path / "started"
    lasts = "0" if number is None else "1"
    environment = job_of(programs, 7, VENV=str(tmp_path), STARTED=str(record), LASTS=lasts, SLURM_GPUS_ON_NODE="8")
    (tmp_path / "bin").mkdir()
    for name, text in FAKE_PROGRAMS.items():
        write_program(tmp_path / "bin" / name, text.replace("mkdir failed", f"mkdir {tmp_path}/failed"))
    for again in (False, True):
        (tmp_path / "waiting").unlink(missing_ok=True)
        with started([*SBATCH, "--task", "countdown"], environment, tmp_path, log) as job:
            if number is not None:
                until((tmp_path / "waiting").exists, log)
                job.send_signal(number)
            assert job.wait(60) == code, log.read_text()
        lines, resume = record.read_text().splitlines(), " --resume" if again else ""
        trained = [line for line in lines if line.startswith("train ")]
        assert trained == [f"train --output runs/7 --address 10.0.0.1:20007 --gpus 16 --task countdown{resume}"]
        for node in "01":
            assert any(line.startswith(f"{node}: ray start") for line in lines)
            assert f"{node}: ended" in lines
        record.unlink()
    assert (programs / "scontrol.log").exists() == queued


REAL = pytest.mark.nightly(reason="starts Ray; the slow tests run the scripts with fake programs")


@REAL
def test_a_slurm_job_saves_at_its_time_limit_is_requeued_and_resumes(place: Path, tmp_path: Path) -> None:
    programs, log, job = tmp_path / "programs", tmp_path / "log", str(os.getpid())
    environment = job_of(programs, int(job), VENV=str(Path(sys.executable).parents[1]))
    command = [*SBATCH, *SMALL, "run.steps=12"]
    run = place / "runs" / job
    with started(command, environment, place, log) as process:
        until(lambda: (run / "checkpoints/step_2").exists() or process.poll() is not None, log)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(WITHIN) == 143, log.read_text()
    assert (programs / "scontrol.log").read_text() == f"requeue {job}\n"
    [last] = re.findall(r"stopped by SIGTERM after step (\d+), which is saved", log.read_text())
    assert steps_of(run)[-1] == int(last) < 12
    assert not Path(f"/tmp/ray-{job}").exists()
    with started(command, environment, place, log) as process:
        assert process.wait(WITHIN) == 0, log.read_text()
    assert f"resuming from step {last}" in log.read_text()
    assert steps_of(run) == list(range(13))
    assert (programs / "scontrol.log").read_text() == f"requeue {job}\n"
    until(lambda: not any(f"/tmp/ray-{job}/" in line for line in command_lines()), log)


def command_lines() -> list[str]:
    return [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]


@REAL
def test_training_on_two_nodes_started_by_node_sh(place: Path, tmp_path: Path) -> None:
    log, port = tmp_path / "log", str(20_000 + (os.getpid() + 5_000) % 10_000)
    environment = environment_of(Path(sys.executable).parent, RAY_AUTH_TOKEN="0" * 64, PORT=port)
    short = f"/tmp/ray-own-{port}"
    head = ["bash", str(EXAMPLES / "node.sh"), "head", "--num-cpus=2", f"--temp-dir={short}"]
    try:
        with started(head, environment, tmp_path, log) as first:
            until(lambda: "Ray runtime started" in log.read_text() or first.poll() is not None, log)
            [address] = re.findall(r"the address of this Ray: (\S+)", log.read_text())
            other_log = tmp_path / "other log"
            other = ["bash", str(EXAMPLES / "node.sh"), address, "--num-cpus=2"]
            with started(other, environment, tmp_path, other_log) as second:
                until(lambda: "Ray runtime started" in other_log.read_text() or second.poll() is not None, other_log)
                train = ["tinyzero", "train", *SMALL, "--address", address, "--gpus", "0", "run.steps=1"]
                words = [*train, "--output", "runs/own"]
                with started(words, environment | {"RAY_AUTH_MODE": "token"}, place, log) as process:
                    assert process.wait(WITHIN) == 0, log.read_text() + other_log.read_text()
                for node in (second, first):
                    node.send_signal(signal.SIGINT)
                    node.wait(WITHIN)
        assert steps_of(place / "runs/own") == [0, 1]
        until(lambda: not any(f"{short}/" in line for line in command_lines()), log)
    finally:
        shutil.rmtree(short, ignore_errors=True)
