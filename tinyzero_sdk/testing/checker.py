"""Checking a task against the laws: `check_task`, and `Checker` for those who take one law at a time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tinyzero_sdk.errors import BrokenTaskError, SettingsError
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.cases import Case, cases_path, read_cases
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.properties import Failure, Law, NotChecked, check_names, find_laws
from tinyzero_sdk.testing.report import Report, Result, as_case, replay_command
from tinyzero_sdk.testing.task_under_test import Bench

DEFAULT_EXAMPLES = 200


def check_task(
    task: Task,
    *,
    laws: Sequence[str] = (),
    examples: int = DEFAULT_EXAMPLES,
    seed: int = 0,
    cases: Sequence[Case] | None = None,
    on_result: Callable[[Result], object] = lambda result: None,
) -> Report:
    """Check a task against the laws of docs/conformance.md.

    Args:
        task: from `load_task`.
        laws: names of laws; all for none.
        examples: how many completions a law draws; the bulk search takes `bench.HUNT_FACTOR` times as many,
            for `bench.HUNT_SECONDS` at most.
        seed: of the items and of all choices.
        cases: labelled completions; None = those that the task ships, and those in `./TASK.cases.jsonl`.
        on_result: called after each law.

    Raises:
        SettingsError: there is no such law, or the task waives one that there is not, or without a reason.
        BrokenTaskError: a hook outside the score raised, or returned what it may not.

    Example:
        >>> from tinyzero_sdk import load_task
        >>> check_task(load_task("countdown"), laws=["gold-scores-full"], examples=20).passed
        True
    """
    results = []
    with Checker(task, examples=examples, seed=seed, cases=cases) as checker:
        for law in find_laws(laws):
            results.append(checker.check(law))
            on_result(results[-1])
    return Report(task.name, task.version, seed, tuple(results))


class Checker:
    """A task under examination; as a context manager it ends its processes with the block."""

    def __init__(
        self, task: Task, *, examples: int = DEFAULT_EXAMPLES, seed: int = 0, cases: Sequence[Case] | None = None
    ) -> None:
        """As `check_task`."""
        if examples < 1 or seed < 0:
            raise SettingsError(f"got examples={examples}, seed={seed}; expected at least 1 example, a seed from 0")
        task.check_scoring_allowed()
        check_waivers(task)
        self.task = task
        self._bench = Bench(task, seed=seed, examples=examples, cases=known_cases(task) if cases is None else cases)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End its processes."""
        self._bench.close()

    def check(self, law: Law) -> Result:
        """Look for a failure of one law."""
        return self._judge(law, lambda: self._look(law))

    def replay(self, law: Law, case: Case | Sample) -> Result:
        """Judge one completion by a law about completions.

        Raises:
            SettingsError: the law is about something else, or asks for a label that is not given.
        """
        if law.problem is None:
            raise SettingsError(f"law {law.name!r} is not about single completions; check it without a replay")
        if isinstance(case, Case):
            case = Sample(case.completion, case.ground_truth, case.note, right=case.correct)
        sample = case
        if sample.right is None and law.needs_label:
            raise SettingsError(f'law {law.name!r} compares with a label; add "correct": true or false to the case')

        def look() -> Failure | None:
            assert law.problem is not None
            self._bench.tried += 1
            problem = law.problem(self._bench, sample)
            return None if problem is None else Failure(problem.got, problem.expected, sample)

        return self._judge(law, look)

    def _judge(self, law: Law, look: Callable[[], Failure | None]) -> Result:
        started, self._bench.tried = time.perf_counter(), 0
        reason = self.task.info.waivers.get(law.name, "")
        try:
            failure = look()
        except NotChecked as obstacle:
            seconds = time.perf_counter() - started
            if reason:
                return Result(law, "waived", 0, seconds, reason)
            return Result(law, "not checked", 0, seconds, str(obstacle))
        result = Result(law, "kept", self._bench.tried, time.perf_counter() - started, reason, failure)
        if failure is None:
            return replace(result, status="waived") if reason else result
        bench = self._bench
        replay = replay_command(self.task, law, failure, seed=bench.seed, examples=bench.examples)
        return replace(result, status="waived" if reason else "broken", replay=replay, case=self._as_case(law, failure))

    def _look(self, law: Law) -> Failure | None:
        for hook in law.needs:
            if not getattr(self.task.plugin_manager.hook, hook).get_hookimpls():
                raise NotChecked(f"no {hook}; add the hook `{hook}`")
        try:
            return law.examine(self._bench) if law.examine else self._bench.search(law)
        except BrokenTaskError as error:
            return Failure(str(error), "a task whose hooks do what docs/hooks.md says")

    def _as_case(self, law: Law, failure: Failure) -> Case | None:
        """The failure as a labelled case: as it was made, or as the oracle says."""
        sample = failure.sample
        if sample is None:
            return None
        right = sample.right
        if right is None:
            right = self._bench.observe(sample, oracle=True).oracle
        return None if right is None else as_case(sample, right=right, note=f"breaks {law.name}")


def check_waivers(task: Task) -> None:
    """Refuse waivers of laws that there are not, and those without a reason.

    Raises:
        SettingsError: says which.
    """
    check_names(list(task.info.waivers), f"task {task.name!r} waives")
    for name, reason in task.info.waivers.items():
        if not isinstance(reason, str) or not reason.strip():
            raise SettingsError(f"task {task.name!r} waives {name} without a reason; write why in info().waivers")


def local_cases_path(task: Task) -> Path:
    """Where `tinyzero check --save` and `tinyzero fuzz` keep a task's cases: in the current directory."""
    return Path(f"{task.name.replace('/', '-')}.cases.jsonl")


def known_cases(task: Task, *more: Path) -> list[Case]:
    """The cases that a task ships, those in the current directory, and those of other files; each file once."""
    found = [path for path in (cases_path(task), local_cases_path(task)) if path.is_file()]
    paths = {path.resolve(): path for path in (*found, *more)}
    return [case for path in paths.values() for case in read_cases(path)]
