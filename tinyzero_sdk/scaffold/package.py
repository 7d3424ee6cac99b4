"""Write the package of a new task from templates: the Python call behind `tinyzero new`."""

import json
from importlib.resources import files
from pathlib import Path
from string import Template

from packaging.version import Version

import tinyzero_sdk
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scaffold.names import check_name, module_name
from tinyzero_sdk.tasks.local_packages import neighbours_of
from tinyzero_sdk.tasks.registry import load_task
from tinyzero_sdk.testing.cases import cases_path

COMMON = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "{module}/py.typed": "empty",
    ".gitignore": "gitignore",
}
"""Files of every package, each with its template (`templates/NAME.txt`)."""

EXAMPLE = {
    "{module}/__init__.py": "package.py",
    "{module}/euclid.py": "euclid.py",
    "{module}/cases.jsonl": "cases.jsonl",
    "tests/test_{module}.py": "test_task.py",
}
"""Files of the example, a task about greatest common divisors."""


def write_package(name: str, output: Path, *, task_file: Path | None = None) -> list[Path]:
    """Write the package of a new task, around a task file or the example, to a new directory; returns its files.

    Raises:
        SettingsError: the name is invalid or taken.
        DataError: `output` exists or cannot be written.
        TaskNotFoundError, BrokenTaskError: `task_file` cannot be read, or is not a task.
    """
    check_name(name)
    if output.exists() or output.is_symlink():
        raise DataError(f"{output} already exists; move it away, or give another directory with --output")
    contents = render_example(name) if task_file is None else render_file(name, task_file)
    try:
        for path, content in contents.items():
            target = output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"cannot write {error.filename or output}: {error.strerror}") from error
    return [output / path for path in contents]


def render_example(name: str) -> dict[str, str]:
    """The files of the example's package: contents by path."""
    description = "the greatest common divisor of two numbers"
    return _render(name, COMMON | EXAMPLE, description, about=_read("about_example.md"))


def render_file(name: str, task_file: Path) -> dict[str, str]:
    """The files of a package around a task file and its cases.

    Raises:
        TaskNotFoundError, BrokenTaskError: it cannot be read, or is not a task.
        DataError: it belongs to a package.
    """
    task = load_task(task_file)
    if Path(task.source).name == "__init__.py":
        raise DataError(f"{task_file} is already in a package; copy its folder instead")
    if beside := neighbours_of(Path(task.source), task_file.read_bytes()):
        raise DataError(
            f"{task_file} imports {', '.join(beside)} from its folder; write the package without --from-file, and put "
            "the modules in it"
        )
    description = " ".join(task.info.description.split()).rstrip(".") or "describe the task here"
    templates = COMMON | {"tests/test_{module}.py": "test_file.py"}
    contents = _render(name, templates, description, about=_read("about_file.md"))
    module = module_name(name)
    contents[f"{module}/__init__.py"] = task_file.read_text(encoding="utf-8")
    if cases_path(task).exists():
        contents[f"{module}/cases.jsonl"] = cases_path(task).read_text(encoding="utf-8")
    return contents


def _render(name: str, templates: dict[str, str], description: str, *, about: str) -> dict[str, str]:
    values = {
        "name": name,
        "module": module_name(name),
        "sdk_bound": sdk_bound(tinyzero_sdk.__version__),
        "description": description,
        "description_in_toml": json.dumps(f"A task for the TinyZero SDK: {description}.", ensure_ascii=False),
        "about": about,
    }
    return {path.format(**values): Template(_read(file)).substitute(values) for path, file in templates.items()}


def _read(template: str) -> str:
    return files("tinyzero_sdk.scaffold").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")


def sdk_bound(version: str) -> str:
    """Version bounds of the SDK for a task written against `version`.

    Example:
        >>> sdk_bound("0.1.3")
        '>=0.1.3,<0.2'
    """
    major, minor = Version(version).release[:2]
    return f">={version},<{major}.{minor + 1}"
