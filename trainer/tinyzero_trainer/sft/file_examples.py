"""Examples of a file: the right ones of scored completions, chat messages, prompts with completions, or problems."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinyzero_sdk import Item, Task
from tinyzero_sdk.console import plural
from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.rows import ground_truth_of, is_prompt, row_to_item
from tinyzero_sdk.data.sources import Rows, open_rows
from tinyzero_sdk.errors import BrokenTaskError, DataError, ExhaustedError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.scoring.outputs import PARTS, RESULT_COLUMNS
from tinyzero_sdk.seeds import derive_seed, split_of_key
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.prompts import EVALUATION_SEED
from tinyzero_trainer.sft.examples import Encoder, ExampleSource, demonstration
from tinyzero_trainer.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
ROLES = ("system", "developer", "user", "assistant", "tool")
NOT_OF_PROBLEM = {*RESULT_COLUMNS, PARTS, "completion", "token_count", "finished", "sample", "sampling"}


class Example(NamedTuple):
    prompt: str | list[Message]
    completion: str | None
    """None = the task makes it when it is read."""

    task: str | None = None
    """The run's name for its task, if the row is a scored completion of one."""

    item: Item | None = None
    """The problem, of a scored completion or by itself."""


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
        of_run = sorted(Path(path).expanduser().glob("completions/train_*.parquet"))
        self.path, self._tasks, self._learned = path, tasks, learned
        self._rows = Rows(of_run) if of_run else open_rows(path)
        self.first_chat: str | None = None  # the first row that needs a chat template
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
            self.held_out, self.first_chat = (test, test.places), self.first_chat or test.first_chat

    def __reduce__(self) -> tuple[Any, ...]:
        return ExampleFile, self._arguments

    @property
    def version(self) -> str:
        """A hash of its bytes."""
        return self._rows.digest

    def require_template(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raise a DataError if an example needs a chat template, and the model's tokenizer has none."""
        if self.first_chat and not tokenizer.chat_template:
            raise DataError(
                f"{self.first_chat} has several messages, and the model no chat template; give a --model with one"
            )

    def read(self, places: np.ndarray, template: str) -> list[Example]:
        """The examples at these places, complete; tasks make the prompts of their problems, by the template."""
        found = []
        for (index, turn), row in zip(places.tolist(), self._rows.take(places[:, 0]), strict=True):
            example = self._examples(index, row)[turn]
            if example.task is not None and example.item is not None:
                example = example._replace(prompt=self._tasks[example.task].make_prompt(example.item, template))
                if example.completion is None:
                    example = example._replace(completion=self._completion(index, example.task, example.item))
            found.append(example)
        return found

    def _completion(self, index: int, task: str, item: Item) -> str:
        """What the task writes for a row's problem."""
        try:
            return demonstration(self._tasks[task], item, derive_seed("demonstration", self._seed, index))
        except BrokenTaskError as error:
            raise DataError(
                f"{self._rows.place(index)}: {error}; a problem needs the ground truth and columns of the task's own"
            ) from error

    def _find(self, max_per_problem: int) -> Iterator[tuple[int, int, str]]:
        """Row, turn, and the key of the problem or the prompt of each example; see `data.max_per_problem`."""
        taken, seen = Counter[int](), set[int]()  # of hashes: texts would take more memory than there may be
        whole = set[str | None]()  # tasks of which a row has been seen to hold a problem whole
        for index, row in enumerate(self._rows):
            examples = self._examples(index, row)
            self._wrong += not examples
            for turn, example in enumerate(examples):
                if example.task is None and not isinstance(example.prompt, str) and len(example.prompt) > 1:
                    self.first_chat = self.first_chat or self._rows.place(index)
                if example.item is None:
                    key = _text(example.prompt)
                    if self._learned and key in self._held_out_prompts:
                        raise DataError(f"{self._rows.place(index)} {REFUSED}")
                    item = None
                    with suppress(DataError):  # it says nothing of a problem
                        item = _problem(row)
                    try:
                        self._key(index, row, self._task_of(row), item)  # for its refusal
                    except BrokenTaskError:  # the ground truth is of another task
                        self._key(index, row, None, None)
                else:
                    if example.completion is None and example.task is not None and not taken:
                        self._completion(index, example.task, example.item)  # it may make none
                    try:
                        key = self._key(index, row, example.task, example.item)
                        if example.task is not None and example.task not in whole:  # what training logs needs it too
                            self._tasks[example.task].difficulty(example.item)
                            whole.add(example.task)
                    except BrokenTaskError as error:
                        raise DataError(
                            f"{self._rows.place(index)}: {error}; a problem needs the columns that the task gives it"
                        ) from error
                    pair = hash((key, example.completion))
                    if pair in seen or taken[hash(key)] == max_per_problem:
                        continue
                    seen.add(pair)
                    taken[hash(key)] += 1
                if self._compares:
                    self._problems.setdefault(hash(str(example.prompt) if example.item is None else key), index)
                yield index, turn, key

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
                return [Example("" if prompt is None else _prompt(prompt), completion, task, _problem(row))]
            if messages is not None:
                turns = _messages(messages)
                spoken = [place for place, turn in enumerate(turns) if place and turn["role"] == "assistant"]
                spoken = [place for place in spoken if turns[place]["content"]]  # it may have called a tool instead
                if not spoken:
                    raise DataError("no message of the assistant with text follows another")
                return [Example(turns[:place], turns[place]["content"]) for place in spoken]
            if prompt is not None and completion is not None:
                text = completion if isinstance(completion, str) else _messages(completion)[-1]["content"]
                if not text:
                    raise DataError("the completion is empty")
                return [Example(_prompt(prompt), text)]
            task = self._task_of(row) if completion is None else None
            if task is not None and (item := self._own_problem(row, task)) is not None:
                return [Example("", None, task, item)]
        except DataError as error:
            raise DataError(f"{self._rows.place(index)}: {error}") from None
        advice = "".join(f"; {text}" for column, text in OTHER_FORMATS.items() if column in row)
        raise DataError(f"{self._rows.place(index)} has the columns {', '.join(row)}; {KINDS}{advice}")

    def _own_problem(self, row: Row, task: str) -> Item | None:
        """The problem of a row without a completion, also as its authors publish it, or verl's scripts keep it."""
        extra = row.get("extra_info")
        if isinstance(extra, Mapping) and (published := self._tasks[task].read_row(extra)) is not None:
            return published
        with suppress(DataError):
            return _problem(row)
        return self._tasks[task].read_row(row)

    def _task_of(self, row: Row) -> str | None:
        """The run's name for the task of a scored row; a run's only task need not be named in it."""
        named = row.get("task") or row.get("data_source")
        if named is None and len(self._tasks) == 1:
            return next(iter(self._tasks))
        known = (named, str(named).rpartition("/")[2])  # verl's have an owner
        return next((name for name, task in self._tasks.items() if name in known or task.name in known), None)

    def _key(self, index: int, row: Row, name: str | None, item: Item | None) -> str:
        """The key of a row's problem.

        Raises:
            DataError: the problem is held out.
        """
        extra = row.get("extra_info")
        extra = extra if isinstance(extra, Mapping) else {}
        held_out, key = extra.get("split") == "test", str(extra.get("key") or (item and item.ground_truth))
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
        """Of the tasks whose data are divided already."""
        own = {name: task for name, task in self._tasks.items() if task.has_own_splits}
        return {name: set(map(task.item_key, self._test_problems(task, None))) for name, task in own.items()}

    @cached_property
    def _held_out_prompts(self) -> set[str]:
        """Of the problems by which accuracy is measured, as a task's templates write them."""
        found = set[str]()
        for task in self._tasks.values():
            for item in self._test_problems(task, self._eval_problems):
                found.update(map(_text, task.templates(item).values()))
        return found

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
        found = self._encoded(self._file, np.array(places, np.int64).reshape(-1, 2))
        self._too_long.update(tuple(place) for place, one in zip(places, found, strict=True) if not self.fits(one))
        return found

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
        found = file.read(places, self._template)
        if not self._encoder.tokenizer.chat_template:
            found = [example._replace(prompt=_unwrapped(example.prompt)) for example in found]
        prompts = [self._encoder.prompt(example.prompt, example.item, example.task or "") for example in found]
        chat = [not isinstance(example.prompt, str) for example in found]
        return self._encoder.examples(prompts, [example.completion or "" for example in found], chat)


def _problem(row: Row) -> Item:
    if {"problem", "decoding"} <= row.keys():  # a run's, which keeps the problem's columns in one
        return Item(ground_truth_of(row), row.get("data") or {})
    return row_to_item({name: value for name, value in row.items() if name not in NOT_OF_PROBLEM})


def _prompt(value: Any) -> str | list[Message]:
    if value == "":
        raise DataError("the prompt is empty")
    return value if isinstance(value, str) else _messages(value)


def _messages(value: Any) -> list[Message]:
    if isinstance(value, str) or not is_prompt(value):
        raise DataError(f"got {value!r:.80}, expected messages with role and content")
    for message in value:
        if message["role"] not in ROLES:
            raise DataError(f"a message has the role {message['role']!r:.40}, expected one of {', '.join(ROLES)}")
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _unwrapped(prompt: str | list[Message]) -> str | list[Message]:
    """A prompt that a data file had to hold as a message, as text."""
    return prompt[0]["content"] if not isinstance(prompt, str) and len(prompt) == 1 else prompt


def _text(prompt: str | list[Message]) -> str:
    """What is asked: the prompt, or its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]
