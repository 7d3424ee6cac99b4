"""Tasks in packages that are not installed: every form of path finds them, and other paths are reported."""

import pickle
import sys
from pathlib import Path

import pytest

from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.adapters.verl import compute_score
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TaskNotFoundError, VersionMismatchError
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.local_packages import is_path
from tinyzero_sdk.testing.cases import cases_path

PROJECT = '[project.entry-points."tinyzero.tasks"]\ntz-loose = "tz_loose"\n'


@pytest.fixture
def loose_project(tmp_path, task_source):
    """A project with a package whose scorer is in a module of its own, imported by the package's name."""
    package = tmp_path / "project/tz_loose"
    package.mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text(task_source(score="from tz_loose.reward import score"))
    (package / "reward.py").write_text(
        "from tinyzero_sdk import hookimpl\n@hookimpl\n"
        "def score(answer, ground_truth): return float(answer == str(ground_truth))\n"
    )
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.partition(".")[0] == "tz_loose"]:
        del sys.modules[name]


def test_every_form_of_path_finds_a_package(loose_project, monkeypatch):
    monkeypatch.chdir(loose_project.parent)
    forms = ["./project", "project/", "./project/tz_loose", "project/tz_loose/__init__.py", loose_project]
    tasks = [load_task(form) for form in [*forms, Path("project"), str(loose_project)]]
    source = str(loose_project / "tz_loose/__init__.py")
    assert {(task.name, task.source, task.version) for task in tasks} == {("tz-loose", source, tasks[0].version)}
    assert tasks[0].score_completion("<answer>3</answer>", 3).correct
    assert cases_path(tasks[0]) == loose_project / "tz_loose/cases.jsonl"
    monkeypatch.chdir(loose_project / "tz_loose")
    assert load_task(".").source == source
    assert not list(loose_project.rglob("__pycache__"))
    (loose_project / "pyproject.toml").unlink()
    assert load_task(".").name == "tz_loose"


def test_a_folder_does_not_answer_for_a_name(loose_project, monkeypatch):
    monkeypatch.chdir(loose_project.parent)
    with pytest.raises(TaskNotFoundError, match=r"'project' is installed.*write \./project$"):
        load_task("project")


def test_a_package_pickles_and_a_change_in_any_file_is_another_version(loose_project):
    first = load_task(loose_project)
    sent = pickle.dumps(first)
    assert pickle.loads(sent).version == first.version
    reward = loose_project / "tz_loose/reward.py"
    reward.write_text(reward.read_text().replace("==", "!="))
    with pytest.raises(VersionMismatchError):
        pickle.loads(sent)
    changed = load_task(loose_project)
    assert (first.score("3", 3).value, changed.score("3", 3).value) == (1.0, 0.0)


@pytest.mark.slow
def test_a_package_scores_in_worker_processes(loose_project):
    with ScoringPool(load_task(loose_project), workers=1) as pool:
        scores = pool.score([Completion("<answer>3</answer>"), Completion("<answer>4</answer>")], [3, 3])
    assert [score.reason for score in scores] == ["ok", "wrong"]


def test_a_package_in_a_package_and_in_src(loose_project):
    (loose_project / "src").mkdir()
    (loose_project / "tz_loose").rename(loose_project / "src/tz_loose")
    assert load_task(loose_project).name == "tz-loose"
    inner = loose_project / "src/tz_loose/inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("from tz_loose import *\nfrom .. import score\n")
    task = load_task(inner)
    assert (task.name, task.score("3", 3).value) == ("inner", 1.0)


def test_a_package_that_fails_leaves_nothing_and_names_its_folder(loose_project):
    init = loose_project / "tz_loose/__init__.py"
    init.write_text(init.read_text() + "1 / 0\n")
    with pytest.raises(BrokenTaskError, match=r"ZeroDivisionError.*fix the package") as caught:
        load_task(loose_project)
    assert str(init.parent) in str(caught.value)
    assert not {"tz_loose", "tz_loose.reward"} & set(sys.modules)


def test_two_packages_of_one_name_are_distinguished(loose_project, tmp_path, task_source):
    load_task(loose_project)
    (tmp_path / "other/tz_loose").mkdir(parents=True)
    (tmp_path / "other/tz_loose/__init__.py").write_text(task_source())
    with pytest.raises(BrokenTaskError, match=r"'tz_loose' of a module that is already imported, from .*project"):
        load_task(tmp_path / "other/tz_loose")


@pytest.mark.parametrize(
    ("project", "message"),
    [
        ("", "expected an __init__.py, or a pyproject.toml with an entry point"),
        ("[[[", "expected an __init__.py"),
        ("project = 3", "expected an __init__.py"),
        (PROJECT, "has no module tz_loose; pip install -e .*, and then name the task tz-loose"),
        (PROJECT + 'second = "tz_second"\n', "has the tasks tz-loose, second; pip install -e "),
    ],
)
def test_a_folder_without_a_task_says_what_to_do(tmp_path, project, message):
    (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(TaskNotFoundError, match=message):
        load_task(tmp_path)


def test_a_path_to_no_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").touch()
    for source in ("./nothing", "./text"):
        with pytest.raises(TaskNotFoundError, match=f"no task at {source}: expected a folder, or a file"):
            load_task(source)


@pytest.mark.parametrize("source", ["./data", "../data", "data/", ".", "..", "/data", "data.py"])
def test_a_data_file_may_not_choose_a_path(source, write_task):
    assert compute_score(source, "<answer>1</answer>", 1, task=write_task()) == 1.0
    with pytest.raises(SettingsError, match="which a data file may not choose"):
        compute_score(source, "<answer>3</answer>", 3)
    assert not is_path("data/name")  # a task of a family
