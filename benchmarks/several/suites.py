"""The suites of `several_gpus.py`: the jobs of each, what each job does.

All but `parity` train by the command line, as a user would; `parity` gives the same rollouts to many trainers.
"""

import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import TINYZERO, last_of_each
from benchmarks.several import tables
from benchmarks.several.jobs import Failed, Job, RunningJob
from benchmarks.shapes import write_model
from benchmarks.step import tokens_of, train_arguments
from benchmarks.training import SECONDS, TASK, TOKENS, mean_timings, metrics_of, outcome
from tinyzero_trainer.monitoring.metrics_log import size_key
from tinyzero_trainer.sft.default_model import PRESET

FIXED_TASK = str(Path(__file__).parents[1] / "fixed_task.py")
REPLAY = str(Path(__file__).with_name("replay.py"))
SEVERAL_UPDATES = shlex.split("""
    algorithm.kl_coefficient=0.01 optimizer.num_mini_batches=2 data.prompt_template=base rollout.ignore_eos=true
    rollout.return_logprobs=always
""")
"""Suite `parity`: with several updates of a batch the policy moves away from the old log-probabilities."""

RESUMABLE = shlex.split("""
    data.prompts_per_step=32 rollout.group_size=8 rollout.max_completion_tokens=128 task.prompt_tokens=24
    optimizer.micro_batch_tokens=8192 model.dtype=float32 data.prompt_template=base optimizer.learning_rate=1e-4
    optimizer.num_mini_batches=2 run.steps=4 rollout.return_logprobs=always checkpoint.every=2 eval.num_problems=8
    eval.every=0 eval.greedy=false
""")
PARITY = {
    "10M": shlex.split("""
        model.dtype=float32 run.steps=20 data.prompts_per_step=32 rollout.group_size=8 task.prompt_tokens=24
        rollout.max_completion_tokens=256 optimizer.learning_rate=1e-4 optimizer.micro_batch_tokens=8192
    """),
    "0.5B": shlex.split("""
        model.dtype=bfloat16 run.steps=20 data.prompts_per_step=16 rollout.group_size=8 task.prompt_tokens=140
        rollout.max_completion_tokens=512 optimizer.learning_rate=1e-5 optimizer.micro_batch_tokens=4096
    """),
}
"""Settings by shape of the model; on the CPU only the first."""

VLLM = ["rollout.engine=vllm", "vllm.tensor_parallel=2", "vllm.verify_weights=true"]
STEP = {"prompts": 128, "samples": 8, "prompt_tokens": 140, "new_tokens": 1024, "steps": 3}
"""Suites `weak` and `strong`: a step's work on one GPU, as in step.py."""

TENSOR_PARALLEL_STEP = {"prompts": 32, "samples": 4, "prompt_tokens": 140, "new_tokens": 128, "steps": 2}

# ---- on the CPU, to test the script ----
TINY_STEP = {"prompts": 2, "samples": 2, "prompt_tokens": 8, "new_tokens": 8, "steps": 2}
TINY = shlex.split("""
    data.prompts_per_step=4 rollout.group_size=2 rollout.max_completion_tokens=16 task.prompt_tokens=8
    optimizer.micro_batch_tokens=64
""")
TINY_MODEL = shlex.split("""
    --model tiny run.steps=2 data.prompts_per_step=4 rollout.group_size=4 rollout.max_completion_tokens=32
    rollout.return_logprobs=always eval.num_problems=16 eval.num_problems_during=16 eval.every=1 eval.greedy=false
""")


DEFAULT_RATE = PRESET["settings"]["optimizer"]["learning_rate"]


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and on what the jobs run."""

    folder: Path
    gpus: int  # on the CPU: processes that train or generate
    cpu: bool
    learning: float  # seconds for each run of `async_levels`
    overrides: Sequence[str] = ()  # of each run of `async_levels`

    @property
    def counts(self) -> list[int]:
        """Numbers of GPUs to compare."""
        return [count for count in (1, 2, 4) if count <= self.gpus]

    def on(self, count: int, *, engines: int = 0, engine_gpus: int = 1) -> list[str]:
        """Settings of a run on `count` GPUs through Ray, `engines` of `engine_gpus` each are dedicated engines."""
        dedicated = [f"rollout.num_engines={engines}"] if engines else []
        if self.cpu:
            ranks = count - engines * engine_gpus
            return ["run.executor=ray", "run.device=cpu", f"parallel.world_size={ranks}", *dedicated]
        return ["run.executor=ray", f"ray.gpus={count}", *dedicated]

    def on_one_or_more(self, count: int) -> list[str]:
        """Settings of a run on one GPU without Ray, or on several."""
        return ["run.executor=local", f"run.device={'cpu' if self.cpu else 'cuda'}"] if count == 1 else self.on(count)

    @property
    def shape(self) -> str:
        """Of the model in suites `weak`, `strong` and `tensor_parallel`."""
        return "10M" if self.cpu else "0.5B"

    def model(self, shape: str) -> Path:
        """Directory of a model, which is written if it is missing."""
        model, unfinished = self.folder / "models" / shape, self.folder / "models" / f"{shape}.tmp"
        if not model.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            write_model(unfinished, shape)
            unfinished.rename(model)
        return model

    def run(self, name: str) -> Path:
        """Directory of a run: its name, with dashes for all but letters, digits, dots and underscores."""
        return self.folder / "runs" / re.sub(r"[^\w.]+", "-", name)

    def train(
        self,
        job: RunningJob,
        arguments: Sequence[str],
        *,
        resume: bool = False,
        least: float = math.inf,
        most: float = math.inf,
    ) -> list[dict[str, Any]]:
        """Run `tinyzero train`, and read its metrics.

        With the `least` rows of metrics a run that fails is usable; after the `most` rows it is killed: the last
        evaluation and checkpoint are not measured.
        """
        directory = self.run(job.name)
        if not resume:
            shutil.rmtree(directory, ignore_errors=True)  # of a failed attempt
        command = [*TINYZERO, "train", "--output", str(directory), *last_of_each(arguments)]
        job.run(
            [*command, *(["--resume"] if resume else [])],
            until=lambda: len(metrics_of(directory)) >= most,
            usable=lambda: len(metrics_of(directory)) >= least,
        )
        return metrics_of(directory)


# ---- parity ----------------------------------------------------------------------------------------------------------


def parity(setup: Setup) -> list[Job]:
    """Losses of the same rollouts, step by step."""
    jobs = []
    tested = {"10M": last_of_each([*PARITY["10M"], *TINY, "run.steps=2"])} if setup.cpu else PARITY
    for shape, settings in tested.items():
        for name, (gpus, more) in parity_variants(setup, settings).items():
            needs = None if name == tables.RECORDED else f"parity {shape}: {tables.RECORDED}"
            jobs.append(Job(f"parity {shape}: {name}", gpus, partial(replay, setup, shape, [*settings, *more]), needs))
    return jobs


def parity_variants(setup: Setup, settings: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """GPUs and settings that should give the same losses; the first samples the rollouts."""
    tokens = next(int(one.partition("=")[2]) for one in settings if one.startswith("optimizer.micro_batch_tokens"))
    alone = setup.on_one_or_more(1)
    # For comparison: with halved micro-batches only rounding differs.
    halved = [*alone, f"optimizer.micro_batch_tokens={tokens // 2}"]
    found = {tables.RECORDED: (1, alone), "1, micro-batches halved": (1, halved)}
    found |= {f"{count}, sharded": (count, setup.on(count)) for count in setup.counts[1:]}
    sequence_parallel, replicated = "parallel.sequence_parallel=2", "parallel.dp_replicate=2"
    offload = () if setup.cpu else ("memory.cpu_offload=idle", "memory.cpu_offload=always")
    if setup.gpus >= 2:
        found |= {f"2, {one}": (2, [*setup.on(2), one]) for one in (sequence_parallel, replicated, *offload)}
    if setup.gpus >= 4:
        found[f"4, {replicated} {sequence_parallel}"] = (4, [*setup.on(4), replicated, sequence_parallel])
    return found


def replay(setup: Setup, shape: str, settings: Sequence[str], job: RunningJob) -> dict[str, Any]:
    """Sample and record rollouts, or train on the recorded ones, with these settings."""
    recording, output = job.name.endswith(tables.RECORDED), setup.run(job.name).with_suffix(".json")
    batches, model = setup.folder / "batches" / shape, setup.model(shape)
    if recording:
        shutil.rmtree(batches, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    settings = last_of_each([*SEVERAL_UPDATES, *settings])
    command = [sys.executable, REPLAY, "record" if recording else "replay", "--batches", str(batches)]
    command += ["--output", str(output), f"run.task={FIXED_TASK}", f"model.path={model}"]
    job.run(
        [*command, f"run.output={setup.run(job.name)}", *settings], usable=lambda: not recording and output.exists()
    )
    return {"settings": settings, "rows": json.loads(output.read_text())}


# ---- resume ----------------------------------------------------------------------------------------------------------


def resume(setup: Setup) -> list[Job]:
    """A run saved on two GPUs is resumed on one, two and four."""
    if setup.gpus < 2:
        return []
    name = "resume: uninterrupted"

    def save(job: RunningJob) -> dict[str, Any]:
        task = ["--task", FIXED_TASK, "--model", str(setup.model("10M"))]
        return {"rows": setup.train(job, [*task, *RESUMABLE, *(TINY if setup.cpu else ()), *setup.on(2)])}

    jobs = [Job(name, 2, save)]
    for count in setup.counts:
        work = partial(resume_copy, setup, name, setup.on_one_or_more(count))
        jobs.append(Job(f"resume: on {count}", count, work, name))
    return jobs


def resume_copy(setup: Setup, original: str, settings: Sequence[str], job: RunningJob) -> dict[str, Any]:
    """Resume a copy of a run from step 2."""
    copy = setup.run(job.name)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(setup.run(original), copy)
    for newer in (copy / "checkpoints").glob("step_[!2]*"):
        shutil.rmtree(newer)
    rows = setup.train(job, settings, resume=True)
    if not any("from step 2" in line for line in job.lines):
        raise Failed("it was not resumed from step 2; see its output")
    return {"settings": list(settings), "rows": rows}


# ---- tensor_parallel, weak, strong -----------------------------------------------------------------------------------


def tensor_parallel(setup: Setup) -> list[Job]:
    """vLLM split over two GPUs: colocated with two ranks, and on GPUs separate from one or two."""
    jobs, most = [], min(setup.gpus, 4)
    if most >= 2:
        jobs.append(Job("tensor_parallel 2, colocated", 2, partial(two_steps, setup, setup.on(2))))
    if most >= 3 or (setup.cpu and most == 2):
        dedicated = setup.on(most, engines=1, engine_gpus=1 if setup.cpu else 2)
        jobs.append(Job(f"tensor_parallel {most}, dedicated", most, partial(two_steps, setup, dedicated)))
    return jobs


def two_steps(setup: Setup, settings: Sequence[str], job: RunningJob) -> dict[str, Any]:
    """A whole run of two steps."""
    settings = [*(() if setup.cpu else VLLM), *settings]
    work = train_arguments(setup.model(setup.shape), TINY_STEP if setup.cpu else TENSOR_PARALLEL_STEP)
    rows = setup.train(job, [*work, "rollout.return_logprobs=always", *settings])
    shutil.rmtree(setup.run(job.name) / "checkpoints", ignore_errors=True)  # gigabytes
    return {"settings": settings, "rows": rows}


def weak(setup: Setup) -> list[Job]:
    """Constant work per GPU."""
    jobs = [
        Job(f"weak {count}", count, partial(timed_steps, setup, count, setup.on_one_or_more(count)))
        for count in setup.counts
    ]
    return [*jobs, Job("weak 1, through Ray", 1, partial(timed_steps, setup, 1, setup.on(1)))]


def strong(setup: Setup) -> list[Job]:
    """Constant work in total; on one GPU that of `weak`."""
    more = [
        Job(f"strong {count}", count, partial(timed_steps, setup, 1, setup.on(count))) for count in setup.counts[1:]
    ]
    return [weak(setup)[0], *more]


def timed_steps(setup: Setup, times: int, settings: Sequence[str], job: RunningJob) -> dict[str, Any]:
    """Times of a step with `times` the work of one GPU: means over all steps but the first."""
    work = dict(TINY_STEP if setup.cpu else STEP)
    work["prompts"] *= times
    endless = "run.steps=1000"  # the run is killed after its steps
    arguments = [*train_arguments(setup.model(setup.shape), work), *settings, endless]
    rows = setup.train(job, arguments, least=3, most=1 + work["steps"])[2:]
    seconds = mean_timings(rows)
    return {
        "settings": list(settings),
        "step_s": [row["timing_s/step"] for row in rows],
        "timing_s": seconds,
        "tokens": tokens_of(work),
        "tokens_per_s": tokens_of(work) / seconds["timing_s/step"],
        "balance": {name: rows[-1][name] for name in rows[-1] if name.startswith("global_seqlen/")},
    }


# ---- async_levels ----------------------------------------------------------------------------------------------------


def async_levels(setup: Setup) -> list[Job]:
    """The default model at levels 0, 1 and 2 of `rollout.max_async_level`, on one GPU and on two.

    Its completions search, so their lengths have a long tail by themselves; the table says which. On two GPUs level 0
    shares both between sampling and updates, and the others have an engine on one of them. The learning rate is divided
    by the level + 1, as docs/training/asynchronous.md advises.
    """
    jobs = [] if setup.cpu else [Job(tables.DEFAULT_MODEL, 1, partial(warm_start, setup), limit=600)]
    needs = None if setup.cpu else tables.DEFAULT_MODEL
    for gpus in (1, 2)[: setup.gpus]:
        for level in (0, 1, 2):
            settings = setup.on(2, engines=1) if gpus == 2 and level else setup.on_one_or_more(gpus)
            settings = [*settings, f"rollout.max_async_level={level}", "rollout.return_logprobs=always"]
            settings += ["rollout_correction.is_level=token"]  # at each level, so that they differ by it alone
            settings += [f"optimizer.learning_rate={DEFAULT_RATE / (level + 1):.2g}"]
            name = f"async_levels: {'1 GPU' if gpus == 1 else '2 GPUs'}, level {level}"
            jobs.append(Job(name, gpus, partial(learn, setup, settings), needs, limit=setup.learning))
    return jobs


def small_arguments(setup: Setup) -> list[str]:
    """Of all runs of the default model."""
    return ["--task", TASK, *(TINY_MODEL if setup.cpu else [f"default_model.directory={setup.folder / 'default'}"])]


def warm_start(setup: Setup, job: RunningJob) -> dict[str, Any]:
    """Let `tinyzero train` make its default model, and end it there."""

    def made() -> bool:
        return any(not path.parent.name.endswith(".tmp") for path in (setup.folder / "default").glob("*/tinyzero.toml"))

    directory = setup.run(job.name)
    shutil.rmtree(directory, ignore_errors=True)  # of a failed attempt
    if not made():
        job.run([*TINYZERO, "train", "--output", str(directory), *small_arguments(setup), *setup.overrides], until=made)
    return {"seconds": job.seconds}


def learn(setup: Setup, settings: Sequence[str], job: RunningJob) -> dict[str, Any]:
    """A whole run; one that reaches its limit gives the results up to there."""
    rows = setup.train(job, [*small_arguments(setup), *settings, *setup.overrides], least=2)
    results = outcome(rows, minutes=rows[-1].get(SECONDS, 0.0) / 60)
    rates = {"tokens_per_s": rate(rows), "settled_tokens_per_s": rate(rows, tables.SETTLED)}
    steps = rows[1:]
    means = {name: fmean(row.get(name, 0.0) for row in steps) for name in tables.EXPLAINING}
    problems = min(row[size_key(TASK)] for row in rows if size_key(TASK) in row)  # in the evaluations between
    return {"settings": list(settings), **results, **rates, "means": means, "problems": problems}


def rate(rows: Sequence[dict[str, Any]], since: int = 0) -> float | None:
    """Generated tokens per second of training in the steps after `since`; None = the run did not get that far.

    Example:
        >>> rate([{"step": n, TOKENS: 90.0 * n, SECONDS: 8.0 + n} for n in range(3)], since=1)
        90.0
    """
    first, last = next((row for row in rows if row["step"] == since), None), rows[-1]
    if first is None or last["step"] <= since:
        return None
    tokens, seconds = (last[name] - first.get(name, 0.0) for name in (TOKENS, SECONDS))
    return float(tokens / seconds)


SUITES: dict[str, Callable[[Setup], list[Job]]] = {
    "parity": parity,
    "resume": resume,
    "tensor_parallel": tensor_parallel,
    "weak": weak,
    "strong": strong,
    "async_levels": async_levels,
}
"""In the order in which they start."""
