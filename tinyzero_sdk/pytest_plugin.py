"""The pytest plugin: `pytest --tinyzero-task countdown` checks a task, one test for each check, with no code.

Every pytest run of the environment loads it, so it imports nothing but pytest until the option is given.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tinyzero_sdk.testing import Property


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinyzero", "tasks of the TinyZero SDK")
    group.addoption(
        "--tinyzero-task",
        action="append",
        default=[],
        metavar="'TASK [task.KEY=VALUE ...]'",
        help="Check a task, by name or path, with the conformance kit. Repeatable.",
    )
    group.addoption("--tinyzero-examples", type=int, metavar="N", help="Completions sampled for each check.")
    group.addoption("--tinyzero-seed", type=int, default=0, metavar="N", help="Seed of the items and of all choices.")
    group.addoption(
        "--tinyzero-allow-unsafe-scorers", action="store_true", help="Check a scorer that its task marks as unsafe."
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Collect the tasks after the directories and files of the session."""
    report = yield
    if isinstance(collector, pytest.Session) and report.passed:
        tasks = collector.config.getoption("--tinyzero-task")
        report.result.extend(TaskCollector.from_parent(collector, name=words, nodeid=words) for words in tasks)
    return report


class TaskCollector(pytest.Collector):
    """A task: its checks are its tests."""

    def collect(self) -> Iterator["PropertyItem"]:
        from tinyzero_sdk.errors import TinyZeroError

        try:
            from tinyzero_sdk.tasks.registry import load_task_from_line
            from tinyzero_sdk.testing import Checker, find_properties

            option = self.config.getoption
            task = load_task_from_line(self.name, allow_unsafe_scorers=option("--tinyzero-allow-unsafe-scorers"))
            self.checker = Checker(task, examples=option("--tinyzero-examples"), seed=option("--tinyzero-seed"))
        except TinyZeroError as error:
            raise self.CollectError(str(error)) from None
        self.config.add_cleanup(self.checker.close)
        for prop in find_properties([], task):
            yield PropertyItem.from_parent(self, name=prop.name, prop=prop)


class PropertyItem(pytest.Item):
    """One check of one task. A waived check is expected to fail; one that lacks a hook is skipped."""

    def __init__(self, *, prop: "Property", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.prop = prop

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, TaskCollector)
        result = parent.checker.check(self.prop)
        if result.status == "not checked":
            pytest.skip(f"not checked: {result.why}")
        if result.is_needless_waiver:
            pytest.skip(f"waived, but passes; remove the waiver: {result.why}")
        if result.status == "waived":
            pytest.xfail(f"waived: {result.why}")
        if result.status == "failed":
            pytest.fail(result.describe(), pytrace=False)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.prop.name}"
