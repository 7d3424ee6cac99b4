"""Grade-school word problems: the hooks of the task `gsm8k`.

Problems come from `problems.py` (a file) or `synthetic.py` (templates); `numbers.py` reads and compares answers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from tinyzero_gsm8k.numbers import read_number
from tinyzero_gsm8k.problems import Problem, read_problems, shuffled
from tinyzero_gsm8k.synthetic import synthetic_problem
from tinyzero_sdk import Item, Score, TaskInfo, hookimpl
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Split
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.text import last_tagged

ANSWER_RULE = "The answer is a number alone between <answer> and </answer>, such as <answer>42</answer>."


@dataclass(frozen=True)
class Gsm8kOptions:
    """Where the problems come from."""

    source: Literal["file", "synthetic"] = "file"
    """`file` = the file at `path`; `synthetic` = made from a few templates, for trying things out."""

    path: str = ""
    """A Parquet or JSON Lines file with the columns `question` and `answer`, the result after `####`."""

    def __post_init__(self) -> None:
        if self.source == "synthetic" and self.path:
            raise ValueError(f"task.path={self.path!r} has no effect with task.source=synthetic; give only one of them")


@hookimpl
def info() -> TaskInfo:
    return TaskInfo(description="solve grade-school word problems, from a file or from templates")


@hookimpl
def options() -> type:
    return Gsm8kOptions


@hookimpl
def generate_dataset(split: Split, size: int, seed: int, start: int, options: Gsm8kOptions) -> Iterator[Item]:
    problems: Iterable[Problem]
    if options.source == "synthetic":
        seeds = (derive_seed("gsm8k", split, seed, index) for index in range(start, start + size))
        problems = map(synthetic_problem, seeds)
    elif options.path:
        problems = shuffled(read_problems(options.path), seed)[start : start + size]
    else:
        raise SettingsError(
            "gsm8k has no problems of its own: give a file in GSM8K's format with task.path=FILE, "
            "or take made-up ones with task.source=synthetic"
        )
    return (_item(problem, options.source) for problem in problems)


def _item(problem: Problem, source: str) -> Item:
    data = {"question": problem.question, "answer": problem.solution, "source": source}
    return Item(ground_truth=problem.result, data=data)


@hookimpl
def make_prompt(item: Item, template: str) -> str | list[Message]:
    question = item.data["question"]
    match template:
        case "base":
            return (
                "A conversation between User and Assistant. The Assistant first thinks step by step between <think> "
                f"and </think>. {ANSWER_RULE}\nUser: {question}\nAssistant: <think>"
            )
        case "chat":
            return [{"role": "user", "content": f"{question}\n\nThink step by step. {ANSWER_RULE}"}]
        case "compact":
            return f"{question}\n"
    raise SettingsError(f"gsm8k has no prompt template {template!r}; it has base, chat, compact")


@hookimpl
def extract_answer(completion: str) -> str | None:
    """Between tags, as the prompt asks; without tags what follows the last `####`, as GSM8K's own solutions end."""
    tagged = last_tagged(completion)
    if tagged is not None:
        return tagged
    _, marker, rest = completion.rpartition("</think>")[2].rpartition("####")
    return rest.partition("\n")[0].strip() if marker else None


@hookimpl
def score(answer: str, ground_truth: str | int) -> Score:
    number, truth = read_number(answer), read_number(str(ground_truth))
    if truth is None:
        raise DataError(f"the ground truth is {ground_truth!r}, expected a number")
    if number is None:
        return Score(0.0, correct=False, reason="malformed")
    if number == truth:
        return Score(1.0, correct=True)
    return Score(0.0, correct=False, reason="wrong")


@hookimpl
def difficulty(item: Item) -> float:
    """Steps of the solution: its lines before `####`."""
    steps = item.data["answer"].partition("####")[0]
    return float(sum(bool(line.strip()) for line in steps.splitlines()))


@hookimpl
def item_key(item: Item) -> str:
    """The question, but for case and spacing."""
    question = " ".join(item.data["question"].casefold().split())
    return blake2b(question.encode(), digest_size=16).hexdigest()


@hookimpl
def solve(item: Item) -> str:
    steps = item.data["answer"].partition("####")[0].strip()
    return f"{steps}\n<answer>{item.ground_truth}</answer>"
