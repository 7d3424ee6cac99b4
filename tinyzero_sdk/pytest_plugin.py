"""The pytest plugin: `pytest --tinyzero-task countdown` checks a task, one test for each law, with no code.

It is loaded in everybody's pytest, so it imports nothing but pytest until the option is given.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tinyzero_sdk.testing import Checker, Law


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinyzero", "tasks of the TinyZero SDK")
    group.addoption(
        "--tinyzero-task",
        action="append",
        default=[],
        metavar="'TASK [task.KEY=VALUE ...]'",
        help="Check a task, by name or file, against the laws of the conformance kit; may be repeated.",
    )
    group.addoption("--tinyzero-examples", type=int, default=200, metavar="N", help="Completions that a law draws.")
    group.addoption("--tinyzero-seed", type=int, default=0, metavar="N", help="Of the items, and of all choices.")
    group.addoption(
        "--tinyzero-allow-unsafe-scorers", action="store_true", help="Check a scorer that its task calls unsafe."
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Put the tasks beside the directories and files of the session."""
    report = yield
    if isinstance(collector, pytest.Session) and report.passed:
        tasks = collector.config.getoption("--tinyzero-task")
        report.result.extend(TaskCollector.from_parent(collector, name=words, nodeid=words) for words in tasks)
    return report


class TaskCollector(pytest.Collector):
    """A task: its laws are its tests."""

    def collect(self) -> Iterator["LawItem"]:
        from tinyzero_sdk.errors import TinyZeroError

        try:
            from tinyzero_sdk.testing import LAWS

            self.checker = self._open()
        except TinyZeroError as error:
            raise self.CollectError(str(error)) from None
        self.config.add_cleanup(self.checker.close)
        for law in LAWS:
            yield LawItem.from_parent(self, name=law.name, law=law)

    def _open(self) -> "Checker":
        from tinyzero_sdk.tasks.spec import load_task_from_line
        from tinyzero_sdk.testing import Checker

        unsafe = self.config.getoption("--tinyzero-allow-unsafe-scorers")
        return Checker(
            load_task_from_line(self.name, allow_unsafe_scorers=unsafe),
            examples=self.config.getoption("--tinyzero-examples"),
            seed=self.config.getoption("--tinyzero-seed"),
        )


class Broken(Exception):
    """A law is broken; the message is the report."""


class LawItem(pytest.Item):
    """One law for one task. A law that is waived is expected to fail; one that cannot be judged is skipped."""

    def __init__(self, *, law: "Law", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.law = law

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, TaskCollector)
        result = parent.checker.check(self.law)
        if result.status == "not checked":
            pytest.skip(f"not checked: {result.why}")
        if result.is_needless_waiver:
            pytest.skip(f"waived, but kept; remove the waiver: {result.why}")
        if result.status == "waived":
            pytest.xfail(f"waived: {result.why}")
        if result.status == "broken":
            raise Broken(result.tell())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Broken) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.law.name}"
