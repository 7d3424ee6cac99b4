"""The documentation holds: its code runs, its links resolve, and its commands exist.

The blocks of a document run in order in one directory: Python in one namespace (or saved, if it begins with a file
name), console blocks in bash; of commands that need a GPU, a network or minutes, the options and settings are checked.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.e2e import documented_commands
from tests.e2e.transcript import shortened
from tinyzero_sdk import hookspecs, load_task
from tinyzero_sdk.testing.checker import check_waivers

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "trainer/*.md", "plugins/*/*.md", "benchmarks/*.md", "examples/**/*.md")
TRANSCRIPT = ROOT / "docs/tasks/tutorial.md"  # test_tutorial.py runs it, and compares its output
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def each(documents: list) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents, ids=lambda path: str(path.relative_to(ROOT)))


WITH_CODE = [document for document in DOCUMENTS if BLOCK.search(document.read_text(encoding="utf-8"))]


GUIDES = pytest.mark.nightly(reason="the code of the guides runs with each change, and README's task is checked")
MINUTES = ("README.md", "conformance.md", "fuzzing.md", "scoring.md")


def commands(document: Path) -> list[str]:
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [
        command for language, code in blocks if language == "console" for command in documented_commands.split(code)
    ]


def with_marks() -> list:
    """The documents with code; slow are those whose commands run, because each takes a process, or import torch."""
    marked = []
    for document in WITH_CODE:
        takes_long = any(
            documented_commands.is_run(command) or "engine=vllm" in command for command in commands(document)
        )
        slow = [pytest.mark.slow] if takes_long else []
        marks = [*slow, pytest.mark.minutes] if document.name in MINUTES and slow else slow
        marked.append(pytest.param(document, marks=marks))
    return [param for param in marked if param.values != (TRANSCRIPT,)]


@each(with_marks())
def test_code_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, object] = {"__name__": "__main__"}
    if any(re.match(r"tinyzero (report|compare|view|runs|export)\b", command) for command in commands(document)):
        documented_commands.make_runs(tmp_path)
    for language, code in BLOCK.findall(document.read_text(encoding="utf-8")):
        if language == "console":
            for are_run, some in groupby(documented_commands.split(code), documented_commands.is_run):
                if are_run:
                    run_in_bash("\n".join(some))
                else:
                    for command in some:
                        with monkeypatch.context() as patch:
                            documented_commands.check(command, patch)
        elif code.startswith("# "):
            Path(code.splitlines()[0].removeprefix("# ")).write_text(code, encoding="utf-8")
        else:
            exec(compile(code, f"<Python in {document.name}>", "exec"), namespace)


def run_in_bash(code: str) -> None:
    done = subprocess.run(["bash", "-ec", shortened(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@each(DOCUMENTS)
def test_no_command_hides_from_the_tests(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    hidden = [code for language, code in fences if language != "console" and re.search(r"^(\$ )?tinyzero ", code, re.M)]
    assert hidden == []
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\n\n    \S.*", re.sub(r"^( *)([-*]|\d+\.) .*?\n\n(?=\S)", "", prose, flags=re.M | re.S)) == []


COMPLETE = (
    "docs/reference/hooks.md",
    "plugins/symbolic/README.md",
    "docs/tasks/reward-parts.md",
    "docs/tasks/group-rewards.md",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(pytest.param(name, marks=GUIDES) for name in COMPLETE),
    ],
)
def test_complete_tasks_fail_no_check(name: str, tmp_path: Path) -> None:
    codes = [
        code for language, code in BLOCK.findall((ROOT / name).read_text(encoding="utf-8")) if language == "python"
    ]
    [whole] = [code for code in codes if "def generate_dataset(" in code]
    (tmp_path / "whole.py").write_text(whole, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("tinyzero")), "check", str(tmp_path / "whole.py"), "--json"]
    done = subprocess.run([*command, "--examples", "50"], capture_output=True, text=True, check=False)
    results = {check["check"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert "other-seed-other-data" in results
    assert (done.returncode, [name for name, status in results.items() if status == "failed"]) == (0, [])


def test_what_is_named_like_a_hook_is_marked_as_one() -> None:
    hooks = {name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")}
    for document in WITH_CODE:
        code = document.read_text(encoding="utf-8")
        for mark, name in re.findall(r"^(.*)\ndef (\w+)\(", code, re.MULTILINE):
            assert name not in hooks or mark.startswith("@hookimpl"), f"{document}: {name} is never called"


def test_what_the_readme_installs_from_a_clone_needs_nothing_of_ours_from_elsewhere() -> None:
    [command] = re.findall(r"^pip install ('\..*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    projects = [ROOT / word.strip("'").partition("[")[0] / "pyproject.toml" for word in command.split()]
    declared = [tomllib.loads(project.read_text(encoding="utf-8"))["project"] for project in projects]
    needed = {re.split(r"[\[>]", line)[0] for project in declared for line in project["dependencies"]}
    names = {project["name"] for project in declared}
    assert {name for name in needed if name.startswith("tinyzero")} <= names
    assert names >= {"tinyzero-sdk", "tinyzero-trainer", "tinyzero-countdown"}


def test_the_waiver_of_the_documentation_is_taken(tmp_path: Path) -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tasks/conformance.md")]
    codes = [code for page in pages for _, code in BLOCK.findall(page)]
    whole, waiver = (next(code for code in codes if part in code) for part in ("# my_task.py", "waivers="))
    (tmp_path / "my_task.py").write_text(whole + waiver, encoding="utf-8")
    task = load_task(tmp_path / "my_task.py")
    assert list(task.info.waivers) == ["last-answer-counts"]
    check_waivers(task)


@each(DOCUMENTS)
def test_links_resolve(document: Path) -> None:
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = document.parent / target if target else document
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path), link


def test_every_picture_is_shown() -> None:
    linked = {Path(link).name for document in DOCUMENTS for link in LINK.findall(document.read_text(encoding="utf-8"))}
    assert {path.name for path in (ROOT / "docs/images").iterdir()} <= linked


def anchors(document: Path) -> set[str]:
    """The anchors a web page of the document would have: its headings in lower case, joined by hyphens."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_command_in_the_documentation_exists() -> None:
    from tinyzero_sdk.cli.app import build_app

    known = {command.name for command in build_app().registered_commands}
    for document in DOCUMENTS:
        for command in re.findall(r"(?:^|`)tinyzero ([a-z]+)", document.read_text(encoding="utf-8"), re.MULTILINE):
            assert command in known, f"{document.name}: tinyzero {command}"


@pytest.mark.slow
def test_the_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    files = [path for folder in ("tinyzero_sdk", "trainer/tinyzero_trainer") for path in (ROOT / folder).rglob("*.py")]
    texts = "\0".join(text for path in files for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))))
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    messages = [
        message for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for message in cell.split("`")[1::2]
    ]
    assert len(messages) > 25
    for message in messages:
        assert re.search("[^\0]*?".join(map(re.escape, message.strip("…").split("…"))), texts), message


def texts_of(tree: ast.Module) -> Iterator[str]:
    """The texts of a module, with … for what an f-string fills in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.slow
def test_plan_prints_what_its_page_shows() -> None:
    page = (ROOT / "docs/training/plan.md").read_text(encoding="utf-8")
    (block,) = (code for _, code in BLOCK.findall(page) if code.startswith("$ "))
    (command,) = documented_commands.split(block)
    done = subprocess.run(
        (sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", *shlex.split(command)[1:]),
        env={**os.environ, "COLUMNS": "80"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    printed = block.replace("\\\n", "").splitlines()[1:]
    assert [line.rstrip() for line in done.stdout.splitlines()] == printed


def test_the_comparison_takes_its_numbers_from_the_benchmarks() -> None:
    published = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|(.*)", (ROOT / "docs/comparison.md").read_text(encoding="utf-8"), re.MULTILINE)
    numbers = [number for row in rows for number in re.findall(r"\d[\d.,]*(?: s| GB)?", row.partition("|")[2])]
    assert len(numbers) > 20
    assert [number for number in numbers if number not in published] == []
