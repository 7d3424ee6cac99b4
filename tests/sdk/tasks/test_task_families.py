"""Families of tasks on the command line: a large one is a line of the list, and a list of its own."""

import json

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import TaskNotFoundError

FAMILY = """
from tinyzero_sdk import hookimpl
from tinyzero_sdk.errors import TaskNotFoundError
loaded = []
@hookimpl
def task_names():
    return [f"big/{number}" for number in range(12)]
@hookimpl
def load_family_task(name):
    loaded.append(name)
    if name == "big/7":
        raise TaskNotFoundError("big/7 is not supported: it is too big")
    import big_hooks, big_unsafe
    return big_unsafe if name == "big/3" else big_hooks
"""
UNSAFE = "@hookimpl\ndef info(): return TaskInfo('Say it.', unsafe_scorer='it evaluates it')"


@pytest.fixture
def family(install, task_source):
    modules = {"big_family": FAMILY, "big_hooks": task_source(), "big_unsafe": task_source(extra=UNSAFE)}
    install("tz-big", modules=modules, plugins={"big": "big_family"})


@pytest.mark.usefixtures("family")
def test_a_large_family_is_one_line_and_is_not_loaded(run, monkeypatch):
    import big_family

    monkeypatch.setenv("COLUMNS", "160")
    out = run("tasks")[1]
    assert "big/…" in out
    assert "12 tasks; to list them: tinyzero tasks big" in out
    assert "big/3" not in out
    assert big_family.loaded == []
    names = [row["name"] for row in json.loads(run("tasks", "--json")[1])]
    assert [name for name in names if name.startswith("big/")] == sorted(f"big/{number}" for number in range(12))


@pytest.mark.usefixtures("family")
def test_its_own_list_tells_of_each(run):
    rows = {row["name"]: row for row in json.loads(run("tasks", "big", "--json")[1])}
    assert len(rows) == 12
    assert rows["big/3"]["unsafe_scorer"] == "it evaluates it"
    assert rows["big/4"]["unsafe_scorer"] == ""
    assert rows["big/7"]["unsupported"] == "big/7 is not supported: it is too big"
    out = run("tasks", "big")[1]
    assert "unsafe scorer: Say it." in out
    assert "12 from tz-big" in out


@pytest.mark.usefixtures("family")
def test_a_task_says_in_its_own_words_why_it_is_not_to_be_had():
    with pytest.raises(TaskNotFoundError, match=r"^big/7 is not supported: it is too big$"):
        load_task("big/7")


@pytest.mark.usefixtures("family")
def test_the_message_for_an_unknown_task_is_short():
    with pytest.raises(TaskNotFoundError, match=r"did you mean big/9.*installed: big/… \(12 tasks\)"):
        load_task("big/99")
