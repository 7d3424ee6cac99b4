# mypy: disable-error-code="empty-body"
"""Plugins of the SDK, found through the entry-point group `tinyzero.plugins`, and the hooks they implement.

A plugin adds commands, families of tasks, score wrappers or local models; a single task uses the group
`tinyzero.tasks` instead. A broken plugin is reported and ignored, and never stops the others.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import Distribution, EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from tinyzero_sdk.hookspecs import PROJECT, hookspec
from tinyzero_sdk.plugins.validation import check_sdk_version, check_spelling, register

if TYPE_CHECKING:
    import typer

GROUP = "tinyzero.plugins"


@hookspec(firstresult=True)
def register_commands(app: "typer.Typer") -> None:
    """Add commands to `tinyzero`. Import what they need inside them: this runs for every `tinyzero --help`."""


@hookspec(firstresult=True)
def task_names() -> Iterable[str]:
    """The names of a family's tasks, each `family/name`."""


@hookspec(firstresult=True)
def load_family_task(name: str) -> object:
    """The task of that name, one of `task_names()`, as a module or object with hooks."""


@hookspec(firstresult=True)
def score_wrappers() -> Mapping[str, Callable[[], object]]:
    """Score wrappers by name; each makes an object whose `score_completion` is marked `@hookimpl(wrapper=True)`."""


@hookspec(firstresult=True)
def local_models() -> object:
    """A `tinyzero_sdk.evaluation.protocol.LocalModels`, which loads models here for `tinyzero eval`.

    Called for `tinyzero eval --help` too: import in its methods.
    """


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(sys.modules[__name__])
    return manager


@dataclass
class Plugin:
    """An installed plugin; its hooks are empty where it failed to load."""

    name: str
    module: str
    distribution: str
    version: str
    manager: pluggy.PluginManager = field(default_factory=_new_manager, repr=False)
    """Holds this plugin alone; empty if it is broken."""

    error: str | None = None
    """Why the plugin is broken, in one line."""

    def call(self, hook: str, **arguments: Any) -> Any:
        """The result of a hook; None where the plugin lacks it, or where it fails, which sets `error`."""
        return self._attempt(f"{hook} raised ", lambda: getattr(self.manager.hook, hook)(**arguments))

    def _attempt(self, doing: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException as error:  # one plugin's fault must not stop the others, but Ctrl-C must
            if isinstance(error, KeyboardInterrupt):
                raise
            self.error = f"{doing}{type(error).__name__}: {error}"
            return None


@cache
def load_plugins() -> tuple[Plugin, ...]:
    """Every installed plugin, by name; imported once per process."""
    return tuple(_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _load(point: EntryPoint) -> Plugin:
    assert point.dist is not None  # entry_points() sets it
    plugin = Plugin(point.name, point.value, point.dist.name, point.dist.version)
    plugin.manager = plugin._attempt("", partial(_manager_of, point, point.dist)) or plugin.manager
    return plugin


def _manager_of(point: EntryPoint, distribution: Distribution) -> pluggy.PluginManager:
    manager = _new_manager()
    check_sdk_version(distribution)
    hooks = point.load()
    register(manager, hooks)
    check_spelling(manager, hooks, sys.modules[__name__])
    return manager


def family_tasks() -> dict[str, list[Plugin]]:
    """The tasks of all families, each with the plugins that offer it (more than one = a clash)."""
    offers: dict[str, list[Plugin]] = {}
    for plugin in load_plugins():
        for name in plugin.call("task_names") or ():
            offers.setdefault(name, []).append(plugin)
    return offers
