"""Finding and loading tasks: what works, and what each kind of broken plugin says."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tinyzero_sdk import Completion, TaskInfo, list_tasks, load_task
from tinyzero_sdk.adapters.verl import compute_score
from tinyzero_sdk.cases import cases_path
from tinyzero_sdk.errors import (
    BrokenTaskError,
    SettingsError,
    TaskClashError,
    TaskNotFoundError,
    VersionMismatchError,
)
from tinyzero_sdk.extensions import load_extensions
from tinyzero_sdk.host import TaskEntry
from tinyzero_sdk.packages import is_path
from tinyzero_sdk.pool import ScoringPool

RAISES = "raise RuntimeError('imported')"


def test_listing_reads_metadata_and_imports_nothing(install):
    install("tz-say", version="2.1", modules={"say_module": RAISES}, tasks={"say": "say_module"})
    assert TaskEntry("say", "say_module", "tz-say", "2.1") in list_tasks()


def test_listing_is_sorted_by_name(install):
    install("tz-two", tasks={"zebra": "m", "aardvark": "m"})
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


def test_each_task_answers_for_itself(install, task_source):
    mute = "@hookimpl\ndef extract_answer(completion): return None"
    install("tz-say", modules={"say_module": task_source()}, tasks={"say": "say_module"})
    install("tz-mute", modules={"mute_module": task_source(extract_answer=mute)}, tasks={"mute": "mute_module"})
    say, silent = load_task("say"), load_task("mute")
    assert say.plugin_manager is not silent.plugin_manager
    assert silent.score_completion("<answer>3</answer>", 3).reason == "no_answer"
    assert say.score_completion("<answer>3</answer>", 3).correct


def test_unknown_name_tells_the_nearest_and_what_to_do(install):
    install("tz-say", tasks={"say_number": "m"})
    with pytest.raises(TaskNotFoundError, match="did you mean say_number") as caught:
        load_task("say_numbr")
    assert "./my_task.py" in str(caught.value)


def test_two_distributions_with_one_name_clash_only_when_it_is_asked_for(install, task_source):
    install("tz-one", modules={"one_module": task_source()}, tasks={"same": "one_module", "other": "one_module"})
    install("tz-two", version="3.0", modules={"two_module": task_source()}, tasks={"same": "two_module"})
    assert load_task("other").name == "other"
    assert [entry.distribution for entry in list_tasks() if entry.name == "same"] == ["tz-one", "tz-two"]
    with pytest.raises(TaskClashError, match=r"tz-one 1\.0 and tz-two 3\.0.*pip uninstall"):
        load_task("same")


BROKEN = {
    "import error": ({"extra": "import no_such_module"}, "No module named 'no_such_module'"),
    "exit at import": ({"extra": "raise SystemExit(3)"}, "SystemExit: 3"),
    "syntax error": ({"extra": "def ("}, "SyntaxError"),
    "missing hooks": ({"score": None, "difficulty": None}, "lacks the hooks score, difficulty"),
    "misspelt hook": ({"extra": "@hookimpl\ndef solv(item): return ''"}, "no such hook; did you mean solve?"),
    "unlike any hook": ({"extra": "@hookimpl\ndef xyzzy(): return ''"}, "the hooks are generate_dataset, "),
    "no hookimpl": (
        {"score": "def score(answer, ground_truth): return 1.0"},
        "score is a hook's name but lacks @hookimpl",
    ),
    "optional without hookimpl": (
        {"extra": "def solve(item): return ''"},
        "solve is a hook's name but lacks @hookimpl",
    ),
    "argument with default": (
        {"score": "@hookimpl\ndef score(answer, ground_truth, options=None): return 1.0"},
        "score gives options a default",
    ),
    "unknown argument": ({"score": "@hookimpl\ndef score(answer, truth): return 1.0"}, "truth"),
    "own score_completion": (
        {"extra": "@hookimpl\ndef score_completion(completion, ground_truth): return Score(1.0, True)"},
        "score_completion is the host's own",
    ),
    "options without dataclass": (
        {"extra": "@hookimpl\ndef options(): return dict"},
        "expected a frozen dataclass type",
    ),
    "options not frozen": (
        {"extra": "import dataclasses\n@dataclasses.dataclass\nclass O: pass\n@hookimpl\ndef options(): return O"},
        "expected a frozen dataclass type",
    ),
    "info raises": ({"extra": "@hookimpl\ndef info(): return 1 / 0"}, "ZeroDivisionError"),
    "info of another type": ({"extra": "@hookimpl\ndef info(): return 'hello'"}, "expected a TaskInfo"),
    "endless range": (
        {"extra": "@hookimpl\ndef info(): return TaskInfo(score_range=(0.0, float('inf')))"},
        "finite bounds around 0",
    ),
    "range without 0": (
        {"extra": "@hookimpl\ndef info(): return TaskInfo(score_range=(1.0, 2.0))"},
        "finite bounds around 0",
    ),
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
    code = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Options:
    scale: float = 1.0
    \"\"\"What a right answer earns.\"\"\"
@hookimpl
def options(): return Options
@hookimpl
def score(answer, ground_truth, options): return options.scale * (answer == str(ground_truth))
"""
    path = Path(write_task(score=code))
    path.write_text("from __future__ import annotations\n" + path.read_text())
    task = load_task(path, options={"scale": 0.5})
    assert task.options.scale == 0.5
    assert task.option_values == {"scale": 0.5}
    assert task.score("3", 3).value == 0.5
    with pytest.raises(SettingsError, match=r"unknown key 'task.scal'; did you mean 'task.scale'"):
        load_task(path, options={"scal": 1})
    with pytest.raises(SettingsError, match=r"task.scale: got 'much'"):
        load_task(path, options={"scale": "much"})


def test_task_without_options_refuses_them(write_task):
    with pytest.raises(SettingsError, match="'say' has no options, got size"):
        load_task(write_task(), options={"size": 1})


@pytest.mark.parametrize(("name", "why"), [("no_such.py", "No such file"), ("folder.py", "Is a directory")])
def test_unreadable_task_file(tmp_path, name, why):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(TaskNotFoundError, match=f"cannot read the task file .*{name}: {why}"):
        load_task(tmp_path / name)


def test_broken_task_file_names_the_file(write_task):
    path = write_task(extra="1 / 0")
    with pytest.raises(BrokenTaskError, match=r"ZeroDivisionError.*correct the file") as caught:
        load_task(path)
    assert path in str(caught.value)


# ---- packages that are not installed

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


def test_a_package_scores_in_worker_processes(loose_project):
    with ScoringPool(load_task(loose_project), workers=1) as pool:
        scores = pool.score([Completion("<answer>3</answer>"), Completion("<answer>4</answer>")], [3, 3])
    assert [score.reason for score in scores] == ["ok", "wrong"]


def test_cases_of_a_package_are_beside_its_module(loose_project):
    assert cases_path(load_task(loose_project)) == loose_project / "tz_loose/cases.jsonl"


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
    with pytest.raises(BrokenTaskError, match=r"ZeroDivisionError.*correct the package") as caught:
        load_task(loose_project)
    assert str(init.parent) in str(caught.value)
    assert not {"tz_loose", "tz_loose.reward"} & set(sys.modules)


def test_two_packages_of_one_name_are_told_apart(loose_project, tmp_path, task_source):
    load_task(loose_project)
    (tmp_path / "other/tz_loose").mkdir(parents=True)
    (tmp_path / "other/tz_loose/__init__.py").write_text(task_source())
    with pytest.raises(BrokenTaskError, match=r"'tz_loose' like a module that is imported already, from .*project"):
        load_task(tmp_path / "other/tz_loose")


@pytest.mark.parametrize(
    ("project", "said"),
    [
        ("", "expected an __init__.py, or a pyproject.toml with an entry point"),
        ("[[[", "expected an __init__.py"),
        ("project = 3", "expected an __init__.py"),
        (PROJECT, "has no module tz_loose; pip install -e .*, and then name the task tz-loose"),
        (PROJECT + 'second = "tz_second"\n', "has the tasks tz-loose, second; pip install -e "),
    ],
)
def test_a_folder_without_a_task_says_what_to_do(tmp_path, project, said):
    (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(TaskNotFoundError, match=said):
        load_task(tmp_path)


@pytest.mark.parametrize(("source", "found"), [("./nothing", "nothing"), ("./text", "neither")])
def test_a_path_to_no_task(tmp_path, monkeypatch, source, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").touch()
    with pytest.raises(TaskNotFoundError, match=f"no task at {source}: .* found {found}"):
        load_task(source)


@pytest.mark.parametrize("source", ["./data", "../data", "data/", ".", "..", "/data", "data.py"])
def test_a_data_file_may_not_choose_a_path(source):
    with pytest.raises(SettingsError, match="which a data file may not choose"):
        compute_score(source, "<answer>3</answer>", 3)
    assert not is_path("data/name")  # a task of a family


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
    [broken] = [extension for extension in load_extensions() if extension.name == "aaa"]
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


def test_loading_leaves_the_heavy_libraries_alone(write_task):
    code = "import sys, tinyzero_sdk; tinyzero_sdk.load_task(sys.argv[1]); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code, write_task()], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pyarrow", "pydantic"} & set(run.stdout.split())
