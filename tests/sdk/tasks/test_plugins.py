"""What extensions bring along: families of tasks, and score wrappers."""

import json

import pytest

from tinyzero_sdk import load_task
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TaskClashError, TaskNotFoundError
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
        ("def task_names(): return []", []),
        ("", ["tinyzero-sdk>=99"]),
    ],
)
def test_broken_extension_does_not_break_the_others(family, install, code, requires):
    code = f"from tinyzero_sdk import hookimpl\n{code}"
    install("tz-aaa", modules={"aaa_module": code}, plugins={"aaa": "aaa_module"}, requires=requires)
    assert load_task("family/say").name == "family/say"
    [broken] = [extension for extension in load_plugins() if extension.name == "aaa"]
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


def test_unknown_wrapper(write_task):
    with pytest.raises(SettingsError, match="no score wrapper 'trase'; did you mean 'trace'"):
        load_task(write_task(), wrappers=["trase"])


def test_trace_shows_each_score_on_stderr(write_task, capsys):
    load_task(write_task(), wrappers=["trace"]).score_completion("<answer>\ud800</answer>", 3)
    line = json.loads(capsys.readouterr().err)
    assert line["answer"] == "\ud800"
    assert (line["value"], line["reason"], line["ground_truth"]) == (0.0, "wrong", 3)
