"""Evaluate a model: sample completions of held-out problems, store each as it arrives, score and summarize them.

The completions come from a `Sampler` of `protocol.py`; no model is loaded here.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.files import check_ending
from tinyzero_sdk.data.rows import item_to_row
from tinyzero_sdk.errors import DataError, ExhaustedError
from tinyzero_sdk.evaluation.protocol import (
    EVALUATION_SEED,
    EvaluationObserver,
    EvaluationPlan,
    EvaluationResult,
    Problem,
)
from tinyzero_sdk.evaluation.sample_log import SampleFile
from tinyzero_sdk.openai_client import SampledCompletion
from tinyzero_sdk.records import Completion, Item


def evaluate(
    plan: EvaluationPlan, output: Path | None, observer: EvaluationObserver, pass_at: tuple[int, ...] = ()
) -> EvaluationResult:
    """Sample, score and summarize, with pass@k for these k, or powers of two.

    Scored completions go to the output, `.jsonl` or `.parquet`, if there is one. They are appended to the `.jsonl` file
    of this name as they arrive, and an evaluation with the same settings resumes there; with others it is refused.
    """
    from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file

    with TemporaryDirectory() as directory:
        target = output or Path(directory) / "completions.jsonl"
        check_ending(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        ordered = target.with_name(f".{target.stem}.sampled.jsonl")
        try:
            tokens, seconds = _sample(plan, target.with_suffix(".jsonl"), ordered, observer)
            limits = (plan.workers, plan.timeout, plan.memory_limit_gb)
            options = ScoringOptions(
                *limits, pass_at=pass_at, greedy=plan.temperature == 0, on_progress=observer.scoring
            )
            report = score_file(plan.task, ordered, target, options)
        finally:
            ordered.unlink(missing_ok=True)
    if report.summary is None:
        raise DataError("no completion could be scored, so there is nothing to summarize")
    return EvaluationResult(report, report.summary, tokens / (seconds + report.seconds) or None)


def _sample(plan: EvaluationPlan, path: Path, ordered: Path, observer: EvaluationObserver) -> tuple[int, float]:
    """Sample the missing completions and write all to `ordered`; the new tokens, and the seconds they took."""
    tokens = finished = 0
    with plan.opener() as sampler, SampleFile(path, plan.settings(sampler)) as file:
        items = list[Item]()  # the first problems of the split: as many as requested, or all that the task has
        try:
            fraction = plan.test_fraction
            items.extend(plan.task.dataset(plan.split, plan.size, seed=EVALUATION_SEED, test_fraction=fraction))
        except ExhaustedError:
            if not items:
                raise
        problems = [
            Problem(
                index,
                item,
                plan.task.make_prompt(item, sampler.template),
                missing=tuple(sample for sample in range(plan.samples) if (index, sample) not in file),
            )
            for index, item in enumerate(items)
        ]
        total = len(problems) * plan.samples

        def keep(problem: Problem, sample: int, completion: Completion) -> None:
            nonlocal tokens, finished
            row = item_to_row(plan.task, problem.item, index=problem.index, split=plan.split, template=sampler.template)
            row |= {"completion": _encodable(completion.text), "token_count": completion.token_count}
            row["finished"] = completion.finished
            if isinstance(completion, SampledCompletion) and completion.reasoning_content is not None:
                row["reasoning_content"] = _encodable(completion.reasoning_content)
            if file.append((problem.index, sample), row):
                tokens += completion.token_count or 0
                finished = max(0, finished - 1)
                observer.sampling(len(file), finished, total)

        def advance(count: int) -> None:
            nonlocal finished
            finished = min(finished + count, total - len(file))
            observer.sampling(len(file), finished, total)

        observer.sampling(len(file), 0, total)
        started = time.perf_counter()
        if len(file) < total:
            sampler.sample(problems, keep, advance)
        if len(file) < total:
            raise DataError(
                f"{total - len(file):,} of {plural(total, 'completion')} missing; run the same command again"
            )
        seconds = time.perf_counter() - started
        file.write_sorted(ordered)
    return tokens, seconds


def _encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 lacks."""
    return text.encode("utf-8", "replace").decode()
