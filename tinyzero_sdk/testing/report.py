"""The results of checking a task, as text and as JSON, with the command that replays a failure."""

import json
import os
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tinyzero_sdk.records import Json
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.cases import Case, parse_case
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.sandbox_child import short

Status = Literal["passed", "failed", "waived", "not checked"]

MOST_SHOWN = 240  # characters of a completion that are shown
_MOST_INLINE = 1500  # characters of a case in a command; a longer one is found again by the seed


@dataclass(frozen=True, slots=True)
class Result:
    prop: Property
    status: Status
    tried: int
    seconds: float
    why: str = ""
    """The task's reason for a waiver, or what is missing for the check."""

    failure: Failure | None = None
    case: Case | None = None
    """The failing completion as a labelled case, if it is known whether it is right."""

    replay: str = ""

    @property
    def is_needless_waiver(self) -> bool:
        return self.status == "waived" and self.failure is None

    def describe(self) -> str:
        """The failure in full, for a terminal of 80 columns; empty if there is none."""
        if self.failure is None:
            return ""
        facts: list[tuple[str, str]] = []
        sample = self.failure.sample
        if sample is not None:
            facts.append(("completion", show_text(sample.completion)))
            facts += [("", f"({sample.note})")] if sample.note else []
            facts.append(("ground truth", show_truth(sample.ground_truth)))
        facts += [("got", self.failure.got), ("expected", self.failure.expected)]
        head = [_wrap(f"{self.prop.name}: {self.prop.text}", ""), _wrap(self.prop.reason, "")]
        return "\n".join([*head, "", *(_wrap(text, f"  {name:14}") for name, text in facts), "", f"  {self.replay}"])


def _wrap(text: str, start: str) -> str:
    """`text` in lines of at most 79 columns, after `start` and then indented as far; words are never cut."""
    return textwrap.fill(
        " ".join(text.split("\n")),
        79,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True, slots=True)
class Report:
    task: str
    version: str
    seed: int
    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """No check failed that is not waived."""
        return not self.failed

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.status == "failed"]

    @property
    def unknown(self) -> str:
        """What these checks cannot know for lack of an oracle, and what would settle it; empty with an oracle."""
        if not any(result.status == "not checked" and "oracle" in result.prop.needs for result in self.results):
            return ""
        return (
            "not known without an oracle: whether wrong answers farther from gold are rewarded, and right ones in "
            "other words are not; the hook `oracle` settles it, or labelled cases of both"
        )

    def __getitem__(self, name: str) -> Result:
        return next(result for result in self.results if result.prop.name == name)

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON; lone surrogates stand in it as they are."""
        return {
            "task": self.task,
            "version": self.version,
            "seed": self.seed,
            "passed": self.passed,
            "unknown": self.unknown,
            "checks": [
                {
                    "check": result.prop.name,
                    "status": result.status,
                    "tried": result.tried,
                    "seconds": round(result.seconds, 3),
                    "why": result.why,
                    "failure": asdict(result.failure) if result.failure else None,
                    "replay": result.replay,
                }
                for result in self.results
            ],
        }


def show_text(text: str) -> str:
    """A completion as a Python expression in ASCII, shortened: nothing that a terminal would hide or obey."""
    return short(text, MOST_SHOWN)


def show_truth(truth: Any) -> str:
    shown = json.dumps(truth, default=repr)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"


def replay_command(task: Task, prop: Property, failure: Failure, *, seed: int, examples: int) -> str:
    """The command that shows a failure again: with its completion, or the seed if that is too long or missing."""
    words, sample = list[str](), failure.sample
    if sample is not None and prop.test is not None:
        words = replay_words(replace(sample, right=bool(sample.right)))
    return check_command(task, prop.name, words or ["--seed", str(seed), "--examples", str(examples)])


def check_command(task: Task, prop: str, words: Sequence[str]) -> str:
    """The command that runs one check of a task, with the task's options."""
    source = task.source
    if source.endswith(".py") and not (relative := os.path.relpath(source)).startswith(".."):
        source = relative if os.sep in relative else f"./{relative}"
    options = task.option_values.items()
    options_typed = [f"task.{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in options]
    start = ["tinyzero", "check", source, *options_typed]
    unsafe = ["--allow-unsafe-scorers"] if task.info.unsafe_scorer else []
    return shlex.join([*start, *unsafe, "--only", prop, *words])


def replay_words(sample: TestCompletion) -> list[str]:
    """The words that replay one completion, without a label if it is unknown; none if it is too long."""
    case: dict[str, Json] = {"completion": sample.completion, "ground_truth": sample.ground_truth}
    if sample.right is not None:
        case["correct"] = sample.right
    inline = json.dumps(case)
    return ["--replay", inline] if len(inline) <= _MOST_INLINE else []


def parse_replay(text: str) -> TestCompletion:
    """The completion of `--replay`: a labelled case, or one without its label.

    Raises:
        DataError: it is none.
    """
    try:
        row = json.loads(text)
        has_label = not isinstance(row, dict) or "correct" in row
    except (ValueError, RecursionError):
        has_label = True  # parse_case says what is wrong
    case = parse_case(text if has_label else json.dumps({**row, "correct": False}), "--replay")
    return TestCompletion(case.completion, case.ground_truth, case.note, right=case.correct if has_label else None)
