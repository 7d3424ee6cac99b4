"""Which scorers of reasoning-gym must not be trusted with a model's text, by their source.

Everything that `score_answer` can reach is read. A scorer is safe only if nothing in there runs code, or leads
out of what is known to be harmless; what cannot be read, or is not known, is unsafe. So a new version of
reasoning-gym is examined again, and a new way to evaluate text is refused before anyone has reported it.
"""

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Any

PACKAGE = "reasoning_gym"
RUN_CODE = frozenset({"eval", "exec", "compile", "__import__", "open", "input", "getattr", "globals", "locals", "vars"})
HARMLESS = frozenset(
    {
        "abc", "bisect", "calendar", "collections", "contextlib", "copy", "dataclasses", "datetime",
        "decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator",
        "random", "re", "statistics", "string", "textwrap", "typing", "unicodedata",
    }
)  # fmt: skip
"""Modules of the standard library that run no text. `ast` is not among them; its `literal_eval` is known apart."""

REVIEWED = frozenset(
    {
        "ast.literal_eval",  # constants alone
        "magiccube.cube.Cube",  # reads moves with a regular expression
        "numpy.abs",
        "numpy.allclose",
        "numpy.array",
        "numpy.empty",
        "numpy.float32",
        "numpy.isclose",
        "numpy.ndarray",
        "numpy.round",
    }
)
"""Functions and classes of other packages that were read: they run no text and open no files."""

DENIED = frozenset(
    {
        "collections.namedtuple",
        "dataclasses.make_dataclass",
        "operator.attrgetter",
        "operator.methodcaller",
        "typing.ForwardRef",
        "typing.get_type_hints",
    }
)
"""What harmless modules have that evaluates a text, or finds an attribute by one."""

KNOWN_DUNDERS = frozenset({"__class__", "__init__", "__name__", "__new__"})


def why_unsafe(dataset: object) -> str:
    """Why the scorer of a dataset must not be trusted with a model's text; empty = it may be."""
    return next((f"its code {problem}" for problem in _Reader(dataset).problems()), "")


class _Reader:
    """One walk over all that the scorer of `dataset` can reach."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._seen: dict[int, Any] = {}  # by identity; kept, so that no other thing gets the same
        self._classes: list[type] = []  # of reasoning-gym, that may have objects in there
        self._mentioned: set[str] = set()  # attributes of whatever object: any class that has one may be meant
        self._waiting: list[Any] = [getattr(type(dataset), "score_answer", None)]

    def problems(self) -> Iterator[str]:
        """Reasons for distrust, in the order of the walk."""
        if not callable(self._waiting[0]):
            yield "has no score_answer"
        while self._waiting:
            thing = self._waiting.pop(0)
            if id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            yield from self._judge(thing)

    def _judge(self, thing: Any) -> Iterator[str]:
        thing = inspect.unwrap(thing) if callable(thing) else thing
        if isinstance(thing, classmethod | staticmethod | types.MethodType):
            self._waiting.append(thing.__func__)
        elif isinstance(thing, property):
            self._waiting += [part for part in (thing.fget, thing.fset) if part]
        elif isinstance(thing, dict | list | tuple | set | frozenset):
            self._waiting += [*thing.keys(), *thing.values()] if isinstance(thing, dict) else [*thing]
        elif isinstance(thing, str | bytes | int | float | complex | None | range | re.Pattern | types.GenericAlias):
            return
        elif isinstance(thing, types.ModuleType):
            if thing.__name__.partition(".")[0] not in {PACKAGE, *HARMLESS}:
                yield f"uses {thing.__name__}"
        elif _is_ours(thing) and isinstance(thing, type):
            self._classes.append(thing)
            self._waiting += [base for base in thing.__bases__ if base is not object]
            for name, entry in vars(thing).items():
                if name in self._mentioned or (name.startswith("__") and _is_code(entry)):
                    self._waiting.append(entry)
        elif _is_ours(thing) and isinstance(thing, types.FunctionType):
            yield from self._read(thing)
        elif _is_ours(type(thing)):
            self._waiting.append(type(thing))
        else:
            yield from _check_foreign(thing)

    def _read(self, function: types.FunctionType) -> Iterator[str]:
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            yield f"has no source to read for {function.__qualname__}"
            return
        for node in ast.walk(tree):
            place = f"{function.__module__}:{first + getattr(node, 'lineno', 1) - 1}"
            for problem in self._judge_node(node, function):
                yield f"{problem} ({place})"

    def _judge_node(self, node: ast.AST, function: types.FunctionType) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._judge_import(alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from self._judge_import("." * node.level + (node.module or ""), alias.name, function)
        elif isinstance(node, ast.Attribute):
            yield from self._judge_attribute(node, function)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in RUN_CODE:
                yield f"calls {node.id}"
            thing = _look_up(node.id, function)
            if thing is not _NOTHING and not isinstance(thing, types.ModuleType):
                self._waiting.append(thing)

    def _judge_attribute(self, node: ast.Attribute, function: types.FunctionType) -> Iterator[str]:
        owner = _look_up(node.value.id, function) if isinstance(node.value, ast.Name) else _NOTHING
        if isinstance(owner, types.ModuleType):
            thing = getattr(owner, node.attr, _NOTHING)
            if owner.__name__.partition(".")[0] == PACKAGE and thing is not _NOTHING:
                self._waiting.append(thing)
            elif not _is_known(owner.__name__, node.attr):
                yield f"uses {owner.__name__}.{node.attr}"
        else:
            if node.attr not in self._mentioned:
                self._mentioned.add(node.attr)
                # Of `self` also what it got in its __init__.
                self._waiting.append(inspect.getattr_static(self._dataset, node.attr, None))
                self._waiting += [vars(cls).get(node.attr) for cls in self._classes]
            if node.attr.startswith("__") and node.attr not in KNOWN_DUNDERS:
                yield f"uses {node.attr}"

    def _judge_import(self, module: str, name: str | None, function: types.FunctionType | None = None) -> Iterator[str]:
        package = function.__module__.rpartition(".")[0] if function else None
        absolute = importlib.util.resolve_name(module, package) if module.startswith(".") else module
        if absolute.partition(".")[0] == PACKAGE:
            self._waiting.append(getattr(importlib.import_module(absolute), name or "", None))
        elif not _is_known(absolute, name or ""):
            yield f"imports {absolute}"


_NOTHING = object()


def _look_up(name: str, function: types.FunctionType) -> Any:
    """What a name means within a function, as far as it is not a variable of its own."""
    cells = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    for place in (cells, function.__globals__, vars(builtins)):
        if name in place:
            return place[name]
    return _NOTHING


def _check_foreign(thing: Any) -> Iterable[str]:
    """A function, class or object of another package, or of the standard library."""
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = getattr(owner, "__module__", None) or "builtins", owner.__qualname__
    is_builtin = module == "builtins" and name not in RUN_CODE
    return [] if is_builtin or _is_known(module, name) else [f"uses {module}.{name}"]


def _is_known(module: str, name: str) -> bool:
    """Whether a thing of a module is known to run no text."""
    full = f"{module.removeprefix('_')}.{name}"  # the C half of a module is told by an underscore
    return full in REVIEWED or (full.partition(".")[0] in HARMLESS and full not in DENIED)


def _is_ours(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] == PACKAGE


def _is_code(thing: Any) -> bool:
    """Whether it is written code; what `dataclass` generates is made of the names of fields alone."""
    if isinstance(thing, types.FunctionType):
        return not inspect.unwrap(thing).__code__.co_filename.startswith("<")
    return isinstance(thing, classmethod | staticmethod | property)
