"""From flags, `key=value` words and TOML files to a configuration, and from the configuration's tree to its help.

Later wins: defaults, what suits the model, the file, the words and flags. What the keys mean is in config.py.
"""

import difflib
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import Field, build, describe, merge, parse_words, read_toml, to_mapping
from tinyzero_trainer.config import TrainConfig

if TYPE_CHECKING:
    from rich.console import RenderableType

RESUMABLE = (
    "run.output",
    "run.steps",
    "run.device",
    "rollout.max_sequences",
    "optimizer.micro_batch_tokens",
    "reward.workers",
    "reward.memory_limit_gb",
    "eval.every",
    "eval.during_size",
    "checkpoint.every",
    "checkpoint.keep",
    "log.trackers",
    "log.project",
    "log.rollouts_every",
    "log.rollouts_count",
)
"""Keys that --resume may change: they bear on speed, memory and what is recorded, not on what is learnt."""

EVALUATION_KEYS = (
    "run.task",
    "run.seed",
    "run.device",
    "task",
    "model.path",
    "data.template",
    "data.test_share",
    "data.max_prompt_tokens",
    "rollout.max_tokens",
    "rollout.max_sequences",
    "reward.workers",
    "reward.time_limit",
    "reward.memory_limit_gb",
    "eval.size",
)
"""Keys that bear on `tinyzero eval`; any other is refused there."""

TABLE = "table"
"""The type, in `Field.type`, of keys that hold a table of their own, such as `task`."""


def gather(cls: type, flags: Mapping[str, Any], words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What the user said, as a nested mapping: the file, and on top of it the words and flags.

    Args:
        cls: the configuration's dataclass.
        flags: by the key they stand for, e.g. `{"run.task": "countdown"}`; None = not given.
        words: `key=value` words.
        file: a TOML file, or None.

    Raises:
        SettingsError: a key is unknown, or given twice, or a file cannot be read.
    """
    said = parse_words(words)
    given = dict(_leaves(said))
    for key, value in flags.items():
        if value is None:
            continue
        if key in given:
            raise SettingsError(f"{key} is given twice, as a flag and as {key}={given[key]}; give it once")
        said = merge(said, _nested(key, value))
    check_known(cls, said)
    if file is None:
        return said
    content = read_toml(file)
    try:
        check_known(cls, content)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error
    return merge(content, said)


def check_known(cls: type, values: Mapping[str, Any]) -> None:
    """Refuse keys that the tree of `cls` does not have.

    Raises:
        SettingsError: names the first such key and those nearest to it.
    """
    fields = {field.key: field.type for field in describe(cls)}
    groups = {key.partition(".")[0] for key in fields if "." in key}
    for key, value in _leaves(values):
        if key in fields or fields.get(key.partition(".")[0]) == TABLE:
            if value is None and key not in fields:
                raise SettingsError(
                    f"{key}=none cannot be kept in config.toml; leave it out for the task's own default"
                )
        elif key in groups:
            example = next(name for name in fields if name.startswith(f"{key}."))
            raise SettingsError(f"{key!r} is a group of keys; set one of them, such as {example}=…")
        elif not any(key.startswith(f"{name}.") for name in fields):  # a table where a value belongs: `build` tells
            near = _nearest(key, list(fields))
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise SettingsError(f"unknown key {key!r}{hint} (--help lists all keys)")


def suiting(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that suit the model and the task of `values`, as a warm start recorded them; empty if none did."""
    from tinyzero_trainer.presets import preset

    task, model = _get(values, "run.task") or "", _get(values, "model.path")
    return preset(task) if model is None else preset(task, Path(model))


def suiting_words(values: Mapping[str, Any]) -> list[str]:
    """What `suiting` adds to `values`, as `key=value` words."""
    said = dict(_leaves(values))
    return [f"{key}={show(value)}" for key, value in _leaves(suiting(values)) if key not in said]


def make_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration from a nested mapping, on top of what suits the model.

    Raises:
        SettingsError: an unknown key, a wrong type, an impossible combination, no task, or a model that is not there.

    Example:
        >>> make_config({"run": {"task": "countdown"}, "model": {"path": "gpt2"}}).model.path
        'gpt2'
    """
    if not _get(values, "run.task"):
        raise SettingsError("no task is named; give --task, or run.task in the file")
    refuse_missing_directory(_get(values, "model.path"))
    return build(TrainConfig, merge(suiting(values), values))


def refuse_missing_directory(model: str | None) -> None:
    """A name on the Hub has at most one slash, inside; what is written otherwise must be a directory here.

    Raises:
        SettingsError: it is not.
    """
    if model is None or not (model.startswith((".", "/", "~")) or model.count("/") > 1):
        return
    if not Path(model).is_dir():
        raise SettingsError(f"there is no directory {model}; give a model's directory, or its name on the Hub")


def resume_config(directory: Path, values: Mapping[str, Any]) -> TrainConfig:
    """The configuration that a run was started with, with what may be changed changed.

    Args:
        directory: of the run, which may have been moved.
        values: what the user said beside --resume; repeating what is saved is fine.

    Raises:
        SettingsError: there is no run, or `values` would change what is learnt.
    """
    file = directory / "config.toml"
    if not file.exists():
        raise SettingsError(f"{directory} holds no run to resume; leave out --resume to start one")
    saved = build(TrainConfig, read_toml(file))
    config = build(TrainConfig, merge(merge(to_mapping(saved), values), _nested("run.output", str(directory))))
    before, after = _flat(saved), _flat(config)
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new and key not in RESUMABLE:
            change = f"{key} from {show(old)} to {show(new)}"
            raise SettingsError(f"--resume cannot change {change}; leave it out, or start a run in another --output")
    if config.run.steps < saved.run.steps:
        raise SettingsError(f"--resume can raise run.steps={saved.run.steps}, but not lower it; leave it out")
    return config


def evaluation_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration to evaluate with.

    A model out of a run takes the task, its options and what is held out from that run, so that the figures can be
    compared and nothing it was trained on is asked.

    Raises:
        SettingsError: a key that has no effect, or whatever `make_config` refuses.
    """
    for key, _ in _leaves(values):
        if key not in EVALUATION_KEYS and not key.startswith("task."):
            raise SettingsError(f"{key} has no effect on an evaluation; leave it out (--help lists what has)")
    model = _get(values, "model.path")
    if model and (run := _run_of(Path(model))):
        values = merge(_inherited(run, values), values)
        values = merge(values, _nested("model.path", str(_newest_checkpoint(run) if run == Path(model) else model)))
    return make_config(values)


def _run_of(model: Path) -> Path | None:
    """The run directory that `model` is, or is a checkpoint of."""
    candidates = (model, model.parent.parent)
    return next((run for run in candidates if (run / "config.toml").exists() and (run / "checkpoints").is_dir()), None)


def _newest_checkpoint(run: Path) -> Path:
    from tinyzero_trainer.checkpoint import latest

    found = latest(run / "checkpoints")
    if found is None:
        raise SettingsError(f"{run} has no checkpoint yet; wait for its first, or give another --model")
    return found.path


def _inherited(run: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation takes from the run's configuration; nothing of its task if another one is asked for."""
    saved = read_toml(run / "config.toml")
    same_task = _get(values, "run.task") in (None, _get(saved, "run.task"))
    keys = ("run.task", "data.", "rollout.max_tokens", "eval.size", *(("task.",) if same_task else ()))
    inherited: dict[str, Any] = {}
    for key, value in _leaves(saved):
        if key.startswith(keys):
            inherited = merge(inherited, _nested(key, value))
    return inherited


def fingerprint(config: TrainConfig) -> str:
    """A hash of everything that bears on what is learnt, i.e. all but `RESUMABLE`."""
    kept = {key: value for key, value in _flat(config).items() if key not in RESUMABLE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def check_fingerprint(config: TrainConfig, saved: str) -> None:
    """Refuse to go on from a checkpoint of another configuration.

    Raises:
        SettingsError: `saved` is not the fingerprint of `config`.
    """
    if fingerprint(config) != saved:
        raise SettingsError(
            "config.toml has changed since the checkpoint was saved; restore it, or start a run in another --output"
        )


# ---- help ------------------------------------------------------------------------------------------------------------


def key_help(cls: type, only: Sequence[str] = ()) -> Iterator["RenderableType"]:
    """A panel for each group of keys, in the manner of the command line's own.

    Args:
        cls: the configuration's dataclass.
        only: keys to show; all if empty.
    """
    from rich import box
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    for group, about, fields in _groups(cls):
        fields = [field for field in fields if not only or field.key in only]
        if not fields:
            continue
        table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1), expand=True)
        table.add_column(ratio=9, overflow="fold")
        table.add_column(ratio=10)
        for field in fields:
            if field.type == TABLE:
                table.add_row(f"[bold cyan]{field.key}[/][dim].KEY=…[/]", escape(field.help))
                continue
            key = f"[bold cyan]{field.key}[/][dim]={escape(show(field.default))}[/]"
            unbroken = escape(field.type.replace(" ", "\N{NO-BREAK SPACE}"))
            table.add_row(key, f"{escape(field.help)} [dim]\\[{unbroken}][/]")
        title = f"{group}: {about.rstrip('.')}" if about else group
        yield Panel(table, title=escape(title), title_align="left", border_style="dim")


def markdown() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Every key of `tinyzero train`, as `key=value` on the command line or in a TOML file (`--config FILE`).",
        "Later wins: the defaults below, what suits the model that comes with the trainer, the file, the command line.",
        "What came of it is saved as `config.toml` in the run directory, and can be given to `--config` again.",
        "",
        "Keys marked ↻ may be changed with `--resume`: they bear on speed, memory and records, not on what is learnt.",
        "(This page is generated from the configuration's own docstrings; a test holds it to them.)",
    ]
    for group, about, fields in _groups(TrainConfig):
        lines += [
            "",
            f"## {group}",
            "",
            *([about, ""] if about else []),
            "| key | default | type | |",
            "|---|---|---|---|",
        ]
        for field in fields:
            key = f"`{field.key}.…`" if field.type == TABLE else f"`{field.key}`"
            mark = " ↻" if field.key in RESUMABLE else ""
            default = "" if field.type == TABLE else f"`{show(field.default)}`"
            cells = [key + mark, default, field.type, field.help]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def show(value: Any) -> str:
    """A value as one would type it after `key=`.

    Example:
        >>> show(None), show(True), show((3, 4)), show("auto"), show("")
        ('none', 'true', '[3, 4]', 'auto', '""')
    """
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value, default=str)


def _groups(cls: type) -> Iterator[tuple[str, str, list[Field]]]:
    """(name, what it is about, its leaves) for each group of keys; a table of its own is a group of one."""
    grouped: dict[str, list[Field]] = {}
    for field in describe(cls):
        grouped.setdefault(field.key.partition(".")[0], []).append(field)
    hints = typing.get_type_hints(cls)
    for group, fields in grouped.items():
        yield group, (hints[group].__doc__ or "") if is_dataclass(hints[group]) else "", fields


def _nearest(key: str, known: Sequence[str]) -> list[str]:
    """Known keys that `key` may stand for: the same name in another group, or nearly the same name."""
    name = key.rpartition(".")[2]
    same = [candidate for candidate in known if candidate.rpartition(".")[2] == name]
    return same or difflib.get_close_matches(key, known, n=1)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _flat(config: TrainConfig) -> dict[str, Any]:
    return dict(_leaves(to_mapping(config)))


def _get(values: Mapping[str, Any], key: str) -> Any:
    return dict(_leaves(values)).get(key)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value
