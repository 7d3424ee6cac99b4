"""Checking a task: `check_task` for all properties, `Checker` for one at a time."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tinyzero_sdk.errors import BrokenTaskError, ExhaustedError, SettingsError
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.cases import Case, cases_path, read_cases
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.properties import check_names, find_properties
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.report import Report, Result, Status, replay_command
from tinyzero_sdk.testing.task_under_test import TaskUnderTest
from tinyzero_sdk.workers.process import ClosesOnExit

DEFAULT_EXAMPLES = 200
ASYNC_EXAMPLES = 10
"""Examples for an asynchronous scorer, whose calls may cost money."""


def check_task(
    task: Task,
    *,
    properties: Sequence[str] = (),
    examples: int | None = None,
    seed: int = 0,
    cases: Sequence[Case] | None = None,
    on_result: Callable[[Result], object] = lambda result: None,
) -> Report:
    """Check a task for the properties of docs/tasks/conformance.md.

    Args:
        task: from `load_task`.
        properties: their names; all for none.
        examples: completions drawn for each property; None = 200, or 10 if `score` is asynchronous. Agreement with the
            oracle is tested on `MANY_FACTOR` times as many, for `MANY_SECONDS` at most.
        seed: of the items and of all choices.
        cases: labelled completions; None = those that the task ships, and those in `./TASK.cases.jsonl`.
        on_result: called after each property.

    Raises:
        SettingsError: a name, given or waived, is unknown, or a waiver has no reason.
        BrokenTaskError: a hook other than the scorer's raised, or returned a wrong type.

    Example:
        >>> from tinyzero_sdk import load_task
        >>> check_task(load_task("countdown"), properties=["gold-scores-full"], examples=20).passed
        True
    """
    results = []
    with Checker(task, examples=examples, seed=seed, cases=cases) as checker:
        for prop in find_properties(properties, task):
            results.append(checker.check(prop))
            on_result(results[-1])
    return Report(task.name, task.version, seed, tuple(results))


class Checker(ClosesOnExit):
    """Checks one task; as a context manager it ends its processes with the block."""

    def __init__(
        self, task: Task, *, examples: int | None = None, seed: int = 0, cases: Sequence[Case] | None = None
    ) -> None:
        """Take the arguments of `check_task`."""
        if examples is None:
            examples = ASYNC_EXAMPLES if task.is_async else DEFAULT_EXAMPLES
        if examples < 1 or seed < 0:
            raise SettingsError(f"got examples={examples}, seed={seed}; expected at least 1 example, a seed from 0")
        task.check_scoring_allowed()
        check_waivers(task)
        self.task = task
        cases = known_cases(task) if cases is None else cases
        self._subject = TaskUnderTest(task, seed=seed, examples=examples, cases=cases)
        self._causes: dict[str, str] = {}  # the check that told of each

    def close(self) -> None:
        self._subject.close()

    def check(self, prop: Property) -> Result:

        def look() -> Failure | None:
            for hook in prop.needs:
                if not getattr(self.task.plugin_manager.hook, hook).get_hookimpls():
                    raise NotChecked(f"no {hook}; add the hook `{hook}`")
            if prop.needs_judge and self.task.info.judge is None:
                raise NotChecked("info names no judge")
            if prop.watches_calls and self.task.is_async:
                raise NotChecked("score is async, and its calls overlap")
            try:
                return prop.examine(self._subject) if prop.examine else self._subject.search(prop)
            except (BrokenTaskError, ExhaustedError) as error:
                return Failure(str(error), "a task whose hooks do what docs/reference/hooks.md says")

        return self._result(prop, look)

    def replay(self, prop: Property, sample: TestCompletion) -> Result:
        """Test one completion for a property of completions.

        Raises:
            SettingsError: the property is about something else, or needs a label that is missing.
        """
        if prop.test is None:
            raise SettingsError(f"check {prop.name!r} is not about single completions; run it without a replay")
        if sample.right is None and prop.needs_label:
            raise SettingsError(f'check {prop.name!r} compares with a label; add "correct": true or false to the case')

        def look() -> Failure | None:
            assert prop.test is not None
            self._subject.tried += 1
            outcome = self._subject.observe(sample, oracle="all" if prop.with_oracle else "", memory=prop.with_memory)
            failure = prop.test(self._subject, sample, outcome)
            return None if failure is None else replace(failure, sample=sample)

        return self._result(prop, look)

    def _result(self, prop: Property, look: Callable[[], Failure | None]) -> Result:
        subject = self._subject
        started, subject.tried = time.perf_counter(), 0
        waiver = self.task.info.waivers.get(prop.name, "")
        try:
            failure = look()
        except NotChecked as obstacle:
            seconds = time.perf_counter() - started
            return Result(prop, "waived" if waiver else "not checked", 0, seconds, waiver or str(obstacle))
        status: Status = "waived" if waiver else "failed" if failure else "passed"
        result = Result(prop, status, subject.tried, time.perf_counter() - started, waiver, failure)
        if failure is None:
            return result
        if status == "failed" and (cause := _CAUSE.search(failure.got)):
            first = self._causes.setdefault(cause["line"] or cause[0], prop.name)
            if first != prop.name:
                return replace(result, status="not checked", why=f"{first} fails for the same reason", failure=None)
        replay = replay_command(self.task, prop, failure, seed=subject.seed, examples=subject.examples)
        sample, case = failure.sample, None
        if sample is not None:
            right = sample.right if sample.right is not None else subject.observe(sample, oracle="all").oracle
            if right is not None:
                case = Case(sample.completion, sample.ground_truth, right, f"fails {prop.name}")
        return replace(result, replay=replay, case=case)


_CAUSE = re.compile(r"task '.+?': \w+ (?:returned|found)|raised .*(?P<line>\(\S+:\d+\))|has only 0 different")
"""What failures of one cause have in common: the hook that returns what it must not, or the line that raises."""


def check_waivers(task: Task) -> None:
    """Refuse waivers of unknown properties, and those without a reason."""
    check_names(list(task.info.waivers), f"a waiver of task {task.name!r}: ")
    for name, reason in task.info.waivers.items():
        if not isinstance(reason, str) or not reason.strip():
            raise SettingsError(f"task {task.name!r} waives {name} without a reason; write why in info().waivers")


def local_cases_path(task: Task) -> Path:
    """Where `tinyzero check --save` and `tinyzero fuzz` keep a task's cases: in the current directory."""
    return Path(f"{task.name.replace('/', '-')}.cases.jsonl")


def known_cases(task: Task, *more: Path) -> list[Case]:
    """The cases that a task ships, those in the current directory, and those of other files; each file once."""
    own = [path for path in (cases_path(task), local_cases_path(task)) if path.is_file()]
    paths = {path.resolve(): path for path in (*own, *more)}
    return [case for path in paths.values() for case in read_cases(path)]
