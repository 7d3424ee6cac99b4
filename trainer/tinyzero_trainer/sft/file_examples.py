"""Examples of a file: the right ones of scored completions, chat messages, or prompts with completions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any

from tinyzero_sdk import Item, Task
from tinyzero_sdk.data.rows import plain, row_to_item
from tinyzero_sdk.data.sources import Rows, open_rows
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.seeds import derive_seed, split_of_key
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.sft.examples import Encoder, ExampleSource
from tinyzero_trainer.types import Rollout

KINDS = "expected a scored completion (completion, correct), or messages, or prompt and completion"

Pair = tuple[str | list[Message], str, Item | None]
"""A prompt, its completion, and the problem where the row has one."""


class FileExamples(ExampleSource):
    """The examples of `data.path`, each once per epoch, in another order each time."""

    def __init__(self, config: SftConfig, tasks: Mapping[str, Task], encoder: Encoder) -> None:
        """Read the file once, to find its examples.

        Raises:
            DataError: a row is no example, it is of a held-out problem, or no example is left to train on.
        """
        super().__init__(config)
        self.what, self._config, self._encoder = str(config.data.path), config, encoder
        # Which task a row is of is said by its `data_source`; a file of a single task need not say it.
        self._tasks, self._epoch = tasks, -1
        self._templates: dict[str, str | None] = {}
        self._rows = open_rows(self.what)
        places = list(self._places(self._rows))
        self._places_trained = [place for place, key in places if not self._is_for_loss(key)]
        self._places_held_out = [place for place, key in places if self._is_for_loss(key)]
        if not self._places_trained:
            raise DataError(f"{self.what} has no example to train on; {KINDS}")

    def __len__(self) -> int:
        """Number of examples that are trained on in an epoch."""
        return len(self._places_trained)

    def examples(self, numbers: Sequence[int]) -> list[Rollout]:
        return [self._encoded(self._rows, self._ordered(*divmod(number, len(self)))) for number in numbers]

    def _ordered(self, epoch: int, place: int) -> tuple[int, int]:
        """The row and turn at a place of an epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(self._places_trained)
            Random(derive_seed("epoch", self.seed, epoch)).shuffle(self._order)
        return self._order[place]

    def held_out(self, count: int) -> list[Rollout]:
        path = self._config.data.test_path
        rows = self._rows if path is None else open_rows(path)
        places = self._places_held_out if path is None else [place for place, _ in self._places(rows)]
        return self.fitting(self._encoded(rows, place) for place in places[:count])

    def _is_for_loss(self, key: str) -> bool:
        data = self._config.data
        return data.test_path is None and split_of_key(f"held-out loss of {key}", data.test_fraction) == "test"

    def _encoded(self, rows: Rows, place: tuple[int, int]) -> Rollout:
        prompt, completion, item = self._pairs(rows, place[0])[place[1]]
        encoded = self._encoder.prompt(prompt, item)
        return self._encoder.examples([encoded], [completion], chat=not isinstance(prompt, str))[0]

    def _places(self, rows: Rows) -> Iterator[tuple[tuple[int, int], str]]:
        """(row and turn, key of the problem or the prompt) of each example that is learned."""
        taken, seen = Counter[str](), set[tuple[str, str]]()
        for index in range(len(rows)):
            for turn, (prompt, completion, item) in enumerate(self._pairs(rows, index)):
                key = str(prompt)
                if item is not None:
                    key = self._key(rows, index, item)
                    if (key, completion) in seen or taken[key] == self._config.data.max_per_problem:
                        continue
                    seen.add((key, completion))
                    taken[key] += 1
                elif rows is self._rows and key in self._held_out_prompts:
                    raise self._refused(rows, index)
                yield (index, turn), key

    def _pairs(self, rows: Rows, index: int) -> list[Pair]:
        """The examples of a row; none of a completion that is wrong or was cut off."""
        row = rows[index]
        completion, messages = row.get("completion"), row.get("messages")
        if isinstance(completion, str) and row.get("correct") is not None:
            if not row["correct"] or row.get("finished") is False:
                return []
            task, item = self._task_of(row), row_to_item(row)
            return [(self._prompt(row) if task is None else self._made(task, item), completion, item)]
        if messages is not None:
            turns = self._messages(rows, index, messages)
            return [
                (turns[:place], turn["content"], None)
                for place, turn in enumerate(turns)
                if turn["role"] == "assistant" and place
            ]
        if row.get("prompt") is not None and completion is not None:
            if not isinstance(completion, str):
                completion = self._messages(rows, index, completion)[-1]["content"]
            return [(self._prompt(row), completion, None)]
        raise DataError(f"{rows.place(index)} has the columns {', '.join(row)}; {KINDS}")

    def _messages(self, rows: Rows, index: int, messages: Any) -> list[Message]:
        """The messages of a row, checked."""
        turns = plain(messages)
        if not (
            isinstance(turns, list)
            and turns
            and all(isinstance(turn, dict) and {*map(type, turn.values())} == {str} for turn in turns)
            and all(turn.keys() >= {"role", "content"} for turn in turns)
        ):
            raise DataError(f"{rows.place(index)}: got {turns!r:.80}, expected messages with role and content")
        return turns

    def _prompt(self, row: Mapping[str, Any]) -> str | list[Message]:
        """The prompt that a row holds."""
        prompt: str | list[Message] = plain(row["prompt"])
        return prompt

    def _task_of(self, row: Mapping[str, Any]) -> str | None:
        """The task of the run that a row is of."""
        names = [name for name, task in self._tasks.items() if row.get("data_source") in (name, task.name)]
        return next(iter([*names, *(self._tasks if len(self._tasks) == 1 else ())]), None)

    def _made(self, name: str, item: Item) -> str | list[Message]:
        """The prompt that the task makes of an item."""
        return self._tasks[name].make_prompt(item, self._source(name).template)

    def _source(self, name: str) -> PromptSource:
        data = self._config.data
        return PromptSource(
            self._tasks[name],
            self._encoder.tokenizer,
            name=name,
            prompt_template=data.prompt_template,
            test_fraction=data.test_fraction,
            max_prompt_tokens=data.max_length,
        )

    def _key(self, rows: Rows, index: int, item: Item) -> str:
        """What tells a row's problem from others.

        Raises:
            DataError: the problem is held out.
        """
        row = rows[index]
        name, extra = self._task_of(row), row.get("extra_info") or {}
        if name is None:
            held_out, key = extra.get("split") == "test", str(extra.get("key") or item.ground_truth)
        else:
            task = self._tasks[name]
            key = task.item_key(item)
            if task.has_own_splits:
                held_out = key in self._held_out_keys[name]
            else:
                held_out = split_of_key(key, self._config.data.test_fraction) == "test"
        if held_out and rows is self._rows:
            raise self._refused(rows, index)
        return f"{name} {key}"

    @cached_property
    def _held_out_keys(self) -> dict[str, set[str]]:
        """Of the tasks whose data are divided already."""
        return {
            name: {task.item_key(prompt.item) for prompt in self._source(name).held_out(2**31)}
            for name, task in self._tasks.items()
            if task.has_own_splits
        }

    @cached_property
    def _held_out_prompts(self) -> set[str]:
        """Of the problems by which accuracy is measured, as they stand in files of prompts."""
        count = self._config.eval.num_problems
        return {
            str(task.make_prompt(prompt.item, template))
            for name, task in self._tasks.items()
            for source in [self._source(name)]
            for prompt in source.held_out(count)
            for template in [source.template]
        }

    def _refused(self, rows: Rows, index: int) -> DataError:
        return DataError(
            f"{rows.place(index)} is of a held-out problem, and accuracy is measured on those; take completions of "
            "training problems (tinyzero eval --split train)"
        )
