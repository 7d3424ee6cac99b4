"""What GitHub and pre-commit read is valid, and agrees with the rest of the repository."""

import re
import runpy
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
    permissions = re.findall(r"permissions: (.*)", text)  # those of a job replace all of its workflow
    assert [named for named in permissions if "contents: read" not in named] == []
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


@pytest.mark.parametrize(
    ("versions", "tag", "message"),
    [
        (("0.2.10", "0.2.10"), "v0.2.10", None),
        (("0.2.10", "0.2.10"), "v0.2.1", "v0.2.1 is not v0.2.10, the version of the distributions"),
        (("0.2.10", "0.2.1"), "v0.2.1", "the distributions have several versions: 0.2.1, 0.2.10"),
        (("0.2.1", "0.2.1"), "v0.2.1", "CHANGELOG.md has no entry '## 0.2.1'; rename 'Unreleased'"),
        (("0.2.0", "0.2.0"), "v0.2.0", "CHANGELOG.md has no entry '## 0.2.0'; rename 'Unreleased'"),
    ],
)
def test_a_tag_is_published_if_packages_and_changelog_agree(
    versions: tuple[str, str], tag: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(ROOT / ".ci/release.py"))
    monkeypatch.setitem(script["main"].__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(script["main"].__globals__, "FOLDERS", [tmp_path, tmp_path / "trainer"])
    monkeypatch.setattr("sys.argv", ["release.py", "check", tag])
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n\n## 0.2.10 (2026-12-01)\n\n## 0.2.0-rc1\n")
    (tmp_path / "trainer").mkdir()
    for folder, version in zip((".", "trainer"), versions, strict=True):
        (tmp_path / folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    if message is None:
        script["main"]()
    else:
        with pytest.raises(SystemExit) as exit:
            script["main"]()
        assert exit.value.code == message
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert workflow.index('release.py check "$GITHUB_REF_NAME"') < workflow.index("release.py build")


def test_promises_of_the_security_policy_name_tests_that_there_are() -> None:
    named = re.findall(r"`(tests/[^:`]+)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 10
    assert [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()] == []
