"""Write scored completions as a log of Inspect (https://inspect.aisi.org.uk), for its viewer and its data frames.

The log has schema version 2, which Inspect reads since 0.3. A problem is a sample, and its completions are epochs.
"""

import json
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tinyzero_sdk.data.arrow import Row, to_rows
from tinyzero_sdk.data.files import check_ending, read_blocks, replacing
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.readers.runs import held_out_table

LOG_ENDINGS = (".eval", ".json")
SCHEMA = 2
COLUMNS = (
    *("prompt", "completion", "finished", "token_count", "num_tokens", "sampling", "step"),
    *("task", "task_version", "data_source", "problem", "extra_info", "difficulty", "ground_truth", "reward_model"),
    *("score", "correct", "reason", "answer", "parts"),
)
"""What is read of a row, where it has that: no log-probabilities, which are most of a run's file."""

SUMMARY_CHARACTERS = 1024  # of a text in the list of samples, which a viewer loads at once


def export(source: Path, target: Path, on_progress: Callable[[float], object] = lambda fraction: None) -> int:
    """Write the completions of a scored file, or of a run's or checkpoint's held-out evaluation; returns their number.

    Args:
        source: scored file, run directory or checkpoint.
        target: ends in `.eval`, which a viewer loads sample by sample, or `.json`.
        on_progress: called with the fraction of the source that is written.

    Raises:
        DataError: a completion has no score, or a file cannot be read or written.
    """
    check_ending(target, LOG_ENDINGS)
    rows = _read(source, on_progress)
    log = _Log(source)
    with replacing(target) as temporary:
        if target.suffix == ".json":
            samples = list(log.samples(rows))
            temporary.write_text(json.dumps({**log.header(), "samples": samples}), encoding="utf-8")
        else:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                summaries = []
                for sample in log.samples(rows):
                    archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
                    summaries.append(_summary(sample))
                header = log.header()
                start = {name: header[name] for name in ("version", "eval", "plan")}
                contents = {"_journal/start.json": start, "summaries.json": summaries, "header.json": header}
                for name, content in contents.items():
                    archive.writestr(name, json.dumps(content))
    return len(log.correct)


def _read(source: Path, on_progress: Callable[[float], object]) -> Iterator[Row]:
    if source.is_dir():
        yield from to_rows(held_out_table(source))
        return
    for block in read_blocks(source, COLUMNS):
        if block.bad:
            raise DataError(f"{source}:{block.bad[0].number}: {block.bad[0].problem}")
        yield from block.rows if block.table is None else to_rows(block.table)
        on_progress(block.progress)


class _Log:
    """What the header says of all samples, collected while they are written."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.numbers = dict[str, int]()  # of the problems, by key; the first is 1
        self.epochs = Counter[int]()  # completions so far, by number of the problem
        self.problems = list[int]()  # of each completion
        self.correct, self.scores = list[bool](), list[float]()
        self.tasks = dict[str, None]()
        self.first: Row = {}

    def samples(self, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, 1):
            if not isinstance(row.get("score"), int | float) or not isinstance(row.get("correct"), bool):
                raise DataError(f"{self.source}:{number} has no score; score the file first: tinyzero score")
            self.first = self.first or row
            yield self._sample(row)
        if not self.correct:
            raise DataError(f"{self.source} has no rows")

    def _sample(self, row: Row) -> dict[str, Any]:
        info = row.get("extra_info") or {}
        prompt, task = row.get("prompt"), str(row.get("task") or row.get("data_source") or "task")
        truth = row.get("ground_truth", (row.get("reward_model") or {}).get("ground_truth"))
        key = str(row.get("problem") or info.get("key") or info.get("index") or json.dumps([prompt, truth]))
        problem = self.numbers.setdefault(key, len(self.numbers) + 1)
        self.epochs[problem] += 1
        self.problems.append(problem)
        self.correct.append(row["correct"])
        self.scores.append(float(row["score"]))
        self.tasks[task] = None
        model, text = self._model(row), row.get("completion") or ""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
        answer = {"role": "assistant", "content": text, "source": "generate", "model": model}
        stop = "unknown" if row.get("finished") is None else "stop" if row["finished"] else "max_tokens"
        tokens = row.get("token_count", row.get("num_tokens"))
        usage = {"output_tokens": tokens, "total_tokens": tokens} if isinstance(tokens, int) else None
        difficulty, parts = row.get("difficulty", info.get("difficulty")), dict(row.get("parts") or {})
        if difficulty != difficulty:  # NaN, which JSON lacks
            difficulty = None
        judged = {"answer": row.get("answer"), "explanation": row.get("reason")}
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
            "metadata": {"key": key, "task": task, "difficulty": difficulty, "reason": row.get("reason")},
            "model_usage": {model: usage} if usage else {},
            "uuid": uuid.uuid4().hex,
        }

    def header(self) -> dict[str, Any]:
        """All of the log but its samples."""
        settings = self.first.get("sampling") or {}
        at = datetime.fromtimestamp(self.source.stat().st_mtime, UTC).isoformat()
        counts = np.bincount(self.problems)[1:]
        means = {
            "correct": np.bincount(self.problems, weights=self.correct)[1:] / counts,
            "score": np.bincount(self.problems, weights=self.scores)[1:] / counts,
        }
        options, task = settings.get("task_options") or {}, "+".join(self.tasks)
        known = {name: settings.get(name) for name in ("temperature", "top_p", "max_tokens", "seed")}
        others = {name: value for name, value in settings.items() if name not in known}
        identity = {name: uuid.uuid5(uuid.NAMESPACE_URL, f"{self.source.resolve()} {at} {name}").hex for name in _IDS}
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
                "metadata": {"source": str(self.source), **others},
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
        of_run = f"{self.source.resolve().name}, step {row['step']}" if self.source.is_dir() else "unknown"
        return str((row.get("sampling") or {}).get("model") or of_run)


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
    kept = {name: sample[name] for name in ("id", "epoch", "metadata", "model_usage", "uuid")}
    return {**kept, "input": short(question), "target": short(sample["target"]), "scores": scores, "completed": True}
