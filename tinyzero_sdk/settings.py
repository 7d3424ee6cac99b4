"""Settings: nested frozen dataclasses filled from TOML and `key=value` overrides.

The same for a task's options and the trainer's configuration. The dataclass is the schema, the docstring under a field
is its help, pydantic checks the types; this file adds the messages.
"""

import ast
import dataclasses
import difflib
import inspect
import itertools
import json
import re
import textwrap
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.redaction import is_secret

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

# [name, name(key=value, …), "quoted"]: entries that need no quotes, since a shell would remove them.
_BARE_ENTRY = re.compile(r"""[\w./:@-]+(?:\([^()]*\))?|"[^"]*"|'[^']*'""")
_BARE_LIST = re.compile(rf"\[\s*((?:{_BARE_ENTRY.pattern})(?:\s*,\s*(?:{_BARE_ENTRY.pattern}))*)\s*,?\s*\]")
_DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*\.[ \t]*){100}""")

TABLE = "table"  # the type, in `Field.type`, of keys that hold a table of their own


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One leaf of a settings tree, as help and documentation show it."""

    key: str
    """Dotted name, e.g. `rollout.temperature`."""

    type: str
    """Type and bounds, e.g. `int > 0` or `auto | float32`."""

    default: Any
    """Default value, or `dataclasses.MISSING`."""

    help: str
    """The docstring under the field, in one line."""


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` overrides into a nested mapping; values are TOML, or else plain text, also within a list.

    Raises:
        SettingsError: an override has no `=`, or a key is given twice.

    Example:
        >>> parse_overrides(["task.numbers=[3,4]", "seed=1", "model=Qwen/Qwen2.5-0.5B", "names=[a, b(c=1, d=2)]"])
        {'task': {'numbers': [3, 4]}, 'seed': 1, 'model': 'Qwen/Qwen2.5-0.5B', 'names': ['a', 'b(c=1, d=2)']}
    """
    tree: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        is_key = all(part.isidentifier() for part in key.split("."))
        if not equals or not is_key:
            raise SettingsError(f"got {override!r}, expected {key if is_key else 'task.KEY'}=VALUE")
        node, parts = tree, key.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise SettingsError(f"{key!r} is set below {part!r}, which already has a value; give only one of them")
        if parts[-1] in node:
            raise SettingsError(f"{key!r} is given twice; give it once")
        node[parts[-1]] = _parse_value(text)
    return tree


def _parse_value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None  # TOML has no null
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        entries = _BARE_LIST.fullmatch(text)
        return [_parse_value(entry) for entry in _BARE_ENTRY.findall(entries[1])] if entries else text
    return parsed["value"] if len(parsed) == 1 else text


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a nested mapping.

    Raises:
        SettingsError: the file is missing or is not TOML (the parser names the line; repeated keys count).
    """
    try:
        text = path.read_text(encoding="utf-8")
        if _DEEP_KEY.search(text):  # of which the parser keeps every beginning
            raise ValueError("a key of over a hundred parts")
        return tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` overridden by the values of `over`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Fill the dataclass `cls` (and those nested in it) from a nested mapping.

    Args:
        cls: a dataclass type; its `__post_init__` may raise ValueError for impossible combinations.
        values: nested mapping; missing keys take their defaults.
        prefix: put before every key in messages, e.g. `task.`.

    Raises:
        SettingsError: an unknown key (the nearest known one is named), a wrong type, an impossible value, a secret.

    Example:
        >>> from tinyzero_sdk.records import Item
        >>> build(Item, {"dat": {}})
        Traceback (most recent call last):
        ...
        tinyzero_sdk.errors.SettingsError: unknown key 'dat'; did you mean 'data'? known here: ground_truth, data
    """
    from pydantic import ValidationError

    refuse_secrets(values, prefix)
    check_keys(cls, values, prefix)
    try:
        # As JSON, where strict pydantic rejects "3" and true for 3, but accepts lists for tuples and 1 for 1.0.
        return cast(T, _validator(cast(type, cls)).validate_json(json.dumps(values, default=str), strict=True))
    except ValidationError as error:
        first, *others = error.errors()
        depth = len(first["loc"]) - 1
        for other in others:  # of the alternatives of a union, the list that fits but for one entry
            if len(other["loc"]) > depth + 1 and "[" in str(other["loc"][depth]):
                first, others = {**other, "loc": (*other["loc"][:depth], *other["loc"][depth + 1 :])}, []
        place, message = first["loc"], first["msg"].removeprefix("Value error, ")
        if others and isinstance(place[-1], str) and ".".join(map(str, place[:-1])) in {f.key for f in describe(cls)}:
            # Of a union pydantic reports each alternative, under a name of its own.
            alternatives = [other["msg"] for other in others if other["loc"][:-1] == place[:-1]]
            message = " or ".join([message, *(text.removeprefix("Input should be ") for text in alternatives)])
            place = place[:-1]
        message = message.replace("a valid array", "a list").replace("an object", "a table")
        key = prefix + ".".join(map(str, place))
        # A check across fields has no key, or only that of its table; its message names the fields.
        if first["type"] == "value_error":
            raise SettingsError(f"{prefix.removesuffix('.')}: {message}" if prefix else message) from error
        default = next((field.default for field in describe(cls, prefix) if field.key == key), None)
        if message.endswith("a list") and isinstance(default, tuple) and default:
            message += f", such as {format_value(default)}"
        raise SettingsError(f"{key}: got {first['input']!r}; {message[0].lower()}{message[1:]}") from error


def refuse_secrets(values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise a SettingsError if a setting holds the key of a service: settings are kept in files, shown and logged."""
    for key, value in flatten(values, prefix):
        if is_secret(key.rpartition(".")[2], value):
            raise SettingsError(
                f"{key} holds a key or password, which would be kept in files; leave it out, and let what needs it "
                "read an environment variable"
            )


@lru_cache(maxsize=64)
def _validator(cls: type) -> "TypeAdapter[Any]":
    """Cached, since it takes milliseconds; bounded, since classes of task options come and go with their files."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def check_keys(cls: type, values: Mapping[str, Any], prefix: str = "", *, in_help: bool = False) -> None:
    """Refuse keys that the tree of `cls` does not have; with `in_help`, for --help lists them, none is listed."""
    _check_table(values, prefix, list(_keys(cls, prefix)), in_help)


def _keys(cls: type, prefix: str) -> Iterator[str]:
    """The leaves of a settings tree, without their help, for which the source is read."""
    groups = _nested_types(cls)
    for field in dataclasses.fields(cls):
        key = prefix + field.name
        if field.name in groups:
            yield from _keys(groups[field.name], key + ".")
        else:
            yield key


def _check_table(values: Mapping[str, Any], prefix: str, known: Sequence[str], in_help: bool) -> None:
    for name, value in values.items():
        key = prefix + name
        if key in known:
            continue  # `build` checks its value
        inside = next((other for other in known if other.startswith(f"{key}.")), None)
        if inside is None:
            if isinstance(value, Mapping):
                key = next((leaf for leaf, _ in flatten(value, f"{key}.")), key)
            below = (other.removeprefix(prefix) for other in known if other.startswith(prefix))
            here = dict.fromkeys(prefix + rest.partition(".")[0] for rest in below)
            raise SettingsError(unknown_key_message(key, known, here=list(here), in_help=in_help))
        if not isinstance(value, Mapping):
            raise SettingsError(f"{key!r} is a group of keys; set one of them, such as {inside}=…")
        _check_table(value, f"{key}.", known, in_help)


def unknown_key_message(
    key: str, known: Sequence[str], *, here: Sequence[str] | None = None, in_help: bool = False
) -> str:
    """The message about an unknown key: which of the `known` it may stand for, and those known `here` (None = all)."""
    here = known if here is None else here
    keys = list(dict.fromkeys([*known, *here]))
    # Only the last parts are compared: a common table does not make two keys similar.
    table, _, name = key.rpartition(".")
    names = difflib.get_close_matches(name, {other.rpartition(".")[2] for other in keys}, n=1)
    near = [other for other in keys if other.rpartition(".")[2] in names]
    near = [other for other in near if other.rpartition(".")[0] == table] or near
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    if in_help:
        return f"unknown key {key!r}{hint} (--help lists all keys)"
    return f"unknown key {key!r}{hint or ';'} known here: {', '.join(here) or 'none'}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in a nested mapping.

    Example:
        >>> dict(flatten({"run": {"seed": 1}, "task": {}}))
        {'run.seed': 1}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def get(values: Mapping[str, Any], key: str) -> Any:
    """The value or table of a dotted name, or None.

    Example:
        >>> get({"run": {"seed": 1}}, "run.seed"), get({"run": {"seed": 1}}, "run.seed.x")
        (1, None)
    """
    node: Any = values
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return None
        node = node.get(part)
    return node


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """The nested mapping of dotted names: the inverse of `flatten`.

    Example:
        >>> unflatten({"run.seed": 1, "run.output": "out"})
        {'run': {'seed': 1, 'output': 'out'}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        node = tree
        for table in tables:
            node = node.setdefault(table, {})
        node[name] = value
    return tree


def format_value(value: Any) -> str:
    """A value as it is typed after `key=`.

    Example:
        >>> format_value(None), format_value(True), format_value((3, 4)), format_value("auto"), format_value("")
        ('none', 'true', '[3, 4]', 'auto', '""')
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value, default=str)


def to_mapping(settings: Any) -> dict[str, Any]:
    """A settings object as a nested mapping for TOML (without fields that are None)."""
    mapping: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            mapping[field.name] = to_mapping(value)
        elif value is not None:
            mapping[field.name] = list(value) if isinstance(value, tuple) else value
    return mapping


def describe(cls: type, prefix: str = "") -> Iterator[Field]:
    """The leaves of a settings tree in order of definition, with their help."""
    groups, helps, names = _nested_types(cls), field_docs(cls), _type_names(cls)
    for field in dataclasses.fields(cls):
        key = prefix + field.name
        if field.name in groups:
            yield from describe(groups[field.name], key + ".")
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        help = helps.get(field.name) or field.metadata.get("help", "")  # a type created at run time has no docstrings
        yield Field(key, names[field.name], default, help)


@cache
def _nested_types(cls: type) -> dict[str, type]:
    hints = typing.get_type_hints(cls)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}


@cache
def _type_names(cls: type) -> dict[str, str]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: _type_name(hints[field.name]) for field in dataclasses.fields(cls)}


def _type_name(hint: Any) -> str:
    """A type as help shows it: `int > 0`, `auto | float32`, `list of int`, `str | none`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join([_type_name(arguments[0]), ", ".join(filter(None, map(_bounds, arguments[1:])))]).strip()
    if origin is typing.Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin in (tuple, list) and (origin is list or arguments[1:] == (...,)):
        return f"list of {_type_name(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(_type_name(argument) for argument in arguments)}]"
    if hint is type(None):
        return "none"
    return TABLE if origin is dict or hint is dict else getattr(hint, "__name__", str(hint))


def _bounds(constraint: Any) -> str:
    """The bounds of an `annotated_types` constraint, without a dependency on it."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return ", ".join(f"{sign} {getattr(constraint, name)}" for name, sign in signs.items() if hasattr(constraint, name))


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, with inherited ones, in one line; empty without the source."""
    docs = dict(field_docs(cls.__base__)) if dataclasses.is_dataclass(cls.__base__) else {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return docs
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    for field, doc in itertools.pairwise(body):
        is_doc = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_doc:
            docs[field.target.id] = " ".join(doc.value.value.split())  # type: ignore[attr-defined]
    return docs
