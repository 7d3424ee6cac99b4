"""One dataset of reasoning-gym as a task: its hooks.

Problems and scores are reasoning-gym's own. How an entry becomes JSON is in `entries.py`, its configuration
in `config.py`, and which scorers evaluate text in `scorers.py`.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tinyzero_reasoning_gym.config import make_config, options_type
from tinyzero_reasoning_gym.entries import known_answers, to_entry, to_ground_truth
from tinyzero_reasoning_gym.guard import find_unread, holds_more
from tinyzero_reasoning_gym.library import draw_entry, find_classes, make_dataset
from tinyzero_reasoning_gym.scorers import why_unsafe
from tinyzero_reasoning_gym.unsupported import FAILED_CHECKS, UNSOUND, UNSUPPORTED, WAIVED_CHECKS
from tinyzero_sdk import Item, Score, TaskInfo, hookimpl
from tinyzero_sdk.errors import SettingsError, TaskNotFoundError
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Split
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.text import last_tagged

ANSWER_RULE = "Put the final answer alone between <answer> and </answer>."
_MALFORMED = Score(0.0, correct=False, reason="malformed")
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
RAISING = frozenset({"boxnet", "coin_flip", "game_of_life", "prime_factorization"})
"""Datasets whose scorers raise on a text that they cannot read. A test looks for others in every version."""

BLOCK = 64
"""Entries drawn from one dataset of reasoning-gym, which it may take a quarter of a second to make."""


class DatasetTask:
    """The hooks of `rg/NAME`."""

    def __init__(self, dataset: str) -> None:
        """
        Args:
            dataset: reasoning-gym's name for it.

        Raises:
            TaskNotFoundError: the dataset cannot be a task.
        """
        if dataset in UNSUPPORTED:
            raise TaskNotFoundError(f"rg/{dataset} is not supported: {UNSUPPORTED[dataset]}")
        self._dataset = dataset
        self._class, self._config_type = find_classes(dataset)
        allow = f"rg/{dataset} is not supported: {UNSOUND.get(dataset)}; task.allow_unsound=true takes it as it is"
        self._options_type = options_type(self._config_type, refusal=allow if dataset in UNSOUND else "")
        self._scorer = lru_cache(maxsize=4)(self._make_scorer)
        self._unsafe = why_unsafe(make_dataset(dataset, self._config_type(seed=0, size=1)))

    def _make_scorer(self, options: Any) -> Any:
        return make_dataset(self._dataset, make_config(self._config_type, options, seed=0, size=1))

    @hookimpl
    def info(self) -> TaskInfo:
        doc = _LINK.sub(r"\1", (self._class.__doc__ or "").strip().partition("\n")[0])
        failed = [check for check, names in FAILED_CHECKS.items() if self._dataset in names]
        finds = f" (`tinyzero check` fails: {', '.join(failed)})" if failed else ""
        return TaskInfo(
            description=(doc or self._dataset.replace("_", " ")) + finds,
            ability=self._class.__module__.split(".")[1],
            waivers={check: why for check, (why, names) in WAIVED_CHECKS.items() if self._dataset in names},
            unsafe_scorer=self._unsafe,
        )

    @hookimpl
    def options(self) -> type:
        return self._options_type

    @hookimpl
    def generate_dataset(self, split: Split, size: int, seed: int, start: int, options: Any) -> Iterator[Item]:
        for block in range(start // BLOCK, -(-(start + size) // BLOCK)):
            # An entry's own seed is the dataset's plus its index, so datasets must start far apart: hence the hash.
            first = derive_seed("rg", self._dataset, split, seed, block) % (2**32 - BLOCK)
            dataset = make_dataset(self._dataset, make_config(self._config_type, options, seed=first, size=BLOCK))
            begin, end = max(start - block * BLOCK, 0), min(start + size - block * BLOCK, BLOCK)
            for index in range(begin, end):
                yield Item(to_ground_truth(draw_entry(dataset, index)))

    @hookimpl
    def make_prompt(self, item: Item, template: str) -> str | list[Message]:
        question = item.ground_truth["question"].strip()
        match template:
            case "base":
                return (
                    "A conversation between User and Assistant. The Assistant first thinks step by step between "
                    f"<think> and </think>. {ANSWER_RULE}\nUser: {question}\nAssistant: <think>"
                )
            case "chat":
                return [{"role": "user", "content": f"{question}\n\nThink step by step. {ANSWER_RULE}"}]
            case "compact":
                return f"{question}\n"
        raise SettingsError(f"rg/{self._dataset} has no prompt template {template!r}; it has base, chat, compact")

    @hookimpl
    def extract_answer(self, completion: str) -> str | None:
        return last_tagged(completion)

    @hookimpl
    def score(self, answer: str, ground_truth: dict[str, str | None], options: Any) -> Score:
        entry = to_entry(ground_truth)
        value = self._value(answer, entry, options)
        if value is None:
            return _MALFORMED
        known = list(known_answers(entry))
        if value == 1.0:
            if answer in known or not find_unread(answer, known, lambda text: self._value(text, entry, options) == 1.0):
                return Score(1.0, correct=True)
            value = 0.0
        elif not answer.strip() or holds_more(answer, known):
            value = 0.0
        return Score(value if options.reward == "partial" else 0.0, correct=False, reason="wrong")

    def _value(self, answer: str, entry: dict[str, Any], options: Any) -> float | None:
        """What reasoning-gym's scorer gives; None = it cannot read the answer."""
        try:
            return float(self._scorer(options).score_answer(answer, entry))
        except (RecursionError, OverflowError):  # nested as deeply, or as large, as no answer is
            return None
        except Exception as error:
            # Elsewhere what is raised is a fault, which the host counts; else it would look like a poor model.
            if self._dataset not in RAISING or isinstance(error, MemoryError):
                raise
            return None

    @hookimpl
    def difficulty(self, item: Item) -> float:
        """The entry's own where it has a number for it, else how much there is to read: thousands of characters."""
        own = to_entry(item.ground_truth)["metadata"].get("difficulty")
        if isinstance(own, int | float) and not isinstance(own, bool):
            return float(own)
        return len(item.ground_truth["question"]) / 1000

    @hookimpl
    def item_key(self, item: Item) -> str:
        return hashlib.blake2b(item.ground_truth["question"].encode(), digest_size=16).hexdigest()

    @hookimpl
    def solve(self, item: Item, options: Any) -> str | None:
        for answer in known_answers(to_entry(item.ground_truth)):
            completion = f"<answer>{answer}</answer>"
            extracted = last_tagged(completion)
            # An unsafe scorer is not asked: an item may come from a file.
            if extracted and (self._unsafe or self.score(extracted, item.ground_truth, options).correct):
                return completion
        return None
