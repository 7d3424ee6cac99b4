"""The files in examples/cluster: the options they name exist, and they run as far as one machine without a GPU can."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tinyzero_sdk.settings import flatten, to_mapping
from tinyzero_trainer.config import TrainConfig

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/cluster"
SCRIPTS = sorted([*EXAMPLES.glob("*.sh"), *EXAMPLES.glob("*.sbatch")])
PROSE = [EXAMPLES / "README.md", ROOT / "docs/training/several-gpus.md"]
NAMING = [*SCRIPTS, EXAMPLES / "kuberay-job.yaml", *PROSE]


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
    record, waiting = tmp_path / "started", tmp_path / "waiting"
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, **FAKE_PROGRAMS}.items():
        write_program(tmp_path / "bin" / name, text.replace("mkdir failed", f"mkdir {tmp_path}/failed"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SLURM_"))} | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "VENV": str(tmp_path), "STARTED": str(record),
        "LASTS": "0" if number is None else "1", "SCONTROL_LOG": str(tmp_path / "scontrol.log"), "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "2", "SLURM_GPUS_ON_NODE": "8",
    }  # fmt: skip
    for resume in ("", " --resume"):
        waiting.unlink(missing_ok=True)
        command = ["bash", str(EXAMPLES / "slurm.sbatch"), "--task", "countdown"]
        with subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True) as job:
            try:
                deadline = time.monotonic() + 60
                while number is not None and not waiting.exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                if number is not None:
                    job.send_signal(number)
                assert job.wait(60) == code
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
        lines = record.read_text().splitlines()
        trained = [line for line in lines if line.startswith("train ")]
        assert trained == [f"train --output runs/7 --address 10.0.0.1:20007 --gpus 16 --task countdown{resume}"]
        for node in "01":
            assert any(line.startswith(f"{node}: ray start") for line in lines)
            assert f"{node}: ended" in lines
        record.unlink()
    assert (tmp_path / "scontrol.log").exists() == queued
