"""`tinyzero new`: which names it accepts, and that the package it writes is complete, clean and works."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tinyzero_sdk import load_task
from tinyzero_sdk.cli.new import next_commands
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.scaffold.names import check_name, module_name
from tinyzero_sdk.scaffold.package import render_example, render_file, sdk_bound, write_package
from tinyzero_sdk.testing.cases import read_cases

ROOT = Path(__file__).parents[3]
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,9}){0,3}", fullmatch=True)


def is_name(name):
    try:
        check_name(name)
    except SettingsError:
        return False
    return True


@pytest.mark.slow
@settings(max_examples=50)
@given(st.one_of(NAMES, st.text(max_size=12), st.text("ab-_.9A ", max_size=8)))
@example("a" * 33)
def test_an_accepted_name_is_a_distribution_a_module_and_a_key_of_toml(name):
    if is_name(name):
        assert canonicalize_name(name, validate=True) == name
        assert module_name(name).isidentifier()
        assert tomllib.loads(f"{name} = 1") == {name: 1}
        assert len(name) <= 32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "lower-case letters"), ("My_Task", "such as my-task"), ("3-coins", "such as coins"),
        ("größe", "lower-case letters"), ("class", "a keyword of Python"),
        ("random", "a module of Python's standard library"), ("numpy", "an installed module, numpy"),
        ("tinyzero-sdk", "an installed module, tinyzero_sdk"), ("tests", "a file of the package's own"),
    ],
)  # fmt: skip
def test_names_that_are_refused(name, message):
    with pytest.raises(SettingsError) as caught:
        check_name(name)
    assert message in str(caught.value)
    assert repr(name) in str(caught.value)


def test_a_name_that_a_task_family_or_distribution_has_is_refused(install, task_source):
    install("tz-words", version="2.1", modules={"words_module": task_source()}, tasks={"words": "words_module"})
    family = "from tinyzero_sdk import hookimpl\n@hookimpl\ndef task_names(): return ['fam']"
    install("tz-family", modules={"family_module": family}, plugins={"family": "family_module"})
    for name, message in {
        "words": "a task already, of tz-words 2.1",
        "fam": "a task already",
        "tz-words": "an installed distribution",
    }.items():
        with pytest.raises(SettingsError, match=message):
            check_name(name)


@pytest.mark.slow
@settings(max_examples=30)
@given(NAMES.filter(is_name))
def test_every_file_is_whole(name):
    contents = render_example(name)
    module = module_name(name)
    for path, text in contents.items():
        assert "$" not in text, path
        assert not text or text.endswith("\n")
        assert not text.endswith("\n\n")
        if path.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(contents["pyproject.toml"])
    assert project["project"]["name"] == name
    assert project["project"]["entry-points"]["tinyzero.tasks"] == {name: module}
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [module]
    assert f"{module}/__init__.py" in contents


def test_the_package_needs_this_sdk_within_the_bounds_of_our_own_tasks():
    project = tomllib.loads(render_example("my-task")["pyproject.toml"])["project"]
    [needed] = map(Requirement, project["dependencies"])
    countdown = tomllib.loads((ROOT / "plugins/countdown/pyproject.toml").read_text())["project"]["dependencies"]
    [expected] = [each for each in map(Requirement, countdown) if each.name == "tinyzero-sdk"]
    assert (needed.name, needed.specifier) == (expected.name, expected.specifier)
    assert needed.specifier.contains(version("tinyzero-sdk"))
    extras = [Requirement(line) for lines in project["optional-dependencies"].values() for line in lines]
    ours = [each for each in extras if each.name == "tinyzero-sdk"]
    assert {each.specifier for each in ours} == {needed.specifier}
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for each in ours for extra in each.extras} == {"train", "testing"} <= offered.keys()
    assert sdk_bound("1.4.2") == ">=1.4.2,<1.5"


def test_nothing_is_overwritten_and_an_unwritable_place_is_reported(tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for taken in (tmp_path / "directory", tmp_path / "file", tmp_path / "link"):
        with pytest.raises(TinyZeroError, match="already exists"):
            write_package("my-task", taken)
    assert not list((tmp_path / "directory").iterdir())
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(TinyZeroError, match="cannot write"):
        write_package("my-task", tmp_path / "file" / "below")


@pytest.mark.slow
def test_ruff_finds_nothing_whatever_the_name(tmp_path):
    for name in ("a", "my-task", "zebras-and-" + "z" * 21):  # before and after `tinyzero_sdk` in the alphabet
        write_package(name, tmp_path / name)
        ruff = [sys.executable, "-m", "ruff"]
        ours = ["--config", str(ROOT / "pyproject.toml")]
        for command in (["check", *ours], ["format", "--diff", *ours], ["check", "--isolated"], ["format", "--diff"]):
            done = subprocess.run(
                [*ruff, *command, "--no-cache", "."], cwd=tmp_path / name, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{name}: {command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.nightly(reason="mypy reads the SDK from cold; the templates change rarely")
def test_mypy_finds_nothing_however_strict(tmp_path):
    write_package("my-task", tmp_path / "my-task")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "my_task", "tests"]
    done = subprocess.run(command, cwd=tmp_path / "my-task", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_example_works_by_its_path_before_it_is_installed(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("new", "tz-fresh")
    task = load_task("./tz-fresh")
    assert task.name == "tz-fresh"
    items = list(task.dataset("train", 50))
    assert all(task.score_completion(task.solve(item), item.ground_truth).correct for item in items)
    cases = read_cases(tmp_path / "tz-fresh/tz_fresh/cases.jsonl")
    assert {case.correct for case in cases} == {True, False}
    for case in cases:
        assert task.score_completion(case.completion, case.ground_truth).correct == case.correct, case.note
    shown = [task.score_completion(task.demonstrate(item, seed=n), item.ground_truth) for n, item in enumerate(items)]
    assert 0.4 < sum(score.correct for score in shown) / len(shown) < 1  # demonstrations slip now and then


def test_a_task_file_and_its_cases_become_a_package(write_task, tmp_path):
    described = '@hookimpl\ndef info(): return TaskInfo("Say a \\"number\\" \\\\ it.")'
    source = Path(write_task(extra=described))
    source.with_suffix(".cases.jsonl").write_text('{"completion": "", "ground_truth": 1, "correct": false}\n')
    contents = render_file("say-it", source)
    assert contents["say_it/__init__.py"] == source.read_text()
    assert contents["say_it/cases.jsonl"] == source.with_suffix(".cases.jsonl").read_text()
    assert 'Say a "number" \\ it.' in tomllib.loads(contents["pyproject.toml"])["project"]["description"]
    assert not any("euclid" in path or "divisor" in text for path, text in contents.items())
    assert all("$" not in text for path, text in contents.items() if path != "say_it/__init__.py")
    assert load_task(source).info.description


def test_a_file_that_is_no_task_or_in_a_package_is_refused(write_task, tmp_path):
    (tmp_path / "empty.py").touch()
    (tmp_path / "tz_words.py").touch()
    write_task("several", extra="import tz_words")
    write_package("tz-given", tmp_path / "given")
    for file, problem in {
        "empty.py": "lacks the hooks",
        "none.py": "cannot read",
        "several.py": "several.py imports tz_words from its folder",
        "given": "already in a package; copy its folder",
        "given/tz_given/__init__.py": "already in a package; copy its folder",
    }.items():
        with pytest.raises(TinyZeroError, match=problem):
            write_package("my-task", tmp_path / "out", task_file=tmp_path / file)
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote_and_what_to_type_next(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("new", "my-task")
    assert (code, err) == (0, "")
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    lines = out.splitlines()
    assert {line.strip() for line in lines[1 : 1 + len(written)]} == written
    assert [line.strip() for line in lines[-4:]] == next_commands("my-task", Path("my-task"))
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("arguments", [("class",), ("my-task", "--output", "."), ("my-task", "--from-file", "no.py")])
def test_a_mistake_is_one_line(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("new", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
