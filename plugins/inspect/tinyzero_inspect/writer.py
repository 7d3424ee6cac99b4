"""Write scored completions as a log of Inspect (https://inspect.aisi.org.uk), for its viewer and its data frames.

The log has schema version 2, which Inspect reads since 0.3. A problem is a sample, and its completions are epochs.
"""

import json
import re
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tinyzero_inspect.reader import EXPORTED
from tinyzero_sdk.data.arrow import Row, to_texts
from tinyzero_sdk.data.files import as_json, check_ending, replacing
from tinyzero_sdk.data.rows import find_ground_truth, read_messages, read_object
from tinyzero_sdk.data.table import ALIASES
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.outputs import find_problem_column, problem_column
from tinyzero_sdk.scoring.provenance import Provenance
from tinyzero_sdk.scoring.readers.runs import run_and_step
from tinyzero_sdk.scoring.scored_table import read_scored_blocks

LOG_ENDINGS = (".eval", ".json")
SCHEMA = 2
_KEPT = (
    *("data_source", "extra_info", "ground_truth", "reward_model", "sampling", "evaluation", "finished", "token_count"),
    *Provenance._fields,
)
"""Columns that a sample holds as they are, so that scoring and comparing read them back."""

COLUMNS = (*_KEPT, "prompt", "problem", "completion", "tokens", "score", "correct", "reason", "answer", "parts")
"""What is read of a row, where it has that: no log-probabilities, which are most of a run's file."""


def export(source: Path, target: Path, overwrite: bool = True) -> dict[Path, int]:
    """Write the completions of a scored file, or of a run's or checkpoint's held-out evaluation.

    A log of Inspect is of one task: of several, each has its own, `NAME-TASK.eval`.

    The target ends in `.eval`, which a viewer loads sample by sample, or `.json`. Returns the number of completions in
    each log; a DataError says that a completion has no score, or a file cannot be read or written.
    """
    check_ending(target, LOG_ENDINGS)
    logs: dict[str, _Log] = {}
    for row, key in _read(source):
        logs.setdefault(_task(row), _Log(source)).add(row, key)
    names = {task: re.sub(r"[^\w.-]+", "-", task) for task in sorted(logs)}
    paths = {task: target.with_name(f"{target.stem}-{name}{target.suffix}") for task, name in names.items()}
    paths = paths if len(logs) > 1 else dict.fromkeys(logs, target)
    for path in paths.values():
        if path.exists() and not overwrite:
            raise DataError(f"{path} already exists; choose another --output, or overwrite it (--overwrite)")
    for task, path in paths.items():
        logs[task].write(path)
    return {path: len(logs[task].samples) for task, path in paths.items()}


def _read(source: Path) -> Iterator[tuple[Row, str]]:
    """The rows, each with the key of its problem."""
    path = ""
    for block in read_scored_blocks(source, COLUMNS):
        if block.bad:
            bad = block.bad[0]
            raise DataError(f"{source}:{bad.number}: {bad.error}; mend or score the file first: tinyzero score")
        path = path or find_problem_column(block)
        keys = to_texts(problem_column(block, path)).to_pylist()
        for number, row, key in zip(block.numbers, block.rows(), keys, strict=True):
            yield row, f"row {number}" if key is None else key


def _task(row: Row) -> str:
    return str(row.get("task") or row.get("data_source") or "task")


class _Log:
    """A log of one task."""

    def __init__(self, source: Path) -> None:
        self.run, _ = run_and_step(source)
        self.source = source
        self.samples = list[dict[str, Any]]()
        self.numbers = dict[str, int]()  # of the problems, by key; the first is 1
        self.epochs = Counter[int]()  # completions so far, by number of the problem
        self.first: Row = {}

    def write(self, target: Path) -> None:
        header = self.header()
        with replacing(target) as temporary:
            if target.suffix == ".json":
                temporary.write_text(as_json({**header, "samples": self.samples}), encoding="utf-8")
                return
            start = {name: header[name] for name in ("version", "eval", "plan")}
            summaries = [_summary(sample) for sample in self.samples]
            contents: dict[str, Any] = {
                f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in self.samples
            }
            contents |= {"_journal/start.json": start, "summaries.json": summaries, "header.json": header}
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for name, content in contents.items():
                    archive.writestr(name, as_json(content))

    def add(self, row: Row, key: str) -> None:
        """Add a row as a sample of the problem with this key."""
        self.first = self.first or row
        info, prompt, truth = read_object(row.get("extra_info")), row.get("prompt"), find_ground_truth(row)
        if prompt and not isinstance(prompt, str):
            try:
                prompt = read_messages(prompt)
            except DataError:
                prompt = json.dumps(prompt, default=str)
        problem = self.numbers.setdefault(key, len(self.numbers) + 1)
        self.epochs[problem] += 1
        model, text = self._model(row), row.get("completion") or ""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
        answer = {"role": "assistant", "content": text, "source": "generate", "model": model}
        stop = "unknown" if row.get("finished") is None else "stop" if row["finished"] else "max_tokens"
        lengths = (row[name] for name in ALIASES["num_tokens"] if row.get(name) is not None)
        tokens = next((len(length) if isinstance(length, list) else length for length in lengths), None)
        usage = None if tokens is None else {"output_tokens": tokens, "total_tokens": tokens}
        difficulty, parts = info.get("difficulty"), read_object(row.get("parts"))
        kept = {name: row[name] for name in _KEPT if row.get(name) is not None}
        judged = {"answer": row.get("answer"), "explanation": row["reason"]}
        sample = {
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
        self.samples.append(sample)

    def header(self) -> dict[str, Any]:
        """All of the log but its samples."""
        settings, task = read_object(self.first.get("sampling")), _task(self.first)
        at = datetime.fromtimestamp(self.run.stat().st_mtime, UTC).isoformat()
        problems = [sample["id"] for sample in self.samples]
        counts = np.bincount(problems)[1:]
        values = {
            "correct": [sample["scores"]["correct"]["value"] == "C" for sample in self.samples],
            "score": [sample["scores"]["score"]["value"] for sample in self.samples],
        }
        means = {name: np.bincount(problems, weights=cells)[1:] / counts for name, cells in values.items()}
        known = {name: settings.get(name) for name in ("temperature", "top_p", "max_tokens", "seed")}
        others = {name: value for name, value in settings.items() if name not in known}
        origin = f"{self.source.resolve()} {at} {task}"
        identity = {
            name: uuid.uuid5(uuid.NAMESPACE_URL, f"{origin} {name}").hex for name in ("eval_id", "run_id", "task_id")
        }
        return {
            "version": SCHEMA,
            "status": "success",
            "eval": {
                **identity,
                "created": at,
                "task": task,
                "task_version": str(self.first.get("task_version") or settings.get("task_version") or 0),
                "task_args": settings.get("task_options") or {},
                "dataset": {"name": task, "samples": len(counts), "sample_ids": list(range(1, len(counts) + 1))},
                "model": self._model(self.first),
                "model_generate_config": {name: value for name, value in known.items() if value is not None},
                "config": {"epochs": int(counts.max())},
                "packages": {"tinyzero-sdk": version("tinyzero-sdk")},
                "metadata": {"source": str(self.source), **others},
            },
            "plan": {"name": "plan", "steps": [{"solver": "generate"}]},
            "results": {
                "total_samples": len(self.samples),
                "completed_samples": len(self.samples),
                "scores": [_metrics(name, by_problem) for name, by_problem in means.items()],
            },
            "stats": {"started_at": at, "completed_at": at},
        }

    def _model(self, row: Row) -> str:
        step = read_object(row.get("evaluation")).get("step")
        of_run = "unknown" if step is None else f"{self.run.name}, step {step}"
        return str(read_object(row.get("sampling")).get("model") or of_run)


def _metrics(name: str, by_problem: np.ndarray) -> dict[str, Any]:
    """Mean and standard error over problems, as Inspect computes them: of each problem's mean."""
    deviation = by_problem.std(ddof=1) / np.sqrt(len(by_problem)) if len(by_problem) > 1 else 0.0
    mean = "accuracy" if name == "correct" else "mean"
    values = {mean: float(by_problem.mean()), "stderr": float(deviation)}
    metrics = {metric: {"name": metric, "value": value} for metric, value in values.items()}
    return {"name": name, "scorer": name, "reducer": "mean", "metrics": metrics}


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    """What a viewer lists of a sample."""
    summary = {name: sample[name] for name in ("id", "epoch", "input", "target", "scores", "model_usage", "uuid")}
    metadata = {name: value for name, value in sample["metadata"].items() if name != EXPORTED}
    return {**summary, "metadata": metadata, "completed": True}
