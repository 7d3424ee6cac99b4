"""Completions of a run that are kept to be read: Parquet files in `completions/`.

All held-out completions of an evaluation, and of a training step all completions of a few problems: chosen at random,
so that they are a fair sample. `tinyzero score` reads the files too.
"""

import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from rich import filesize
from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Task
from tinyzero_sdk.console import plural
from tinyzero_sdk.data.files import replacing
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config.run import LogConfig
from tinyzero_trainer.types import EXAMPLE, Rollout

SECONDS = 60.0
"""The most that a process which is killed loses, and the least time between two files of a long run."""

_WORD = pa.dictionary(pa.int16(), pa.string())

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("split", _WORD),  # train or heldout
        ("decoding", _WORD),  # sampled or greedy
        ("task", _WORD),  # its name in the run
        ("problem", pa.string()),  # its key
        ("sample", pa.int32()),  # number of the completion among those of the problem
        ("difficulty", pa.float32()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("answer", pa.string()),
        ("ground_truth", pa.json_()),
        ("data", pa.json_()),  # the problem's other columns, of which prompts and difficulties are made
        ("reason", _WORD),
        ("score", pa.float64()),  # as it was given: rescoring compares exactly
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("correct", pa.bool_()),
        ("finished", pa.bool_()),
        ("num_tokens", pa.int32()),
        ("advantage", pa.float32()),  # mean over its tokens; none where it was not trained on
        ("token_ends", pa.list_(pa.int32())),  # where each token ends in `completion`, in characters
        ("logprobs", pa.list_(pa.float32())),  # of each token, as the rollout engine had it
        ("entropies", pa.list_(pa.float32())),  # of the policy at each token in the update, to 0.001
    ]
)

Split = Literal["train", "heldout"]
_FILE = re.compile(r"(?:train|heldout)_(\d+)_\d+\.parquet")  # first and last step; others are not ours


class CompletionLog:
    """Collects rows and writes them now and then; rows that cannot be written are lost, which is told once."""

    def __init__(
        self,
        directory: Path,
        config: LogConfig,
        tasks: Mapping[str, Task],
        tokenizer: PreTrainedTokenizerBase,
        warn: Callable[[str], None],
    ) -> None:
        self.directory, self.config, self.tasks, self.warn = directory, config, tasks, warn
        self._ends = TokenEnds(tokenizer)
        self._rows: dict[Split, list[dict[str, Any]]] = {"train": [], "heldout": []}
        self._written = -SECONDS  # the first step's are written at once
        self._lost = 0  # files that could not be written

    def train(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep all completions of some of a step's problems, as many of each task; of examples those with a task."""
        every, by_task = self.config.rollouts_every, dict[str, dict[int, list[Rollout]]]()
        if not every or step % every:
            return
        for rollout in filter(self._can_score, rollouts):
            by_task.setdefault(rollout.prompt.task, {}).setdefault(id(rollout.prompt), []).append(rollout)
        chance = random.Random(derive_seed("completions", step))
        for groups in by_task.values():
            size = len(next(iter(groups.values())))
            count = max(1, self.config.rollouts_count // len(by_task) // size)
            for group in chance.sample(list(groups.values()), min(count, len(groups))):
                self._add("train", step, "example" if group[0].score is EXAMPLE else "sampled", group)
        if time.monotonic() - self._written >= SECONDS:
            self.write()

    def held_out(self, step: int, decoding: str, rollouts: Sequence[Rollout]) -> None:
        """Keep the completions of an evaluation: all those of its first problems."""
        left = self.config.held_out_count
        for _, group in groupby(rollouts, key=lambda rollout: id(rollout.prompt)):
            completions = list(group)
            if (left := left - len(completions)) < 0:
                break
            self._add("heldout", step, decoding, completions)

    def write(self) -> None:
        """Write what has been collected; before each checkpoint, so that no file reaches past one."""
        for split, rows in self._rows.items():
            if rows:
                steps = [row["step"] for row in rows]
                path = self.directory / f"{split}_{min(steps):08d}_{max(steps):08d}.parquet"
                try:
                    self.directory.mkdir(exist_ok=True)  # but not a run's directory that is gone
                    with replacing(path) as temporary:
                        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), temporary, compression="zstd")
                except (OSError, DataError) as error:
                    if not self._lost:
                        self.warn(f"{error}; the run goes on without these completions")
                    self._lost += 1
                rows.clear()
        self._written = time.monotonic()

    def cut_after(self, step: int) -> None:
        """Remove the completions of all steps after the one that the run is resumed from."""
        for path in self.directory.glob("*.parquet"):
            if (match := _FILE.fullmatch(path.name)) and int(match[1]) > step:
                path.unlink(missing_ok=True)

    def summary(self) -> list[str]:
        """Where they are and how many bytes, and how many files could not be written: a line, where there are any."""
        files = list(self.directory.glob("*.parquet"))
        if not files and not self._lost:
            return []
        text = f"completions: {self.directory} ({filesize.decimal(sum(path.stat().st_size for path in files))})"
        return [f"{text}; {plural(self._lost, 'file')} could not be written" if self._lost else text]

    def _add(self, split: Split, step: int, decoding: str, group: Sequence[Rollout]) -> None:
        self._rows[split] += [self._row(split, step, decoding, number, rollout) for number, rollout in enumerate(group)]

    def _can_score(self, rollout: Rollout) -> bool:
        """Whether it has a score, or is an example that its task may score here: a demonstration can be wrong."""
        if rollout.score is not EXAMPLE:
            return True
        task, item = self.tasks.get(rollout.prompt.task), rollout.prompt.item
        if task is None or task.info.unsafe_scorer or task.is_async:
            return False
        return item.ground_truth is not None

    def _row(self, split: Split, step: int, decoding: str, number: int, rollout: Rollout) -> dict[str, Any]:
        prompt, generation, score = rollout.prompt, rollout.generation, rollout.score
        task = self.tasks.get(prompt.task)
        if task is not None and score is EXAMPLE:
            score = task.score_completion(rollout.text, prompt.item.ground_truth)
        has_tokens = generation.logprobs is not None or rollout.entropies is not None
        return {
            "step": step,
            "split": split,
            "decoding": decoding,
            "sample": number,
            "task": prompt.task,
            "problem": None if task is None else task.item_key(prompt.item),
            "difficulty": None if task is None else task.difficulty(prompt.item),
            "prompt": prompt.text,
            "completion": rollout.text,
            "answer": score.answer,
            "ground_truth": json.dumps(prompt.item.ground_truth),
            "data": json.dumps(prompt.item.data),
            "reason": score.reason,
            "score": score.value,
            "parts": list(score.parts.items()),
            "correct": score.correct,
            "finished": generation.finished,
            "num_tokens": len(generation.token_ids),
            "advantage": rollout.advantage,
            "token_ends": self._ends.find(generation.token_ids, rollout.text) if has_tokens else None,
            "logprobs": generation.logprobs and list(generation.logprobs),
            # Rounded, a token takes one byte on disk and not four.
            "entropies": rollout.entropies and [round(entropy, 3) for entropy in rollout.entropies],
        }


class TokenEnds:
    """Finds where each token of a completion ends in its text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}  # the text of each token that has been seen, by itself

    def find(self, token_ids: Sequence[int], text: str) -> list[int] | None:
        """In characters; None where that cannot be told, as where a token is half a character."""
        if new := list({*token_ids} - self._pieces.keys()):
            pieces = self.tokenizer.batch_decode([[token] for token in new], skip_special_tokens=True)
            self._pieces.update(zip(new, pieces, strict=True))
        pieces = [self._pieces[token] for token in token_ids]
        return list(accumulate(map(len, pieces))) if "".join(pieces) == text else None
