"""What plugins add: families of tasks, large ones too, and score wrappers."""

import json

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import BrokenTaskError, TaskClashError, TaskNotFoundError
from tinyzero_sdk.plugins.registry import load_plugins

FAMILY = """
from tinyzero_sdk import hookimpl
@hookimpl
def task_names(): return ["family/say", "family/lost"]
@hookimpl
def load_family_task(name):
    import family_hooks
    return {"family/say": family_hooks}[name]
"""


@pytest.fixture
def family(install, task_source):
    modules = {"family_module": FAMILY, "family_hooks": task_source()}
    install("tz-family", version="4.0", modules=modules, plugins={"family": "family_module"})


def test_hook_task_names(family):
    with pytest.raises(TaskNotFoundError, match="did you mean family/say"):
        load_task("family/sai")


def test_hook_load_family_task(family):
    task = load_task("family/say")
    assert (task.name, task.version, task.source) == ("family/say", "4.0", "family/say")
    assert task.score_completion("<answer>3</answer>", 3).correct


def test_family_that_cannot_load_its_task_is_named(family):
    with pytest.raises(BrokenTaskError, match=r"'family/lost' \(tz-family 4.0\) cannot be imported: KeyError"):
        load_task("family/lost")


def test_two_families_with_one_name_clash(family, install):
    install("tz-other", modules={"other_module": FAMILY}, plugins={"other": "other_module"})
    with pytest.raises(TaskClashError, match=r"tz-family 4.0 and tz-other 1.0"):
        load_task("family/say")


@pytest.mark.parametrize(
    ("code", "requires"),
    [
        ("raise SystemExit", []),
        ("@hookimpl\ndef tsak_names(): return []", []),
        ("@hookimpl\ndef task_names(): return 1 / 0", []),
        ("@hookimpl\ndef register_commands(apps): pass", []),
        ("def task_names(): return []", []),
        ("", ["tinyzero-sdk>=99"]),
    ],
)
def test_broken_plugin_does_not_break_the_others(family, install, code, requires):
    code = f"from tinyzero_sdk import hookimpl\n{code}"
    install("tz-aaa", modules={"aaa_module": code}, plugins={"aaa": "aaa_module"}, requires=requires)
    assert load_task("family/say").name == "family/say"
    [broken] = [plugin for plugin in load_plugins() if plugin.name == "aaa"]
    assert broken.error


DOUBLE = """
from tinyzero_sdk import Score, hookimpl
class Add:
    def __init__(self, amount): self.amount = amount
    @hookimpl(wrapper=True)
    def score_completion(self, completion):
        score = yield
        return Score(score.value + self.amount * completion.finished, score.correct, score.reason, score.answer)
class Double:
    @hookimpl(wrapper=True)
    def score_completion(self):
        score = yield
        return Score(2 * score.value, score.correct, score.reason, score.answer)
@hookimpl
def score_wrappers(): return {"add": lambda: Add(10), "double": Double}
"""


def test_hook_score_wrappers(install, write_task):
    install("tz-shape", modules={"shape_module": DOUBLE}, plugins={"shape": "shape_module"})
    path = write_task()
    assert load_task(path, wrappers=["add", "double"]).score_completion("<answer>3</answer>", 3).value == 22
    assert load_task(path, wrappers=["double", "add"]).score_completion("<answer>3</answer>", 3).value == 12


def test_trace_shows_each_score_on_stderr(write_task, capsys):
    load_task(write_task(), wrappers=["trace"]).score_completion("<answer>\ud800</answer>", 3)
    line = json.loads(capsys.readouterr().err)
    assert line["answer"] == "\ud800"
    assert (line["value"], line["reason"], line["ground_truth"]) == (0.0, "wrong", 3)


LARGE_FAMILY = """
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
    if name == "big/8":
        raise ImportError("gone")
    import big_hooks, big_unsafe
    return big_unsafe if name == "big/3" else big_hooks
"""
UNSAFE = "@hookimpl\ndef info(): return TaskInfo('Say it.', unsafe_scorer='it evaluates it')"


@pytest.fixture
def large_family(install, task_source):
    modules = {"big_family": LARGE_FAMILY, "big_hooks": task_source(), "big_unsafe": task_source(extra=UNSAFE)}
    install("tz-big", modules=modules, plugins={"big": "big_family"})


@pytest.mark.usefixtures("large_family")
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


@pytest.mark.slow
@pytest.mark.usefixtures("large_family")
def test_the_list_of_a_family_describes_each_task(run):
    rows = {row["name"]: row for row in json.loads(run("tasks", "big", "--json")[1])}
    assert len(rows) == 12
    assert rows["big/3"]["unsafe_scorer"] == "it evaluates it"
    assert rows["big/4"]["unsafe_scorer"] == ""
    assert (rows["big/7"]["unsupported"], rows["big/7"]["broken"]) == ("big/7 is not supported: it is too big", None)
    assert "gone" in rows["big/8"]["broken"]
    assert "unsupported" not in rows["big/8"]
    out = " ".join(run("tasks", "big")[1].split())
    assert "big/7 not supported: it is too big" in out
    assert "big/8 broken: task" in out
    assert "unsafe scorer: Say it." in out


@pytest.mark.usefixtures("large_family")
@pytest.mark.parametrize(
    ("name", "message"),
    [("big/7", "^big/7 is not supported: it is too big$"), ("big/99", r"mean big/9.*installed: big/… \(12 tasks\)")],
)
def test_a_task_that_a_family_does_not_have_gets_a_short_message(name, message):
    with pytest.raises(TaskNotFoundError, match=message):
        load_task(name)
