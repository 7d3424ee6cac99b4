"""Plain callables for the hooks of one task.

Calling a hook through pluggy costs about 1 µs. A hook with one implementation and no wrapper, which is nearly every
hook, is called directly instead, with the same result.
"""

from collections.abc import Callable
from typing import Any

from pluggy import HookCaller


def bind(hook: HookCaller, options: Any) -> Callable[..., Any]:
    """A callable that takes the hook's arguments by position and adds `options` itself.

    It ignores later registrations: bind after the last one. Without an implementation it returns None.
    """
    assert hook.spec is not None
    names = tuple(name for name in hook.spec.argnames if name != "options")
    takes_options = len(names) < len(hook.spec.argnames)
    implementations = hook.get_hookimpls()
    if len(implementations) != 1 or implementations[0].wrapper or implementations[0].hookwrapper:
        fixed = {"options": options} if takes_options else {}
        return lambda *values: hook(**dict(zip(names, values, strict=True)), **fixed)

    function, parameters = implementations[0].function, tuple(implementations[0].argnames)
    if parameters == names:
        return function
    if parameters == (*names, "options"):
        return lambda *values: function(*values, options)
    # An implementation may take fewer arguments, and in any order.
    indices = [(*names, "options").index(name) for name in parameters]
    return lambda *values: function(*[(*values, options)[index] for index in indices])
