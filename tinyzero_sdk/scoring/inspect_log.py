"""Write scored completions as a log of Inspect (https://inspect.aisi.org.uk), for its viewer and its data frames.

The log has schema version 2, which Inspect reads since 0.3. A problem is a sample, and its completions are epochs.
"""

import json
import os
import re
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tinyzero_sdk.data.arrow import Row, to_texts
from tinyzero_sdk.data.files import as_json, check_ending, replacing
from tinyzero_sdk.data.rows import find_ground_truth, is_prompt
from tinyzero_sdk.data.table import ALIASES
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.groups import find_problem_column, problem_column
from tinyzero_sdk.scoring.provenance import Provenance
from tinyzero_sdk.scoring.readers.inspect_logs import EXPORTED
from tinyzero_sdk.scoring.readers.runs import run_and_step
from tinyzero_sdk.scoring.scored_table import read_scored_blocks

LOG_ENDINGS = (".eval", ".json")
SCHEMA = 2
_TASK = ("task", "data_source")
_KEPT = (
    *("data_source", "extra_info", "ground_truth", "reward_model", "sampling", "evaluation", "finished", "token_count"),
    *Provenance._fields,
)
"""Columns that a sample holds as they are, so that scoring and comparing read them back."""

COLUMNS = (*_KEPT, "prompt", "problem", "completion", "tokens", "score", "correct", "reason", "answer", "parts")
"""What is read of a row, where it has that: no log-probabilities, which are most of a run's file."""

SUMMARY_CHARACTERS = 1024  # of a text in the list of samples, which a viewer loads at once


def export(
    source: Path,
    target: Path,
    on_progress: Callable[[float], object] = lambda fraction: None,
    *,
    overwrite: bool = True,
) -> dict[Path, int]:
    """Write the completions of a scored file, or of a run's or checkpoint's held-out evaluation.

    A log of Inspect is of one task: of several, each has its own, `NAME-TASK.eval`.

    Args:
        source: scored file, run directory or checkpoint.
        target: ends in `.eval`, which a viewer loads sample by sample, or `.json`.
        on_progress: called with the fraction of the source that is written.
        overwrite: replace logs that exist.

    Returns:
        The number of completions in each log.

    Raises:
        DataError: a completion has no score, or a file cannot be read or written.
    """
    check_ending(target, LOG_ENDINGS)
    tasks = sorted({_task(row) for row, *_ in _read(source, _TASK)})
    names = [re.sub(r"[^\w.-]+", "-", task) for task in tasks]
    several = [target.with_name(f"{target.stem}-{name}{target.suffix}") for name in names]
    logs = {task: _Log(source, path) for task, path in zip(tasks, several if len(tasks) > 1 else [target], strict=True)}
    for log in logs.values():
        if log.target.exists() and not overwrite:
            raise DataError(f"{log.target} already exists; choose another --output, or overwrite it (--overwrite)")
    with ExitStack() as stack:
        writers = {task: stack.enter_context(log.writing()) for task, log in logs.items()}
        for row, key, progress in _read(source, COLUMNS):
            task = _task(row)
            writers[task](logs[task].sample(row, key))
            on_progress(progress)
    return {log.target: len(log.correct) for log in logs.values()}


def _read(source: Path, columns: tuple[str, ...]) -> Iterator[tuple[Row, str, float]]:
    """The rows, each with the key of its problem and the fraction of the source that is read."""
    path = ""
    for block in read_scored_blocks(source, columns):
        if block.bad:
            number, problem = block.bad[0].number, block.bad[0].problem
            raise DataError(f"{source}:{number}: {problem}; mend or score the file first: tinyzero score")
        path = path or find_problem_column(block)
        keys = to_texts(problem_column(block, path)).to_pylist()
        for number, row, key in zip(block.numbers, block.rows(), keys, strict=True):
            yield row, f"row {number}" if key is None else key, block.progress


def _task(row: Row) -> str:
    return str(next((row[name] for name in _TASK if row.get(name)), "task"))


def _object(row: Row, name: str) -> dict[str, Any]:
    """A column's object; empty for anything else, which other tools may have written."""
    value = row.get(name)
    return value if isinstance(value, dict) else {}


class _Log:
    """A log of one task; what its header says of all samples is collected while they are written."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target = source, target
        self.numbers = dict[str, int]()  # of the problems, by key; the first is 1
        self.epochs = Counter[int]()  # completions so far, by number of the problem
        self.problems = list[int]()  # of each completion
        self.correct, self.scores = list[bool](), list[float]()
        self.first: Row = {}

    @contextmanager
    def writing(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """A function that writes a sample; the log appears at the end."""
        with replacing(self.target) as temporary:
            if self.target.suffix == ".json":
                samples = list[dict[str, Any]]()
                yield samples.append
                temporary.write_text(as_json({**self.header(), "samples": samples}), encoding="utf-8")
                return
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                summaries = []

                def write(sample: dict[str, Any]) -> None:
                    name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
                    archive.writestr(name, as_json(sample))
                    summaries.append(_summary(sample))

                yield write
                header = self.header()
                start = {name: header[name] for name in ("version", "eval", "plan")}
                contents = {"_journal/start.json": start, "summaries.json": summaries, "header.json": header}
                for name, content in contents.items():
                    archive.writestr(name, as_json(content))

    def sample(self, row: Row, key: str) -> dict[str, Any]:
        """A row as a sample of the problem with this key, counted for the header."""
        self.first = self.first or row
        info, prompt, truth = _object(row, "extra_info"), row.get("prompt"), find_ground_truth(row)
        if prompt and not is_prompt(prompt):
            prompt = json.dumps(prompt, default=str)
        problem = self.numbers.setdefault(key, len(self.numbers) + 1)
        self.epochs[problem] += 1
        self.problems.append(problem)
        self.correct.append(row["correct"])
        self.scores.append(float(row["score"]))
        model, text = self._model(row), row.get("completion") or ""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
        answer = {"role": "assistant", "content": text, "source": "generate", "model": model}
        stop = "unknown" if row.get("finished") is None else "stop" if row["finished"] else "max_tokens"
        lengths = (row[name] for name in ALIASES["num_tokens"] if row.get(name) is not None)
        tokens = next((len(length) if isinstance(length, list) else length for length in lengths), None)
        usage = None if tokens is None else {"output_tokens": tokens, "total_tokens": tokens}
        difficulty, parts = info.get("difficulty"), _object(row, "parts")
        kept = {name: row[name] for name in _KEPT if row.get(name) is not None}
        judged = {"answer": row.get("answer"), "explanation": row["reason"]}
        return {
            "id": problem,
            "epoch": self.epochs[problem],
            "input": prompt if isinstance(prompt, str) else asked,
            "target": truth if isinstance(truth, str) else json.dumps(truth),
            "messages": [*asked, answer],
            "output": {
                "model": model,
                "choices": [{"message": answer, "stop_reason": stop}],
                "completion": text,
                "usage": usage,
            },
            "scores": {
                "correct": {"value": "C" if row["correct"] else "I", **judged},
                "score": {"value": float(row["score"]), **judged, "metadata": parts or None},
            },
            "metadata": {"key": key, "difficulty": difficulty, "reason": row["reason"], EXPORTED: kept},
            "model_usage": {model: usage} if usage else {},
            "uuid": uuid.uuid4().hex,
        }

    def header(self) -> dict[str, Any]:
        """All of the log but its samples."""
        settings = _object(self.first, "sampling")
        at = datetime.fromtimestamp(run_and_step(self.source)[0].stat().st_mtime, UTC).isoformat()
        counts = np.bincount(self.problems)[1:]
        means = {
            "correct": np.bincount(self.problems, weights=self.correct)[1:] / counts,
            "score": np.bincount(self.problems, weights=self.scores)[1:] / counts,
        }
        options, task = settings.get("task_options") or {}, _task(self.first)
        known = {name: settings.get(name) for name in ("temperature", "top_p", "max_tokens", "seed")}
        others = {name: value for name, value in settings.items() if name not in known}
        # A path may have bytes that are not UTF-8.
        source, place = (
            os.fsencode(path).decode(errors="backslashreplace") for path in (self.source, self.source.resolve())
        )
        identity = {name: uuid.uuid5(uuid.NAMESPACE_URL, f"{place} {at} {task} {name}").hex for name in _IDS}
        return {
            "version": SCHEMA,
            "status": "success",
            "eval": {
                **identity,
                "created": at,
                "task": task,
                "task_version": str(self.first.get("task_version") or settings.get("task_version") or 0),
                "task_args": options,
                "dataset": {"name": task, "samples": len(counts), "sample_ids": list(range(1, len(counts) + 1))},
                "model": self._model(self.first),
                "model_generate_config": {name: value for name, value in known.items() if value is not None},
                "config": {"epochs": int(counts.max())},
                "packages": {"tinyzero-sdk": version("tinyzero-sdk")},
                "metadata": {"source": source, **others},
            },
            "plan": {"name": "plan", "steps": [{"solver": "generate"}]},
            "results": {
                "total_samples": len(self.correct),
                "completed_samples": len(self.correct),
                "scores": [_metrics(name, by_problem) for name, by_problem in means.items()],
            },
            "stats": {"started_at": at, "completed_at": at},
        }

    def _model(self, row: Row) -> str:
        step = _object(row, "evaluation").get("step")
        of_run = "unknown" if step is None else f"{run_and_step(self.source)[0].name}, step {step}"
        return str(_object(row, "sampling").get("model") or of_run)


_IDS = ("eval_id", "run_id", "task_id")


def _metrics(name: str, by_problem: np.ndarray) -> dict[str, Any]:
    """Mean and standard error over problems, as Inspect computes them: of each problem's mean."""
    deviation = by_problem.std(ddof=1) / np.sqrt(len(by_problem)) if len(by_problem) > 1 else 0.0
    mean = "accuracy" if name == "correct" else "mean"
    values = {mean: float(by_problem.mean()), "stderr": float(deviation)}
    metrics = {metric: {"name": metric, "value": value} for metric, value in values.items()}
    return {"name": name, "scorer": name, "reducer": "mean", "metrics": metrics}


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    def short(text: Any) -> Any:
        return text[:SUMMARY_CHARACTERS] if isinstance(text, str) else text

    question = sample["input"]
    if not isinstance(question, str):
        question = [message | {"content": short(message["content"])} for message in question]
    scores = {name: score | {"answer": short(score["answer"])} for name, score in sample["scores"].items()}
    kept = {name: sample[name] for name in ("id", "epoch", "model_usage", "uuid")}
    kept["metadata"] = {name: value for name, value in sample["metadata"].items() if name != EXPORTED}
    return {**kept, "input": short(question), "target": short(sample["target"]), "scores": scores, "completed": True}
