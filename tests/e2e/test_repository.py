"""What GitHub and pre-commit read is valid, and agrees with the rest of the repository."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import environments
from tests.e2e.test_distributions import ROOT, pins, project

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", WORKFLOWS), ("github-issue-forms", FORMS)], ids=["workflows", "forms"]
)
def test_github_accepts(schema: str, files: list[Path]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    variables = environments.variables(environments.installed("check-jsonschema"))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (files != [], done.returncode) == (True, 0), done.stdout


def test_workflows_run_what_exists_on_every_supported_python() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    targets = re.findall(r"run: make (\w+)", text)
    assert {"lint", "test", "slow"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)
    assert all((ROOT / script).is_file() for script in re.findall(r"run: python (\S+)", text))
    [matrix] = re.findall(r"matrix: \{python: \[(.*?)\]\}", text)
    supported = {classifier.split(" :: ")[-1] for classifier in project("tinyzero-sdk")["classifiers"]}  # type: ignore[attr-defined]
    assert {version for version in supported if version.startswith("3.")} <= set(re.findall(r"[\d.]+", matrix))


def test_pre_commit_runs_the_tested_ruff() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"rev: v(\S+)", text) == [pins()["ruff"]]


def test_a_release_needs_a_clean_checkout(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci/release.py"
    script.write_text((ROOT / ".ci/release.py").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([sys.executable, script, "tag"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "release from a clean checkout of main")
    assert not (tmp_path / "dist").exists()
