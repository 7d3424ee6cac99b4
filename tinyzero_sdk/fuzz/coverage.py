"""Line coverage of a task's own code: an answer that reaches a new line is worth mutating further.

From Python 3.12, `sys.monitoring` reports each line once at no further cost, so every attempt is traced. Before,
tracing is slow, and only a sample of the attempts is traced.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Self

from tinyzero_sdk.tasks.task import Task

DEFAULT_FRACTION = 1.0 if sys.version_info >= (3, 12) else 1 / 16  # fraction of the attempts that are traced
_Tracer = Callable[[FrameType, str, Any], Any]


class Coverage:
    """A context manager that traces its block; `grew` is whether a line was reached for the first time."""

    def __init__(self, task: Task) -> None:
        self.grew = False
        plugin: Any = task.plugin_manager.get_plugin("task")
        module = plugin if isinstance(plugin, ModuleType) else sys.modules[type(plugin).__module__]
        file = Path(module.__file__ or "")
        self._is_package = file.name == "__init__.py"
        self._home = f"{file.parent}/" if self._is_package else str(file)
        self._lines: set[tuple[str, int]] = set()
        self._own: dict[str, bool] = {}
        if sys.version_info >= (3, 12):
            self._watch()

    @property
    def count(self) -> int:
        """Number of lines reached so far."""
        return len(self._lines)

    def __enter__(self) -> Self:
        self.grew = False
        if sys.version_info < (3, 12):
            sys.settrace(self._trace_call)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.version_info < (3, 12):
            sys.settrace(None)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> _Tracer | None:
        return self._trace_line if self._is_own(frame.f_code.co_filename) else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> _Tracer:
        if event == "line":
            self._reach(frame.f_code.co_filename, frame.f_lineno)
        return self._trace_line

    def _reach(self, file: str, line: int) -> None:
        if (file, line) not in self._lines:
            self._lines.add((file, line))
            self.grew = True

    def _is_own(self, file: str) -> bool:
        known = self._own.get(file)
        if known is None:
            known = self._own[file] = file.startswith(self._home) if self._is_package else file == self._home
        return known

    if sys.version_info >= (3, 12):

        def _watch(self) -> None:
            monitoring = sys.monitoring
            tool = next(number for number in range(6) if monitoring.get_tool(number) is None)
            monitoring.use_tool_id(tool, "tinyzero fuzz")

            def on_line(code: CodeType, line: int) -> object:
                if self._is_own(code.co_filename):
                    self._reach(code.co_filename, line)
                return monitoring.DISABLE

            monitoring.register_callback(tool, monitoring.events.LINE, on_line)
            monitoring.set_events(tool, monitoring.events.LINE)
