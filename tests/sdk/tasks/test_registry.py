"""Finding and loading tasks: what works, and what each kind of broken plugin says."""

import pickle
import sys
from pathlib import Path

import pytest

from tests.sdk.conftest import options_source
from tinyzero_sdk import TaskInfo, list_tasks, load_task
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TaskClashError, TaskNotFoundError, VersionMismatchError
from tinyzero_sdk.tasks.registry import TaskEntry

RAISES = "raise RuntimeError('imported')"


def test_listing_is_sorted_by_name_and_imports_nothing(install):
    install("tz-say", version="2.1", modules={"say_module": RAISES}, tasks={"say": "say_module"})
    install("tz-two", tasks={"zebra": "m", "aardvark": "m"})
    assert TaskEntry("say", "say_module", "tz-say", "2.1") in list_tasks()
    names = [entry.name for entry in list_tasks()]
    assert names == sorted(names)


def test_load_by_name_imports_that_module_only(install, task_source):
    install("tz-say", version="2.1", modules={"say_module": task_source()}, tasks={"say": "say_module"})
    install("tz-bad", modules={"bad_module": RAISES}, tasks={"bad": "bad_module"})
    task = load_task("say")
    assert (task.name, task.version, task.source) == ("say", "2.1", "say")
    assert task.info == TaskInfo()
    assert task.options is None
    assert "bad_module" not in sys.modules


def test_a_plugin_may_be_an_object_in_a_module(install):
    code = """
from tinyzero_sdk import Item, hookimpl
class Say:
    def __init__(self, word): self.word = word
    @hookimpl
    def generate_dataset(self, size): return [Item(self.word)] * size
    @hookimpl
    def make_prompt(self): return "Say it."
    @hookimpl
    def extract_answer(self, completion): return completion
    @hookimpl
    def score(self, answer, ground_truth): return float(answer == ground_truth)
    @hookimpl
    def difficulty(self): return 1.0
say = Say("please")
"""
    install("tz-say", modules={"say_module": code}, tasks={"say": "say_module:say"})
    task = load_task("say")
    assert task.score_completion("please", task.generate("train", 1)[0].ground_truth).correct


def test_unknown_name_gets_the_nearest_and_what_to_do(install):
    install("tz-say", tasks={"say_number": "m"})
    with pytest.raises(TaskNotFoundError, match="did you mean say_number") as caught:
        load_task("say_numbr")
    assert "./my_task.py" in str(caught.value)


def test_two_distributions_with_one_name_clash_only_when_it_is_loaded(install, task_source):
    install("tz-one", modules={"one_module": task_source()}, tasks={"same": "one_module", "other": "one_module"})
    install("tz-two", version="3.0", modules={"two_module": task_source()}, tasks={"same": "two_module"})
    assert load_task("other").name == "other"
    assert [entry.distribution for entry in list_tasks() if entry.name == "same"] == ["tz-one", "tz-two"]
    with pytest.raises(TaskClashError, match=r"tz-one 1\.0 and tz-two 3\.0.*pip uninstall"):
        load_task("same")


HOOK = "@hookimpl\ndef "
UNFROZEN = "import dataclasses\n@dataclasses.dataclass\nclass O: pass\n"
BROKEN = {
    "import error": ({"extra": "import no_such_module"}, "No module named 'no_such_module'"),
    "exit at import": ({"extra": "raise SystemExit(3)"}, "SystemExit: 3"),
    "syntax error": ({"extra": "def ("}, "SyntaxError"),
    "missing hooks": ({"score": None, "difficulty": None}, "lacks the hooks score, difficulty"),
    "misspelt hook": ({"extra": HOOK + "solv(item): return ''"}, "no hook has that name; did you mean solve?"),
    "unlike any hook": ({"extra": HOOK + "xyzzy(): return ''"}, "the hooks are generate_dataset, "),
    "no hookimpl": ({"score": "def score(answer): return 1.0"}, "score has the name of a hook but lacks @hookimpl"),
    "optional without hookimpl": ({"extra": "def solve(item): return ''"}, "solve has the name of a hook but lacks"),
    "argument with default": ({"score": HOOK + "score(options=None): return 1.0"}, "score gives options a default"),
    "misspelt argument": (
        {"score": HOOK + "score(answr, ground_truth): return 1.0"},
        "score has no argument 'answr'; did you mean answer? its arguments are answer, ground_truth, options;",
    ),
    "own score_completion": (
        {"extra": HOOK + "score_completion(): return None"},
        "score_completion belongs to the SDK",
    ),
    "options without dataclass": ({"extra": HOOK + "options(): return dict"}, "expected a frozen dataclass type"),
    "options not frozen": ({"extra": f"{UNFROZEN}{HOOK}options(): return O"}, "expected a frozen dataclass type"),
    "info raises": ({"extra": HOOK + "info(): return 1 / 0"}, "ZeroDivisionError"),
    "info of another type": ({"extra": HOOK + "info(): return 'hello'"}, "expected a TaskInfo"),
    "endless range": ({"extra": HOOK + "info(): return TaskInfo(score_range=(0, 9e999))"}, "finite bounds around 0"),
    "range without 0": ({"extra": HOOK + "info(): return TaskInfo(score_range=(1, 2))"}, "finite bounds around 0"),
}


@pytest.mark.parametrize(("changes", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_plugin_names_distribution_and_fault(install, task_source, changes, message):
    install("tz-broken", modules={"broken_module": task_source(**changes)}, tasks={"broken": "broken_module"})
    with pytest.raises(BrokenTaskError) as caught:
        load_task("broken")
    assert message in str(caught.value)
    assert "task 'broken' (tz-broken 1.0)" in str(caught.value)
    assert "pip install --upgrade --force-reinstall tz-broken" in str(caught.value)


def test_interrupt_during_import_is_not_swallowed(write_task):
    with pytest.raises(KeyboardInterrupt):
        load_task(write_task(extra="raise KeyboardInterrupt"))


def test_borrowed_function_with_a_hooks_name_is_no_fault(write_task):
    task = load_task(write_task(extra="from statistics import mean as solve\nfrom shlex import split as oracle"))
    assert task.solve(task.generate("train", 1)[0]) is None


@pytest.mark.parametrize("requirement", ["tinyzero-sdk>=99", "TinyZero_SDK[train]>=99,<100"])
def test_plugin_for_another_sdk_is_refused_before_it_is_imported(install, requirement):
    install("tz-new", modules={"new_module": RAISES}, tasks={"new": "new_module"}, requires=[requirement])
    with pytest.raises(VersionMismatchError, match=r"tz-new 1\.0 needs tinyzero-sdk.*>=99.*pip install"):
        load_task("new")


@pytest.mark.parametrize("requirement", ["tinyzero-sdk>=0.0.1", "tinyzero-sdk>=99; python_version < '3'", "numpy>=99"])
def test_other_requirements_do_not_matter(install, task_source, requirement):
    install("tz-say", modules={"say_module": task_source()}, tasks={"say": "say_module"}, requires=[requirement])
    assert load_task("say").name == "say"


def test_a_task_file_imports_modules_next_to_it(write_task, tmp_path):
    (tmp_path / "tz_near.py").write_text("from tz_far import WORD")
    (tmp_path / "tz_far.py").write_text("WORD = 'one'")
    later = "@hookimpl\ndef make_prompt(item):\n    import tz_far\n    return WORD + tz_far.WORD\n"
    path = write_task(extra="from tz_near import WORD", make_prompt=later)
    before, places = load_task(path), list(sys.path)
    assert before.make_prompt(before.generate("train", 1)[0]) == "oneone"
    # A change of any of them is another version, and is imported anew.
    (tmp_path / "tz_far.py").write_text("WORD = 'two'")
    after = pickle.loads(pickle.dumps(load_task(path)))
    assert after.version != before.version
    assert after.make_prompt(after.generate("train", 1)[0]) == "twotwo"
    assert (sys.path, (tmp_path / "__pycache__").exists()) == (places, False)
    # Another folder's module of that name would be a mixture of both.
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tz_far.py").touch()
    with pytest.raises(BrokenTaskError, match=r"tz_far\.py, but there is another module 'tz_far', .*; rename one"):
        load_task(Path(write_task("other/say", extra="import tz_far")))


def test_file_task_takes_name_and_version_from_the_file(write_task):
    path = write_task("my_task")
    first = load_task(Path(path))
    assert first.name == "my_task"
    assert first.version == load_task(path).version
    # As long as before and within the same second: a cached .pyc would still be taken for it.
    Path(path).write_text(Path(path).read_text().replace("answer == str", "answer != str"))
    changed = load_task(path)
    assert changed.version != first.version
    assert (first.score("3", 3).value, changed.score("3", 3).value) == (1.0, 0.0)
    assert not Path(path).with_name("__pycache__").exists()


def test_file_task_may_have_options_under_postponed_annotations(write_task):
    path = Path(write_task(extra=options_source("scale: float = 1.0")))
    path.write_text("from __future__ import annotations\n" + path.read_text())
    assert load_task(path, options={"scale": 0.5}).option_values == {"scale": 0.5}
    with pytest.raises(SettingsError, match=r"unknown key 'task.scal'; did you mean 'task.scale'"):
        load_task(path, options={"scal": 1})
    with pytest.raises(SettingsError, match="'say' has no options, got size"):
        load_task(write_task(), options={"size": 1})


@pytest.mark.parametrize(("name", "why"), [("no_such.py", "No such file"), ("folder.py", "Is a directory")])
def test_unreadable_task_file(tmp_path, name, why):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(TaskNotFoundError, match=f"cannot read the task file .*{name}: {why}"):
        load_task(tmp_path / name)


IMPORTS = {
    "x = {}\ny = x['a']\n": "KeyError: 'a' ({}:2): y = x['a']; fix the file",
    "import no_such_module\n": "ModuleNotFoundError: No module named 'no_such_module' ({}:1): import no_such_module",
    "def f(:\n    pass\n": "SyntaxError: invalid syntax ({}:1): def f(:; fix",
    "if True:\n\tx = 1\n        y = 2\n": "TabError: inconsistent use of tabs and spaces in indentation ({}:3): y = 2;",
    "import sys\nsys.exit(3)\n": "SystemExit: 3 ({}:2): sys.exit(3);",
}


@pytest.mark.parametrize("code", IMPORTS)
@pytest.mark.parametrize(
    "words", ["tasks FILE", "check FILE", "score none.jsonl --task FILE", "train FILE --model tiny"]
)
def test_what_fails_in_an_import_names_the_line_in_every_command(run, tmp_path, monkeypatch, code, words):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(code)
    exit_code, out, err = run(*words.replace("FILE", str(path)).split())
    assert (exit_code, out) == (2, "")
    assert f"error: task 'mine' ({path}) cannot be imported: {IMPORTS[code].format(path)}" in err
    assert err.count("\n") == 1
