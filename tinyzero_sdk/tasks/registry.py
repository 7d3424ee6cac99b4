"""Find and load tasks: by name among installed distributions and families, or by path.

Listing reads metadata and imports nothing. Each task gets its own plugin manager, so that tasks cannot answer for one
another and no call pays for unused plugins.
"""

import copyreg
import hashlib
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy

from tinyzero_sdk import hookspecs
from tinyzero_sdk.errors import (
    BrokenTaskError,
    SettingsError,
    TaskClashError,
    TaskNotFoundError,
    TinyZeroError,
    VersionMismatchError,
    describe_error,
    did_you_mean,
)
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.plugins.registry import Plugin, family_tasks
from tinyzero_sdk.plugins.validation import check_hooks, check_sdk_version, register
from tinyzero_sdk.records import Item, ScorerLimits, TaskInfo
from tinyzero_sdk.rewards.wrappers import make_wrapper, term_of
from tinyzero_sdk.settings import build, parse_overrides, unknown_key_message
from tinyzero_sdk.tasks import local_packages as packages
from tinyzero_sdk.tasks.reward_parts import check_parts, check_range, weighted
from tinyzero_sdk.tasks.task import Task, is_async

_LONGEST_KEY = 80  # characters of a ground truth that is a key


@hookimpl
def item_key(item: Item) -> str:
    """The default: items with the same ground truth are the same problem.

    The ground truth itself, so that people recognize the problem; a long one is cut, with a hash of all of it.
    """
    text = json.dumps(item.ground_truth, sort_keys=True, separators=(",", ":"))
    if len(text) <= _LONGEST_KEY:
        return text
    return f"{text[: _LONGEST_KEY // 2]}… {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


@hookimpl
def info() -> TaskInfo:
    """The default: no description, ability `math`, rewards from 0 to 1."""
    return TaskInfo()


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """An installed task, from the metadata of its distribution."""

    name: str
    module: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A task that is known but not yet imported."""

    name: str
    source: str
    """What `load_task` takes to find it in another process."""

    version: str
    origin: str
    """Distribution and version, or path; for messages."""

    fix: str
    """What a user can do where it does not load; for messages."""

    load: Callable[[], object]
    distribution: Distribution | None = None


def list_tasks() -> list[TaskEntry]:
    """The installed tasks by name, without importing any; two entries of one name clash only when it is loaded."""
    entries = [_entry(point) for point in entry_points(group=packages.GROUP)]
    return sorted(entries, key=lambda entry: (entry.name, entry.distribution))


def load_task(
    name_or_path: str | os.PathLike[str],
    *,
    options: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] = (),
    allow_unsafe_scorers: bool = False,
) -> Task:
    """Import one task and check it.

    Args:
        name_or_path: name of an installed task, name in a family (`family/name`), or path of a file ending in `.py`,
            of a package's folder, or of a project with a task; a path begins with `./`, `../` or `/`.
        options: values for the task's options; the others take their defaults.
        wrappers: names of score wrappers to put around it, innermost first.
        allow_unsafe_scorers: let a scorer run that its task marks as unsafe for a model's text
            (`TaskInfo.unsafe_scorer`); it runs in worker processes only.

    Raises:
        TaskNotFoundError: no task of this name; the message lists those that exist.
        TaskClashError: several distributions offer the name.
        BrokenTaskError: it cannot be imported, or its hooks are invalid.
        VersionMismatchError: its distribution needs another SDK.
        SettingsError: an option or a wrapper is unknown, or a value does not fit.
    """
    source = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) and os.path.isdir(source):  # a Path drops the ./ that makes a text a path
        source = os.path.abspath(source)
    candidate = _find(source)
    if candidate.distribution:
        check_sdk_version(candidate.distribution)
    try:
        return _assemble(candidate, options or {}, wrappers, allow_unsafe_scorers)
    except BrokenTaskError as error:
        raise BrokenTaskError(f"task {candidate.name!r} ({candidate.origin}) {error}; {candidate.fix}") from error


def _find(source: str) -> _Candidate:
    if packages.is_path(source):
        return _at_path(source)
    points = entry_points(group=packages.GROUP, name=source)
    candidates = [_installed(source, _entry(point), point.load, point.dist) for point in points]
    families = {} if candidates else family_tasks()
    for plugin in families.get(source, ()):
        load = partial(plugin.manager.hook.load_family_task, name=source)
        candidates.append(_installed(source, plugin, load))
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        if os.path.isdir(source):
            raise TaskNotFoundError(f"no task {source!r} is installed; for the folder of that name, write ./{source}")
        known = sorted({*(entry.name for entry in list_tasks()), *families})
        sizes = Counter(name.partition("/")[0] for name in known)
        large = {family: f"{family}/… ({size} tasks)" for family, size in sizes.items() if size > 8}
        shown = dict.fromkeys(large.get(name.partition("/")[0], name) for name in known)
        raise TaskNotFoundError(
            f"no task {source!r}; {did_you_mean(source, known, most=3)}installed: {', '.join(shown) or 'none'}; "
            "install the package that provides it, or give the path of a task file, such as ./my_task.py"
        )
    origins = " and ".join(sorted(candidate.origin for candidate in candidates))
    raise TaskClashError(f"task {source!r} is provided by {origins}; keep one and pip uninstall the other")


def _entry(point: EntryPoint) -> TaskEntry:
    assert point.dist is not None  # entry_points() sets it
    return TaskEntry(point.name, point.value, point.dist.name, point.dist.version)


def _installed(
    name: str, where: TaskEntry | Plugin, load: Callable[[], object], distribution: Distribution | None = None
) -> _Candidate:
    return _Candidate(
        name=name,
        source=name,
        version=where.version,
        origin=f"{where.distribution} {where.version}",
        fix=f"fix it, or pip install --upgrade --force-reinstall {where.distribution}",
        load=load,
        distribution=distribution,
    )


def _at_path(source: str) -> _Candidate:
    path = Path(source)
    if path.is_dir() and path.suffix != ".py":
        path = packages.find_module(path)
    elif path.suffix != ".py":
        raise TaskNotFoundError(f"no task at {source}: expected a folder, or a file that ends in .py")
    if path.name != "__init__.py" or not path.is_file():
        return _in_file(path)
    init = path.resolve()
    return _Candidate(
        name=packages.task_name(init),
        source=str(init),
        version=packages.version_of(init),
        origin=str(init.parent),
        fix="fix the package",
        load=lambda: packages.import_package(init),
    )


def _in_file(path: Path) -> _Candidate:
    try:
        code = path.read_bytes()
    except OSError as error:
        raise TaskNotFoundError(f"cannot read the task file {path}: {error.strerror}") from error
    location = str(path.resolve())
    neighbours = packages.neighbours_of(Path(location), code)
    hashed = code + b"".join(file.read_bytes() for _, file in sorted(neighbours.items()))
    version = hashlib.blake2b(hashed, digest_size=8).hexdigest()

    def load() -> ModuleType:
        # The bytes that were hashed: importlib would read the file again, or load a stale .pyc.
        module = ModuleType(f"tinyzero_task_file_{version}")
        module.__file__ = location
        sys.modules[module.__name__] = module  # dataclasses look their module up there
        with packages.importing(neighbours):
            exec(compile(code, location, "exec"), module.__dict__)
        return module

    return _Candidate(path.stem, location, version, origin=location, fix="fix the file", load=load)


def _assemble(
    candidate: _Candidate, values: Mapping[str, Any], wrappers: Sequence[str], allow_unsafe_scorers: bool
) -> Task:
    plugin = _call_plugin(candidate.load, "cannot be imported")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    register(manager, plugin, "task")
    check_hooks(manager, plugin)
    for default in (item_key, info):
        if not getattr(manager.hook, default.__name__).get_hookimpls():
            manager.register(SimpleNamespace(**{default.__name__: default}), f"default {default.__name__}")
    for name in wrappers:
        if manager.has_plugin(f"wrapper {name}"):
            raise SettingsError(f"the score wrapper {name} is given twice; give it once")
        register(manager, make_wrapper(name), f"wrapper {name}")
    described, options = _info(manager), dict(values)
    if described.parts:
        if clash := [spec for spec in wrappers if term_of(spec) in described.parts]:
            raise SettingsError(
                f"the score wrapper {clash[0]} adds a part named {term_of(clash[0])}, which the reward of task "
                f"{candidate.name!r} has already; leave the wrapper out (it is for all tasks of a run), or rename the "
                "task's part"
            )
        described = weighted(described, options.pop("weights", {}))
    if is_async(manager):
        described = _limited(described, options.pop("limits", {}))
    return Task(
        candidate.name,
        candidate.version,
        candidate.source,
        manager,
        info=described,
        options=_options(candidate.name, manager, options, described),
        option_values=values,
        wrappers=wrappers,
        allow_unsafe_scorers=allow_unsafe_scorers,
    )


def _info(manager: pluggy.PluginManager) -> TaskInfo:
    info = _call_plugin(manager.hook.info, "cannot be used: info()")
    if not isinstance(info, TaskInfo):
        raise BrokenTaskError(f"info() returned {info!r}, expected a TaskInfo")
    check_range("score_range", info.score_range)
    check_parts(info)
    return info


def _limited(info: TaskInfo, limits: Any) -> TaskInfo:
    """The info with the limits of an asynchronous scorer that the options set."""
    if not isinstance(info.limits, ScorerLimits):
        raise BrokenTaskError(f"info() has limits {info.limits!r}, expected ScorerLimits")
    if not isinstance(limits, Mapping):
        raise SettingsError(f"task.limits: got {limits!r}, expected names and values: task.limits.concurrency=4")
    return replace(info, limits=build(ScorerLimits, asdict(info.limits) | dict(limits), prefix="task.limits."))


def _options(task_name: str, manager: pluggy.PluginManager, values: Mapping[str, Any], info: TaskInfo) -> Any:
    cls = _call_plugin(manager.hook.options, "cannot be used: options()")
    if cls is None:
        if values:
            weights = "".join(f", but task.weights.{name}" for name in list(info.parts)[:1])
            raise SettingsError(f"task {task_name!r} has no options{weights}, got {', '.join(values)}")
        return None
    if not (is_dataclass(cls) and isinstance(cls, type) and cls.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise BrokenTaskError(f"options() returned {cls!r}, expected a frozen dataclass type")
    if is_async(manager) and "limits" in cls.__dataclass_fields__:
        raise BrokenTaskError("options() has a field limits, by which users limit an asynchronous scorer; rename it")
    if info.parts and "weights" in cls.__dataclass_fields__:
        raise BrokenTaskError("options() has a field weights, by which users weight the parts of the reward; rename it")
    return build(cls, values, prefix="task.")


def _call_plugin(call: Callable[[], Any], doing: str) -> Any:
    """Call a plugin's code: any exception but a TinyZeroError becomes a BrokenTaskError."""
    try:
        return call()
    except (KeyboardInterrupt, TinyZeroError):
        raise
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise BrokenTaskError(f"{doing}: {describe_error(error, quote=True)}") from error


def _load_version(
    source: str, version: str, option_values: Mapping[str, Any], wrappers: Sequence[str], allow_unsafe_scorers: bool
) -> Task:
    """Unpickle a task: load it again, and refuse another version than the one that was pickled."""
    task = load_task(source, options=option_values, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe_scorers)
    if task.version != version:
        raise VersionMismatchError(
            f"task {task.name!r}: this process has version {task.version}, the sender has {version};"
            " install the same version on both sides"
        )
    return task


def _reduce(task: Task) -> tuple[Any, ...]:
    arguments = (task.source, task.version, task.option_values, task.wrappers, task.allow_unsafe_scorers)
    return _load_version, arguments


copyreg.pickle(Task, _reduce)  # here, so that `task.py` does not import the registry


def load_task_with_overrides(
    name: str, overrides: Sequence[str] | None, *, wrappers: Sequence[str] = (), allow_unsafe_scorers: bool = False
) -> Task:
    """The task with its options from `task.KEY=VALUE` overrides, inside score wrappers (innermost first).

    Raises:
        SettingsError: an override is not of this form.
        TinyZeroError: as `load_task`.
    """
    tree = parse_overrides(overrides or ())
    options = tree.pop("task", {})
    if tree or not isinstance(options, dict):
        raise SettingsError(unknown_key_message(next(iter(tree), "task"), ["task.KEY"]))
    return load_task(name, options=options, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe_scorers)


def load_task_from_line(line: str, *, allow_unsafe_scorers: bool = False) -> Task:
    """The task of a line such as `countdown task.weights.format=0.1`, quoted as in a shell.

    Raises:
        SettingsError: the line names no task, or has something else than options after it.
        TinyZeroError: as `load_task`.
    """
    try:
        name, *overrides = shlex.split(line)
    except ValueError as error:
        expected = "expected the name of a task or the path of its file, and its options as task.KEY=VALUE"
        raise SettingsError(f"got the task {line!r} ({error}); {expected}") from None
    return load_task_with_overrides(name, overrides, allow_unsafe_scorers=allow_unsafe_scorers)
