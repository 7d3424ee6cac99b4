"""The contents of all wheels, and that they work in new environments.

Environments are outside the repository, so that nothing is imported from it.
"""

import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.test_distributions import FOLDERS, ROOT
from tinyzero_trainer.config.recipes import recipe_names

PACKAGES = {name.replace("-", "_"): folder for name, folder in FOLDERS.items()}
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
OUTPUT = {"completion": "<answer>(7 - 3) * 12</answer>", "ground_truth": {"target": 48, "numbers": [3, 7, 12]}}

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    """The output of a command that runs outside the checkout."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == expect, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def new_environment(folder: Path) -> Path:
    """A new virtual environment, without pip, whose installation takes six seconds; returns its folder of programs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / "bin"


def install(programs: Path, wheels: Path, *what: str) -> None:
    """Install into an environment, with this one's uv: pip takes 14 seconds for the SDK."""
    indexes = runpy.run_path(str(ROOT / ".ci/setup.py"))["index_options"]()
    uv = (sys.executable, "-m", "uv", "pip", "install", "-q", "--python", programs / "python", "--find-links", wheels)
    run(*uv, *indexes, *CONSTRAINTS, *what, cwd=wheels)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all wheels and source distributions, as a release has them."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, ROOT / ".ci/release.py", "build", folder, cwd=folder)
    assert len(list(folder.glob("*.whl"))) == len(FOLDERS)
    return folder


@pytest.fixture(scope="module")
def light(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with the SDK and countdown, without the trainer: the README's way to score."""
    programs = new_environment(tmp_path_factory.mktemp("light") / "env")
    install(programs, wheels, "tinyzero-sdk")
    install(programs, wheels, "--no-deps", "tinyzero-countdown")
    return programs


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_its_package_its_licence_and_its_readme(package: str, wheels: Path) -> None:
    [path] = wheels.glob(f"{package}-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = wheel.read(f"{info}/METADATA").decode()
    folder = PACKAGES[package]
    patterns = ("*.py", "cases.jsonl", "templates/*")
    files = [file for pattern in patterns for file in (folder / package).rglob(pattern)]
    sources = {file.relative_to(folder).as_posix() for file in files}
    assert sources <= set(names)
    assert {f"{package}/py.typed", f"{info}/licenses/LICENSE"} <= set(names)
    assert {name.split("/")[0] for name in names} == {package, info}
    assert (folder / "README.md").read_text().strip() in metadata


def test_the_trainer_carries_the_tiny_model_and_the_recipes(wheels: Path) -> None:
    [path] = wheels.glob("tinyzero_trainer-*.whl")
    with zipfile.ZipFile(path) as wheel:
        recipes = {f"tinyzero_trainer/config/recipes/{name}.toml" for name in recipe_names()}
        assert recipes <= set(wheel.namelist())
        model = [entry for entry in wheel.infolist() if entry.filename.startswith("tinyzero_trainer/tiny_model/")]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {Path(entry.filename).name for entry in model}
    assert sum(entry.file_size for entry in model) <= 8_000_000


def test_scoring_works_without_torch(light: Path, tmp_path: Path) -> None:
    listed = run(sys.executable, "-m", "uv", "pip", "list", "--python", light / "python", cwd=tmp_path)
    assert "tinyzero-sdk" in listed
    assert "torch" not in listed
    assert "tinyzero-trainer" not in listed
    (tmp_path / "outputs.jsonl").write_text(json.dumps(OUTPUT))
    run(light / "tinyzero", "score", "outputs.jsonl", "--task", "countdown", "--output", "scored.jsonl", cwd=tmp_path)
    scored = json.loads((tmp_path / "scored.jsonl").read_text())
    assert (scored["score"], scored["correct"], scored["reason"]) == (1.0, True, "ok")


def test_training_without_the_trainer_names_what_to_install_in_one_line(light: Path, tmp_path: Path) -> None:
    output = run(light / "tinyzero", "train", "--task", "countdown", "run.steps=1", cwd=tmp_path, expect=2)
    assert "pip install" in output
    assert "tinyzero-sdk[train]" in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.nightly(reason="downloads and unpacks torch; bounds, contents and the light install are tested before")
def test_installing_a_task_is_enough_to_train(wheels: Path, tmp_path: Path) -> None:
    programs = new_environment(tmp_path / "env")
    install(programs, wheels, "tinyzero-countdown")
    settings = ("run.steps=3", "eval.num_problems=32", "eval.num_problems_during=16", "data.prompts_per_step=8")
    output = run(programs / "tinyzero", "train", "--task", "countdown", "--output", "run", *settings, cwd=tmp_path)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert max(step["step"] for step in steps) == 3
    assert any((tmp_path / "run/checkpoints/step_3").glob("*")), list((tmp_path / "run/checkpoints").iterdir())
    assert "held-out accuracy" in output
