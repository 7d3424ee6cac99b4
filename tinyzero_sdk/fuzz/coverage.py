"""Line coverage of a task's own code: an answer that reaches a new line is worth mutating further."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from tinyzero_sdk.tasks.task import Task

TRACED = 1 / 16
"""Fraction of the attempts that are traced, which is slow."""

_Tracer = Callable[[FrameType, str, Any], Any]


class Coverage:
    """A context manager that traces its block; `grew` is whether a line was reached for the first time."""

    def __init__(self, task: Task) -> None:
        self.grew = False
        file = task.module_file
        self._home = f"{file.parent}/" if file.name == "__init__.py" else str(file)
        self.lines: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        self.grew = False
        sys.settrace(self._trace_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> _Tracer | None:
        return self._trace_line if frame.f_code.co_filename.startswith(self._home) else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> _Tracer:
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in self.lines:
            self.lines.add(line)
            self.grew = True
        return self._trace_line
