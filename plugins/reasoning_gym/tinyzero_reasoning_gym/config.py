"""A dataset's configuration as options of a task: those of its fields that a command line can set."""

import dataclasses
import inspect
import re
import typing
from typing import Any

from tinyzero_sdk.errors import TaskNotFoundError

ALLOW = "Take the dataset although its scorer pays wrong answers."
REWARD = "`partial`: reasoning-gym's score, with its partial credit; `binary`: 1 or 0."
OURS = frozenset({"seed", "size"})
"""Fields that the host decides on."""

_PLAIN = (bool, int, float, str)


def options_type(config_type: type, refusal: str = "") -> type:
    """A frozen dataclass type with `reward` and the plain fields of `config_type`, their comments as help.

    Fields of other types (classes, dates, lists of lists) keep reasoning-gym's default. Values that the
    configuration itself refuses are refused when an instance is made. With a `refusal`, which is then the message,
    that is so for all without `allow_unsound`.
    """
    hints, comments = typing.get_type_hints(config_type), _comments(config_type)
    fields: list[tuple[str, Any, Any]] = [
        ("reward", typing.Literal["partial", "binary"], dataclasses.field(default="partial", metadata={"help": REWARD}))
    ]
    if refusal:
        fields.append(("allow_unsound", bool, dataclasses.field(default=False, metadata={"help": ALLOW})))
    for field in dataclasses.fields(config_type):
        default = _default_of(field)
        kind = None if field.name in OURS else _plain_type(hints[field.name], default)
        if kind is not None:
            value = tuple(default) if isinstance(default, list) else default
            help = {"help": comments.get(field.name, "")}
            fields.append((field.name, kind, dataclasses.field(default=value, metadata=help)))

    def check(self: Any) -> None:
        if refusal and not self.allow_unsound:
            raise TaskNotFoundError(refusal)
        config = make_config(config_type, self, seed=0, size=1)
        try:
            getattr(config, "validate", lambda: None)()
        except AssertionError as error:
            raise ValueError(str(error) or "reasoning-gym rejects these values together") from error

    options = dataclasses.make_dataclass(
        f"{config_type.__name__}Options", fields, frozen=True, namespace={"__post_init__": check}
    )
    options.__doc__ = f"Options of reasoning-gym's {config_type.__name__}."
    return options


def make_config(config_type: type, options: Any, **ours: int) -> Any:
    """The configuration of a dataset, from options of `options_type(config_type)`."""
    names = [field.name for field in dataclasses.fields(options) if field.name not in ("reward", "allow_unsound")]
    values = {name: getattr(options, name) for name in names}
    lists = {field.name for field in dataclasses.fields(config_type) if isinstance(_default_of(field), list)}
    return config_type(**{name: list(value) if name in lists else value for name, value in values.items()}, **ours)


def _default_of(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain_type(hint: Any, default: Any) -> Any:
    """The type that an option has for a field of type `hint`, or None if no command line can set it."""
    arguments = typing.get_args(hint)
    if hint in _PLAIN or typing.get_origin(hint) is typing.Literal:
        return hint
    if type(None) in arguments and len(arguments) == 2:
        inner = arguments[0] if arguments[1] is type(None) else arguments[1]
        return inner | None if inner in _PLAIN else None
    if isinstance(default, list | tuple) and default and type(default[0]) in _PLAIN:
        kinds = {type(entry) for entry in default}
        return tuple[kinds.pop(), ...] if len(kinds) == 1 else None  # type: ignore[misc]
    return None


def _comments(config_type: type) -> dict[str, str]:
    """The comment behind each field, where reasoning-gym says what it is for."""
    try:
        source = inspect.getsource(config_type)
    except OSError:
        return {}
    return dict(re.findall(r"^    (\w+): .*?  # (.+)$", source, re.MULTILINE))
