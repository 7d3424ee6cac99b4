"""From a task's problems to prompts: an endless stream for training, a fixed list for evaluation."""

from collections.abc import Iterator
from itertools import islice

from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Item, Task
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import DataConfig
from tinyzero_trainer.models import encode_prompt
from tinyzero_trainer.records import Prompt

EVALUATION_SEED = 0
"""The held-out problems are the same in every run of a task, whatever the run's own seed."""


class PromptSource:
    """Problems of one task, worded for one model."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
        self._task, self._tokenizer, self._data = task, tokenizer, data
        self.template = data.template or ("chat" if tokenizer.chat_template else "base")

    def training(self, seed: int, skip: int = 0) -> Iterator[Prompt]:
        """Problems of the training split for ever: each once, then all again in another order.

        Args:
            seed: sets the order.
            skip: leave out the first so many; a resumed run goes on where it stopped.
        """
        return map(self.word, islice(self._endless(seed), skip, None))

    def held_out(self, count: int) -> list[Prompt]:
        """The first `count` problems of the test split."""
        items = self._task.dataset("test", count, seed=EVALUATION_SEED, test_share=self._data.test_share)
        return [self.word(item) for item in items]

    def some(self, most: int, seed: int) -> list[Prompt]:
        """Different problems of the training split: `most` of them, or all there are."""
        prompts: list[Prompt] = []
        try:
            for item in self._task.dataset("train", most, seed=seed, test_share=self._data.test_share):
                prompts.append(self.word(item))
        except DataError:
            if not prompts:
                raise
        return prompts

    def word(self, item: Item) -> Prompt:
        """The prompt of one problem.

        Raises:
            DataError: it is empty, or longer than `data.max_prompt_tokens`.
        """
        text, token_ids = encode_prompt(self._tokenizer, self._task.make_prompt(item, self.template))
        if not 0 < len(token_ids) <= self._data.max_prompt_tokens:
            raise DataError(
                f"a prompt of task {self._task.name!r} has {len(token_ids)} tokens, expected 1 to "
                f"data.max_prompt_tokens={self._data.max_prompt_tokens}; raise it or change the template"
            )
        return Prompt(item, text, token_ids)

    def _endless(self, seed: int) -> Iterator[Item]:
        epoch = 0
        while True:
            found = False
            try:
                order = derive_seed("epoch", seed, epoch)
                for item in self._task.dataset("train", seed=order, test_share=self._data.test_share):
                    found = True
                    yield item
            except DataError:
                if not found:
                    raise
            epoch += 1
