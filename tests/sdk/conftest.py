"""Small tasks and distributions, made on the spot: a file, or metadata and modules on `sys.path`."""

import sys

import pytest

from tinyzero_sdk.cli import main
from tinyzero_sdk.plugins.registry import load_plugins

HOOKS = {
    "generate_dataset": """
@hookimpl
def generate_dataset(split, size, seed, start):
    return (Item(number, {"number": number}) for number in range(start, start + size))
""",
    "make_prompt": """
@hookimpl
def make_prompt(item, template):
    return f"{template}: say {item.data['number']}"
""",
    "extract_answer": """
@hookimpl
def extract_answer(completion):
    return last_tagged(completion)
""",
    "score": """
@hookimpl
def score(answer, ground_truth):
    return float(answer == str(ground_truth))
""",
    "difficulty": """
@hookimpl
def difficulty(item):
    return item.data["number"]
""",
}
"""A whole task, "say the number": the code of each hook by its name."""


def task_source(**changes):
    """The code of that task with some hooks written differently, left out (None) or added."""
    header = "from tinyzero_sdk import Completion, Item, ItemColumns, Score, TaskInfo, hookimpl\n"
    hooks = {**HOOKS, **changes}
    return header + "from tinyzero_sdk.text import last_tagged\n" + "\n".join(code for code in hooks.values() if code)


def options_source(*fields):
    """The code of the hook `options`, with these fields."""
    options = "\n    ".join(["@dataclasses.dataclass(frozen=True)\nclass Options:", *fields])
    return f"import dataclasses\n\n{options}\n\n@hookimpl\ndef options(): return Options\n"


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch):
    """Start a worker where a command would start one for each core; tests of many say how many."""
    monkeypatch.setattr("tinyzero_sdk.workers.process.count_cores", lambda: 1)


@pytest.fixture
def run(capfd):
    """Run the command line: its exit code, and all that it and its workers wrote to stdout and stderr."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return end.value.code or 0, *capfd.readouterr()

    return run


@pytest.fixture(name="task_source")
def _task_source():
    return task_source


@pytest.fixture
def write_task(tmp_path):
    """Write a task file (`changes` as for `task_source`) and return its path."""

    def write(name="say", **changes):
        path = tmp_path / f"{name}.py"
        path.write_text(task_source(**changes), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install distributions for the time of a test: metadata, entry points and modules."""
    monkeypatch.syspath_prepend(tmp_path)
    modules_before = set(sys.modules)
    load_plugins.cache_clear()

    def install(distribution, *, version="1.0", modules=None, tasks=None, plugins=None, readers=None, requires=()):
        for module, code in (modules or {}).items():
            (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        groups = {"tinyzero.tasks": tasks or {}, "tinyzero.plugins": plugins or {}, "tinyzero.readers": readers or {}}
        points = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in names.items()) for group, names in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(points) + "\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)  # also makes importlib forget what it saw there

    yield install
    load_plugins.cache_clear()
    for name in set(sys.modules) - modules_before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
