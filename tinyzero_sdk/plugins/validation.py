"""Checks of a plugin before its use: its hooks exist, are spelt correctly, and are written for this SDK.

pluggy skips an unmarked function, ignores an argument with a default and never calls a misspelt hook; each would make
a task silently do less than its author wrote.
"""

import inspect
from importlib.metadata import Distribution, version
from types import ModuleType
from typing import Any

import pluggy

from tinyzero_sdk import hookspecs
from tinyzero_sdk.errors import BrokenTaskError, VersionMismatchError, did_you_mean

SDK = "tinyzero-sdk"


def check_sdk_version(distribution: Distribution) -> None:
    """Refuse a distribution that requires another version of the SDK, before its code is imported."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for line in distribution.requires or []:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != SDK or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(version(SDK), prereleases=True):
            raise VersionMismatchError(
                f"{distribution.name} {distribution.version} needs {SDK}{requirement.specifier}, "
                f"{version(SDK)} is installed; upgrade both: pip install -U {SDK} {distribution.name}"
            )


def register(manager: pluggy.PluginManager, plugin: object, name: str | None = None) -> None:
    """Register the hooks of a plugin; one that names an argument which its hook does not pass is refused by name."""
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        for hook, caller in vars(manager.hook).items():
            passed = caller.spec.argnames if caller.spec else ()
            for argument in _required_arguments(plugin, hook) if caller.spec else ():
                if argument not in passed:
                    hint = did_you_mean(argument, passed)
                    known = f"its arguments are {', '.join(passed)}" if passed else "it has none"
                    raise BrokenTaskError(f"{hook} has no argument {argument!r}; {hint}{known}") from error
        raise BrokenTaskError(" ".join(str(error).split())) from error


def _required_arguments(plugin: object, hook: str) -> list[str]:
    function = getattr(plugin, hook, None)
    if function is None or not hasattr(function, f"{hookspecs.PROJECT}_impl"):
        return []
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


def check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Refuse a registered task that lacks a required hook, or whose hooks are invalid; the caller adds its name."""
    check_spelling(manager, plugin, hookspecs)
    own = {caller.name: caller.get_hookimpls() for caller in manager.get_hookcallers(plugin) or []}
    missing = [name for name in hookspecs.REQUIRED if name not in own]
    if missing:
        raise BrokenTaskError(
            f"lacks the hook{'s' * (len(missing) > 1)} {', '.join(missing)}; see docs/reference/hooks.md"
        )
    for name in own.keys() - {"score"}:
        if any(inspect.iscoroutinefunction(implementation.function) for implementation in own[name]):
            raise BrokenTaskError(f"{name} is async; only score may be")
    for implementation in own.get("score_completion", []):
        if not (implementation.wrapper or implementation.hookwrapper):
            raise BrokenTaskError(
                "score_completion belongs to the SDK; write score, or wrap it with @hookimpl(wrapper=True)"
            )


def check_spelling(manager: pluggy.PluginManager, plugin: object, specs: ModuleType) -> None:
    """Refuse unmarked functions named like a hook, marked functions that are no hook, and arguments with a default."""
    known = [name for name, value in vars(specs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
    for name in known:
        if _is_own_function(plugin, name) and not hasattr(getattr(plugin, name), f"{hookspecs.PROJECT}_impl"):
            raise BrokenTaskError(f"{name} has the name of a hook but lacks @hookimpl; mark it or rename it")
    for caller in manager.get_hookcallers(plugin) or []:
        if not caller.has_spec():
            hint = did_you_mean(caller.name, known).strip() or f"the hooks are {', '.join(known)}"
            raise BrokenTaskError(f"{caller.name} is marked with @hookimpl, but no hook has that name; {hint}")
        assert caller.spec is not None
        for implementation in caller.get_hookimpls():
            ignored = [name for name in implementation.kwargnames if name in caller.spec.argnames]
            if ignored:
                raise BrokenTaskError(
                    f"{caller.name} gives {ignored[0]} a default, so pluggy never passes it; remove the default"
                )


def _is_own_function(plugin: object, name: str) -> bool:
    """Whether the author wrote it: `from numpy.linalg import solve` is not a misspelt hook."""
    value: Any = inspect.getattr_static(plugin, name, None)
    if not inspect.isroutine(value):
        return False
    home = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    return (getattr(value, "__module__", None) or "").partition(".")[0] == home.partition(".")[0]
