"""Task packages that are not installed: found by a path and imported from there under their own names.

A package has an `__init__.py`, or a project whose `pyproject.toml` names it; `registry.py` handles single files, and
this module what these import from their own folder.
"""

import ast
import hashlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tinyzero_sdk.errors import BrokenTaskError, TaskNotFoundError

GROUP = "tinyzero.tasks"
_INIT = "__init__.py"


def is_path(source: str) -> bool:
    """Whether the text must be a path: no task name ends in `.py` or a slash, or starts with `./`."""
    if os.path.isabs(source) or source in (".", ".."):
        return True
    return source.endswith((".py", "/", os.sep)) or source.startswith(("./", "../", f".{os.sep}", f"..{os.sep}"))


def place_of_function(value: str) -> str:
    """The file or module of what names a function, such as `./losses.py:mine`; empty for any other text."""
    place, _, name = value.rpartition(":")
    is_place = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return place if is_place and name.isidentifier() else ""


def find_module(path: Path) -> Path:
    """The module file of the task in a folder: a package, or a project with one task.

    Raises:
        TaskNotFoundError: the folder has no task, or more than one.
    """
    if (path / _INIT).is_file():
        return path / _INIT
    tasks = _entry_points(path)
    if len(tasks) > 1:
        raise TaskNotFoundError(f"{path} has the tasks {', '.join(tasks)}; pip install -e {path} and name one of them")
    for name, module in tasks.items():
        for base in (path, path / "src"):
            place = base.joinpath(*module.split("."))
            for file in (place / _INIT, place.with_suffix(".py")):
                if file.is_file():
                    return file
        raise TaskNotFoundError(f"{path} has no module {module}; pip install -e {path}, and then name the task {name}")
    raise TaskNotFoundError(
        f"no task in {path}: expected an {_INIT}, or a pyproject.toml with an entry point in the group {GROUP}"
    )


def task_name(init: Path) -> str:
    """The task's name in the project around a package, or else the package's name."""
    module, base = _module_name(init)
    for project in (base, base.parent):
        for name, value in _entry_points(project).items():
            if value == module:
                return name
    return init.parent.name


def version_of(init: Path) -> str:
    """A hash of the package's Python files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(init.parent.rglob("*.py")):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(init.parent).as_posix()} {len(code)} ".encode() + code)
    return digest.hexdigest()


def import_package(init: Path) -> ModuleType:
    """Import a package under its own name, anew each time: its files may have changed.

    Raises:
        BrokenTaskError: another module has the name.
    """
    name, base = _module_name(init)
    top, *inner = name.split(".")
    loaded = sys.modules.get(top)
    if loaded is not None:
        origin = Path(getattr(loaded, "__file__", None) or ".").resolve()
        if origin != base / top / _INIT:
            raise BrokenTaskError(f"has the name {top!r} of a module that is already imported, from {origin}")
        for stale in [module for module in sys.modules if module == top or module.startswith(f"{top}.")]:
            del sys.modules[stale]
    with _without_bytecode():
        for depth in range(len(inner) + 1):
            module = execute(".".join([top, *inner[:depth]]), base.joinpath(top, *inner[:depth], _INIT))
    return module


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Write no bytecode in the block: a file that changed within a second would look unchanged."""
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes


def neighbours_of(file: Path, code: bytes) -> dict[str, Path]:
    """The modules in the folder of a task file that it imports, themselves or through one another, by name."""
    modules: dict[str, Path] = {}
    waiting = [code]
    while waiting:
        try:
            tree = ast.parse(waiting.pop())
        except (SyntaxError, ValueError):  # its import reports it
            continue
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - modules.keys() - sys.stdlib_module_names:
                module = file.parent / f"{name}.py"
                if module.is_file() and module != file:
                    modules[name] = module
                    waiting.append(module.read_bytes())
    return modules


@contextmanager
def importing(neighbours: Mapping[str, Path]) -> Iterator[None]:
    """Let the code in the block import these modules, which are imported anew, and at once, since hooks may import too.

    Raises:
        BrokenTaskError: another module has the name of one.
    """
    for name, file in neighbours.items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and (loaded is None or Path(loaded).resolve() != file):
            raise BrokenTaskError(f"imports {file.name}, but there is another module {name!r}, {loaded}; rename one")
        sys.modules.pop(name, None)
    folders = list(dict.fromkeys(str(file.parent) for file in neighbours.values()))
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        with _without_bytecode():
            for name in neighbours:
                importlib.import_module(name)
            yield
    finally:
        for folder in folders:
            sys.path.remove(folder)


def execute(name: str, file: Path) -> ModuleType:
    """Run a .py file as a module (a package if it is an `__init__.py`), and remove it again if it fails."""
    folders = [str(file.parent)] if file.name == _INIT else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None  # a file that ends in .py has a loader
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for imported in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[imported]
        raise
    return module


def _module_name(init: Path) -> tuple[str, Path]:
    """The dotted name of a package, and the folder that its outermost package is in."""
    folder, names = init.parent, [init.parent.name]
    while (folder.parent / _INIT).is_file():
        folder = folder.parent
        names.append(folder.name)
    return ".".join(reversed(names)), folder.parent


def _entry_points(project: Path) -> dict[str, str]:
    """The modules of a project's tasks, by name."""
    try:
        content: Any = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    for key in ("project", "entry-points", GROUP):
        content = content.get(key) if isinstance(content, dict) else None
    return {name: str(value) for name, value in content.items()} if isinstance(content, dict) else {}
