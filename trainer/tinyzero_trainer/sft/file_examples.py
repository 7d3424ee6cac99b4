"""Examples of a file: the right ones of scored completions, chat messages, prompts with completions, or problems."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tinyzero_sdk import Item, Task
from tinyzero_sdk.console import plural
from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.rows import (
    HELD_OUT,
    extra_info,
    ground_truth_of,
    is_held_out,
    read_messages,
    read_prompt,
    row_to_item,
)
from tinyzero_sdk.data.sources import Rows, open_rows
from tinyzero_sdk.errors import BrokenTaskError, DataError, ExhaustedError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.scoring.outputs import PARTS, RESULT_COLUMNS
from tinyzero_sdk.seeds import derive_seed, split_of_key
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.prompts import EVALUATION_SEED
from tinyzero_trainer.data.tokenization import REASONING, turn_text
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.sft.examples import Encoder, ExampleSource, demonstration
from tinyzero_trainer.types import Rollout

KINDS = (
    "expected a scored completion (completion, correct), messages, prompt and completion, or a problem that a --task "
    "completes (ground_truth)"
)
REFUSED = (
    "is of a held-out problem, and accuracy is measured on those; take training problems (tinyzero eval --split train)"
)
OTHER_FORMATS = {
    "output": "rename the columns of Alpaca's format: instruction (with its input) to prompt, output to completion",
    "conversations": "rename those of ShareGPT's format: conversations to messages, from to role, value to content",
}
TELLING = 20
"""Characters from which on a text of a held-out problem, such as its question, says which problem it is."""
NOT_OF_PROBLEM = {*RESULT_COLUMNS, PARTS, "completion", "token_count", "finished", "sample", "sampling"}


class Example(NamedTuple):
    prompt: str | list[Message]
    completion: str | None
    """None = the task makes it when it is read."""

    task: str | None = None
    """The run's name for its task, if the row is a scored completion of one."""

    item: Item | None = None
    """The problem, of a scored completion or by itself."""

    turn: Message | None = None
    """The message whose content the completion is, with its reasoning."""


class ExampleFile:
    """Which examples a file has, as places: [examples, 2] row and turn in it. Rows are read when they are needed."""

    def __init__(self, path: str, config: SftConfig, tasks: Mapping[str, Task], *, learned: bool = True) -> None:
        """Read the file once, to find its examples.

        Args:
            path: as `open_rows` takes it, or a run, for the completions it has kept of its training problems.
            config: of the run.
            tasks: of the run.
            learned: whether the examples are to learn from, and not for the held-out loss alone.

        Raises:
            DataError: a row is no example, it is of a held-out problem, or there is no example.
        """
        self._arguments = (path, config, tasks)
        kept_by_run = sorted(Path(path).expanduser().glob("completions/train_*.parquet"))
        self.path, self._tasks, self._learned, self._hook = path, tasks, learned, config.data.hook
        self._of_run = bool(kept_by_run)
        splits = ("train",) if learned else HELD_OUT
        self._rows = Rows(kept_by_run) if kept_by_run else open_rows(path, splits, config.data.columns)
        self.asks_tasks = False  # whether a task makes a completion
        self._wrong = 0  # completions that are wrong, or were cut off
        self._seed = config.run.seed
        self._test_fraction, self._eval_problems = config.data.test_fraction, config.eval.num_problems
        of_loss = learned and config.data.test_path is None
        self._compares = config.data.test_path is not None
        places: dict[bool, array[int]] = {True: array("q"), False: array("q")}
        self._problems = dict[int, int]()  # the row of each, by the hash of its key or of its prompt
        for row, turn, key in self._find(config.data.max_per_problem):
            held_out = of_loss and split_of_key(f"held-out loss of {key}", self._test_fraction) == "test"
            places[held_out].extend((row, turn))
        if not places[False]:  # too few to hold any out
            places = {False: places[True], True: array("q")}
        self.places, for_loss = (np.array(places[held_out]).reshape(-1, 2) for held_out in (False, True))
        if not len(self.places):
            wrong = plural(self._wrong, "completion")
            none_right = f"{path} has {wrong}, and none is right and whole; sample more of each problem"
            raise DataError(none_right if self._wrong else f"{path} has no example to train on; {KINDS}")
        self.held_out = (self, for_loss)  # a file, and the places in it
        if learned and config.data.test_path is not None:
            test = ExampleFile(config.data.test_path, config, tasks, learned=False)
            if both := self._problems.keys() & test._problems.keys():
                first, other = (file._rows.place(file._problems[min(both)]) for file in (self, test))
                raise DataError(
                    f"{plural(len(both), 'problem')} to learn from and held out as well, such as {first} and {other}; "
                    "remove them from one"
                )
            self._problems, test._problems = {}, {}
            self.held_out = (test, test.places)

    def __reduce__(self) -> tuple[Any, ...]:
        return ExampleFile, self._arguments

    @property
    def version(self) -> str:
        """A hash of its bytes."""
        return self._rows.digest

    def place(self, place: Sequence[int]) -> str:
        """File and row of an example."""
        return self._rows.place(place[0])

    def read(self, places: np.ndarray, template: str) -> list[Example]:
        """The examples at these places, complete; tasks make the prompts of their problems, by the template."""
        examples = []
        for (index, turn), row in zip(places.tolist(), self._rows.take(places[:, 0]), strict=True):
            example = self._examples(index, row)[turn]
            if example.task is not None and example.item is not None:
                example = example._replace(prompt=self._tasks[example.task].make_prompt(example.item, template))
                if example.completion is None:
                    example = example._replace(completion=self._completion(index, example.task, example.item))
            examples.append(example)
        return examples

    def _completion(self, index: int, task: str, item: Item) -> str:
        """What the task writes for a row's problem."""
        try:
            return demonstration(self._tasks[task], item, derive_seed("demonstration", self._seed, index), self._hook)
        except BrokenTaskError as error:
            raise DataError(
                f"{self._rows.place(index)}: {error}; a problem needs the ground truth and columns of the task's own"
            ) from error

    def _find(self, max_per_problem: int) -> Iterator[tuple[int, int, str]]:
        """Row and turn of each example, and the key of the row's problem or first prompt; see `data.max_per_problem`.

        By that key a conversation is held out whole or not at all.
        """
        taken, seen = Counter[int](), set[int]()  # of hashes: texts would take more memory than there may be
        whole = set[str | None]()  # tasks of which a row has been seen to hold a problem whole
        for index, row in enumerate(self._rows):
            examples = self._examples(index, row)
            self._wrong += not examples
            of_row = None
            for turn, example in enumerate(examples):
                if example.item is None:
                    key = _text(example.prompt)
                    lines = {key.strip(), *map(str.strip, key.splitlines())}
                    if self._learned and not lines.isdisjoint(self._held_out_prompts):
                        raise DataError(f"{self._rows.place(index)} {REFUSED}")
                    self._check_held_out(index, row)
                else:
                    if example.completion is None and example.task is not None:
                        if not self.asks_tasks:
                            self._completion(index, example.task, example.item)  # it may make none
                        self.asks_tasks = True
                    try:
                        key = self._key(index, row, example.task, example.item)
                        if example.task is not None and example.task not in whole:  # what training logs needs it too
                            self._tasks[example.task].difficulty(example.item)
                            whole.add(example.task)
                    except BrokenTaskError as error:
                        own = "" if self._of_run or not example.prompt else "; without --task, its own prompt is taken"
                        raise DataError(
                            f"{self._rows.place(index)}: {error}; a problem needs the columns that the task gives it"
                            f"{own}"
                        ) from error
                    pair = hash((key, example.completion))
                    if pair in seen or taken[hash(key)] == max_per_problem:
                        continue
                    seen.add(pair)
                    taken[hash(key)] += 1
                if self._compares:
                    problem = str(_unwrapped(example.prompt)) if example.item is None else key
                    self._problems.setdefault(hash(problem), index)
                of_row = of_row or key
                yield index, turn, of_row

    def _check_held_out(self, index: int, row: Row) -> None:
        """Refuse a row with a prompt and completion of its own that says of itself that its problem is held out."""
        name, item = self._task_of(row), None
        with suppress(DataError, BrokenTaskError):  # it says nothing of a problem
            item = _problem(row) if name is None else self._own_problem(row, name)
        try:
            self._key(index, row, name, item)
        except BrokenTaskError:  # the ground truth is of another task
            self._key(index, row, None, None)

    def _examples(self, index: int, row: Row) -> list[Example]:
        """The examples of a row: none of a completion that is wrong or was cut off; each turn of the assistant."""
        completion, messages, prompt = (row.get(name) for name in ("completion", "messages", "prompt"))
        try:
            if isinstance(completion, str) and row.get("correct") is not None:
                if row["correct"] not in (0, 1):
                    raise DataError(f"correct is {row['correct']!r:.20}, expected true or false")
                if not row["correct"] or row.get("finished") is False:
                    return []
                task = self._task_of(row)
                if prompt is None and task is None:
                    raise DataError("no prompt; expected it in the column `prompt`, or give the task that makes it")
                if task is None and self._of_run:
                    raise DataError("a run keeps its prompts as the model read them; give the --task that makes them")
                item = (task and self._own_problem(row, task)) or _problem(row)
                thought = {key: row[key] for key in REASONING if isinstance(row.get(key), str)}
                turn = {"role": "assistant", "content": completion, **thought}
                return [Example("" if prompt is None else read_prompt(prompt), completion, task, item, turn)]
            if row.get("tools") and (messages or completion):
                raise DataError("it offers tools, of which no chat template is told here; remove the row")
            if messages is not None:
                return _spoken(read_messages(messages), 1)
            if prompt is not None and completion is not None:
                before = read_prompt(prompt)
                if isinstance(completion, str):
                    if not completion:
                        raise DataError("the completion is empty")
                    return [Example(before, completion)]
                after = read_messages(completion)
                if not isinstance(before, str):
                    return _spoken([*before, *after], len(before))
                if len(after) > 1:
                    raise DataError("the completion has several messages, and the prompt is text; expected messages")
                return [example._replace(prompt=before) for example in _spoken(after, 0)]
            task = self._task_of(row) if completion is None else None
            if task is not None and (problem := self._own_problem(row, task)) is not None:
                return [Example("", None, task, problem)]
        except DataError as error:
            raise DataError(f"{self._rows.place(index)}: {error}") from None
        advice = "".join(f"; {text}" for column, text in OTHER_FORMATS.items() if column in row)
        raise DataError(f"{self._rows.place(index)} has the columns {', '.join(row)}; {KINDS}{advice}")

    def _own_problem(self, row: Row, task: str) -> Item | None:
        """The problem of a row without a completion, also as its authors publish it, or verl's scripts keep it."""
        if (published := self._tasks[task].read_row(extra_info(row))) is not None:
            return published
        with suppress(DataError):
            item = _problem(row)
            return replace(item, ground_truth=self._tasks[task].read_truth(item.ground_truth))
        return self._tasks[task].read_row(row)

    def _task_of(self, row: Row) -> str | None:
        """The run's name for the task of a scored row; a run's only task need not be named in it."""
        task_name = row.get("task") or row.get("data_source")
        if task_name is None and len(self._tasks) == 1:
            return next(iter(self._tasks))
        names = (task_name, str(task_name).rpartition("/")[2])  # verl's have an owner
        return next((name for name, task in self._tasks.items() if name in names or task.name in names), None)

    def _key(self, index: int, row: Row, name: str | None, item: Item | None) -> str:
        """The key of a row's problem.

        Raises:
            DataError: the problem is held out.
        """
        held_out, key = is_held_out(row), str(extra_info(row).get("key") or (item and item.ground_truth))
        if name is not None and item is not None:
            task = self._tasks[name]
            key = task.item_key(item)
            if task.has_own_splits:
                held_out |= key in self._held_out_keys[name]
            else:
                held_out |= split_of_key(key, self._test_fraction) == "test"
        if held_out and self._learned:
            raise DataError(f"{self._rows.place(index)} {REFUSED}")
        return f"{name} {key}"

    @cached_property
    def _held_out_keys(self) -> dict[str, set[str]]:
        """Keys of the held-out problems of each task whose data are divided already."""
        with_splits = {name: task for name, task in self._tasks.items() if task.has_own_splits}
        return {name: set(map(task.item_key, self._test_problems(task, None))) for name, task in with_splits.items()}

    @cached_property
    def _held_out_prompts(self) -> set[str]:
        """What is asked in the problems by which accuracy is measured, by a task's templates and in its own columns."""
        prompts = set[str]()
        for task in self._tasks.values():
            for item in self._test_problems(task, None if task.has_own_splits else self._eval_problems):
                prompts.update(_text(prompt).strip() for prompt in task.templates(item).values())
                columns = (value.strip() for value in item.data.values() if isinstance(value, str))
                prompts.update(text for text in columns if len(text) >= TELLING)
        return prompts

    def _test_problems(self, task: Task, most: int | None) -> Iterator[Item]:
        """The first problems of the test split, or all."""
        fraction = DEFAULT_TEST_FRACTION if task.has_own_splits else self._test_fraction
        with suppress(ExhaustedError):  # there are fewer
            yield from task.dataset("test", most, seed=EVALUATION_SEED, test_fraction=fraction)


class FileExamples(ExampleSource):
    """The examples of a file, each once per epoch, in another order each time."""

    def __init__(self, config: SftConfig, file: ExampleFile, tasks: Mapping[str, Task], encoder: Encoder) -> None:
        super().__init__(config)
        self.what, self._config, self._file, self._tasks, self._encoder = file.path, config, file, tasks, encoder
        template = "chat" if encoder.tokenizer.chat_template else "base"
        self._too_long = set[tuple[int, ...]]()  # places of examples, which are not tokenized again
        self._template, self._epoch = config.data.prompt_template or template, -1

    def examples(self, numbers: Sequence[int]) -> list[Rollout]:
        places = [self._place(*divmod(number, len(self._file.places))) for number in numbers]
        places = [place for place in places if tuple(place) not in self._too_long]
        examples = self._encoded(self._file, np.array(places, np.int64).reshape(-1, 2))
        pairs = zip(places, examples, strict=True)
        self._too_long.update(tuple(place) for place, example in pairs if not self.fits(example))
        return examples

    def held_out(self, count: int) -> list[Rollout]:
        file, places = self._file.held_out
        return self.fitting(self._encoded(file, places[:count]))

    def _place(self, epoch: int, number: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._file.places)))
            Random(derive_seed("epoch", self.seed, epoch)).shuffle(self._order)
        place: np.ndarray = self._file.places[self._order[number]]
        return place

    def _encoded(self, file: ExampleFile, places: np.ndarray) -> list[Rollout]:
        examples = file.read(places, self._template)
        if not self._encoder.tokenizer.chat_template:
            examples = [example._replace(prompt=_unwrapped(example.prompt)) for example in examples]
        prompts = []
        for place, example in zip(places.tolist(), examples, strict=True):
            try:
                prompts.append(self._encoder.prompt(example.prompt, example.item, example.task or ""))
            except ModelError as error:
                raise DataError(f"{file.place(place)}: {error}") from error
        chat = [not isinstance(example.prompt, str) for example in examples]
        tokenizer = self._encoder.tokenizer
        texts = [
            turn_text(tokenizer, example.prompt, example.turn) if example.turn else example.completion or ""
            for example in examples
        ]
        return self._encoder.examples(prompts, texts, chat)


def _problem(row: Row) -> Item:
    if {"problem", "decoding"} <= row.keys():  # a run's, which keeps the problem's columns in one
        return Item(ground_truth_of(row), row.get("data") or {})
    return row_to_item({name: value for name, value in row.items() if name not in NOT_OF_PROBLEM})


def _spoken(turns: list[Message], first: int) -> list[Example]:
    """Each text of the assistant from the message `first` on."""
    examples = [
        Example(turns[:place], turn["content"], turn=turn)
        for place, turn in enumerate(turns)
        # It may be empty, as before a tool's answer; a weight of 0 says that it is not to be learned.
        if place >= first and turn["role"] == "assistant" and turn["content"] and turn.get("weight") != 0
    ]
    if not examples:
        raise DataError("no message of the assistant with text follows another")
    return examples


def _unwrapped(prompt: str | list[Message]) -> str | list[Message]:
    """A prompt that a data file had to hold as a message, as text."""
    return prompt[0]["content"] if not isinstance(prompt, str) and len(prompt) == 1 else prompt


def _text(prompt: str | list[Message]) -> str:
    """What is asked: the prompt, or its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]
