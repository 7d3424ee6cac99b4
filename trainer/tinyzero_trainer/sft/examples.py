"""Examples of a task, whose completions its hooks `demonstrate` and `solve` write; of a file: file_examples.py.

An example is a `Rollout` whose completion was not sampled from the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from sys import maxsize
from typing import TYPE_CHECKING, Literal

from tinyzero_sdk import Item, Task
from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.data.prompts import EVALUATION_SEED, PromptSource
from tinyzero_trainer.data.tokenization import continuing, encode_prompt, end_token
from tinyzero_trainer.types import EXAMPLE, Generation, Prompt, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_PROBLEMS = 20_000
"""Different problems of a task; after them the same come again, with other demonstrations."""

_ENOUGH = 64  # examples after which all are taken to be too long


def demonstration(task: Task, item: Item, seed: int, hook: Literal["auto", "demonstrate", "solve"] = "auto") -> str:
    """A completion of a problem by a task's hook; a TinyZeroError if the task has none such."""
    text = task.demonstrate(item, seed) if hook != "solve" else None
    if text is None and hook != "demonstrate":
        text = task.solve(item)
    if text is not None:
        return text
    hooks = "`demonstrate` or `solve`" if hook == "auto" else f"`{hook}`"
    raise TinyZeroError(
        f"task {task.name!r} makes no examples to learn from; add a hook {hooks}, or give a file of examples with "
        "data.path"
    )


class Encoder:
    """Examples as tokens for one model."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", eos_ids: Collection[int]) -> None:
        self.tokenizer = tokenizer
        self._eos_ids, self._ends = eos_ids, dict[bool, int]()
        # As those of Llama 2 and Phi-3 do, where a text begins.
        self._adds_space = tokenizer.tokenize("0")[0].startswith("▁")

    def prompt(self, prompt: str | list[Message], item: Item | None, task: str) -> Prompt:
        """Chat messages go through the model's chat template."""
        text, ids = encode_prompt(self.tokenizer, prompt)
        if not ids:
            raise DataError(f"the prompt {prompt!r:.80} has no tokens; an example needs one")
        return Prompt(item or Item(None), text, ids, task)

    def examples(self, prompts: Sequence[Prompt], completions: Sequence[str], chat: Sequence[bool]) -> list[Rollout]:
        """Completions of prompts, each with the end token; `chat` says which one: whether a prompt was of messages."""
        for of_chat in set(chat) - self._ends.keys():  # only when needed: a template may be broken
            self._ends[of_chat] = end_token(self.tokenizer, self._eos_ids, chat=of_chat)
        completions = [continuing(prompt.text, text) for prompt, text in zip(prompts, completions, strict=True)]
        encoded = self._ids(completions)
        if self._adds_space:  # which a completion does not have after a prompt of text
            before = self._ids([prompt.text for prompt in prompts])
            whole = self._ids([prompt.text + text for prompt, text in zip(prompts, completions, strict=True)])
            encoded = [
                ids if of_chat or both[: len(head)] != head else both[len(head) :]
                for ids, head, both, of_chat in zip(encoded, before, whole, chat, strict=True)
            ]
        return [
            Rollout(prompt, Generation([*ids, self._ends[of_chat]], None, finished=True), text, EXAMPLE)
            for prompt, ids, text, of_chat in zip(prompts, encoded, completions, chat, strict=True)
        ]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # One call for all: a tokenizer's cost is per call, not per text.
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return ids


class ExampleSource(ABC):
    """Examples of one task or file, in an order that a seed determines."""

    what: str
    """Its name in messages."""

    def __init__(self, config: SftConfig) -> None:
        self.max_length, self.seed, self._sampled = config.data.max_length, config.run.seed, 0

    @abstractmethod
    def examples(self, numbers: Sequence[int]) -> list[Rollout]:
        """The examples at these places of an endless stream, however long."""

    @abstractmethod
    def held_out(self, count: int) -> list[Rollout]:
        """At most `count` examples that are never sampled, for the held-out loss."""

    def skip(self, count: int) -> None:
        """Continue as if this many had been sampled."""
        self._sampled += count

    def sample(self, count: int) -> list[Rollout]:
        """The next `count` examples without those that are too long, but at least one."""
        first = self._sampled
        self._sampled += count
        batch = self.fitting(self.examples(range(first, self._sampled)))
        if not batch:
            batch = self.fitting(self.examples(range(self._sampled, self._sampled + _ENOUGH)))[:1]
        if not batch:
            raise TinyZeroError(
                f"all of {count + _ENOUGH} examples of {self.what} are longer than {self.max_length} tokens; raise "
                "data.max_length, or give a model with a longer context"
            )
        return batch

    def fitting(self, examples: Iterable[Rollout]) -> list[Rollout]:
        """The examples that are not too long."""
        return list(filter(self.fits, examples))

    def fits(self, example: Rollout) -> bool:
        """Whether it is not too long."""
        return len(example.prompt.token_ids) + len(example.generation.token_ids) <= self.max_length


class TaskExamples(ExampleSource):
    """Training problems of one task, with completions by its hook `demonstrate` or `solve`."""

    def __init__(self, config: SftConfig, name: str, task: Task, encoder: Encoder) -> None:
        super().__init__(config)
        data = config.data
        self.what, self._task, self._encoder, self._hook = f"task {name!r}", task, encoder, data.hook
        self._source = PromptSource(
            task,
            encoder.tokenizer,
            name=name,
            prompt_template=data.prompt_template,
            test_fraction=data.test_fraction,
            max_prompt_tokens=maxsize,  # what is too long is left out
        )
        self._unread = self._source.items(self.seed, MOST_PROBLEMS)
        first = next(self._unread)
        self._prompts = [self._source.prompt(first)]
        self._chat = not isinstance(task.make_prompt(first, self._source.template), str)

    def examples(self, numbers: Sequence[int]) -> list[Rollout]:
        for item in islice(self._unread, max(0, max(numbers) + 1 - len(self._prompts))):
            self._prompts.append(self._source.prompt(item))
        prompts = [self._prompts[number % len(self._prompts)] for number in numbers]
        return self._rollouts(prompts, [derive_seed("demonstration", self.seed, number) for number in numbers])

    def held_out(self, count: int) -> list[Rollout]:
        prompts = self._source.held_out(count)
        seeds = [derive_seed("demonstration", EVALUATION_SEED, number) for number in range(len(prompts))]
        return self.fitting(self._rollouts(prompts, seeds))

    def _rollouts(self, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Rollout]:
        pairs = zip(prompts, seeds, strict=True)
        texts = [demonstration(self._task, prompt.item, seed, self._hook) for prompt, seed in pairs]
        return self._encoder.examples(prompts, texts, [self._chat] * len(texts))
