"""Plain callables for the hooks of one task.

Calling a hook through pluggy costs about 1 µs. Where a hook has one implementation and no wrapper, which
is nearly always, its function can as well be called directly; the result is the same.
"""

from collections.abc import Callable
from typing import Any

from pluggy import HookCaller


def bind(hook: HookCaller, options: Any) -> Callable[..., Any]:
    """A callable that takes the hook's arguments by position, without `options`, which it adds itself.

    Later registrations are not seen: bind after the last one. Without an implementation it returns None.
    """
    assert hook.spec is not None
    names = tuple(name for name in hook.spec.argnames if name != "options")
    takes_options = len(names) < len(hook.spec.argnames)
    implementations = hook.get_hookimpls()
    if len(implementations) != 1 or implementations[0].wrapper or implementations[0].hookwrapper:
        fixed = {"options": options} if takes_options else {}
        return lambda *values: hook(**dict(zip(names, values, strict=True)), **fixed)

    function, wanted = implementations[0].function, tuple(implementations[0].argnames)
    if wanted == names:
        return function
    if wanted == (*names, "options"):
        return lambda *values: function(*values, options)
    # An implementation may take fewer arguments, and in any order.
    places = [(*names, "options").index(name) for name in wanted]
    return lambda *values: function(*[(*values, options)[place] for place in places])
