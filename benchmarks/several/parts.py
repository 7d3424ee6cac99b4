"""The parts of `several_gpus.py`: the jobs of each, and what each job does.

All but the first part train by the command line, as a user would; the first gives the same rollouts to many trainers.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import TINYZERO
from benchmarks.learn import TASK, TRAINING_SECONDS, TRAINING_TOKENS
from benchmarks.several import tables
from benchmarks.several.side_by_side import Failed, Job, Place, slug
from benchmarks.several.sizes import ON_CPU, ON_GPUS, Sizes
from benchmarks.small_gpu import outcome
from benchmarks.step import settings as step_settings
from tinyzero_trainer.monitoring.metrics_log import read_metrics

FIXED_TASK = str(Path(__file__).parents[1] / "fixed_task.py")
REPLAY = str(Path(__file__).with_name("replay.py"))
WRITE_MODEL = (
    "import sys; from pathlib import Path; from benchmarks.shapes import write_model; "
    "write_model(Path(sys.argv[1]), sys.argv[2])"
)
ONE_STEP_OFF = "rollout.max_async_level=1"
"""Setting of a run whose engine, on a GPU of its own, samples the next batch while this one is learnt from."""

SAME = [
    "algorithm.kl_coefficient=0.01",
    "optimizer.num_mini_batches=2",
    "data.prompt_template=base",
    "rollout.ignore_eos=true",
    "rollout.return_logprobs=always",
]
"""Part `same`: settings for each shape. With several updates of a batch the policy has moved from what is old."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Of this call."""

    folder: Path
    """For everything."""

    gpus: int
    """That may be used; on the CPU, processes that learn or generate."""

    cpu: bool
    """No GPU is used."""

    learning: float
    """Seconds for each run of part `one_step_off`."""

    @property
    def sizes(self) -> Sizes:
        """How much is done."""
        return ON_CPU if self.cpu else ON_GPUS

    @property
    def counts(self) -> list[int]:
        """Of GPUs, to compare."""
        return [count for count in (1, 2, 4) if count <= self.gpus]

    def on(self, count: int, *, engines: int = 0, spread: int = 1) -> list[str]:
        """Settings of a run on so many GPUs through Ray, `engines` of `spread` GPUs each apart."""
        apart = [f"rollout.num_engines={engines}"] if engines else []
        if self.cpu:
            return ["run.executor=ray", "run.device=cpu", f"parallel.world_size={count - engines * spread}", *apart]
        return ["run.executor=ray", f"ray.gpus={count}", *apart]

    def alone(self) -> list[str]:
        """Settings of a run on one, without Ray."""
        return ["run.executor=local", f"run.device={'cpu' if self.cpu else 'cuda'}"]

    def model(self, shape: str) -> Path:
        """Where a model is, once the job `model …` has made it."""
        return self.folder / "models" / shape

    def run(self, name: str) -> Path:
        """Directory of a run."""
        return self.folder / "runs" / slug(name)


def write_model(setup: Setup, shape: str, place: Place) -> dict[str, Any]:
    """Make a model, unless it is there."""
    made, aside = setup.model(shape), setup.model(f"{shape}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    if not made.exists():
        place.run([sys.executable, "-c", WRITE_MODEL, str(aside), shape])
        aside.rename(made)
    return {"bytes": sum(file.stat().st_size for file in made.iterdir())}


def model_job(setup: Setup, shape: str) -> Job:
    """Makes what others need."""
    return Job(f"model {shape}", 1, partial(write_model, setup, shape), limit=150)


def train(
    setup: Setup, name: str, words: Sequence[str], place: Place, *, lines: int | None = None, resume: bool = False
) -> list[dict[str, Any]]:
    """Run `tinyzero train`, and read its metrics.

    Args:
        setup: of this call.
        name: of the run.
        words: flags and settings.
        place: of the job.
        lines: of metrics, after which it is ended: evaluation and checkpoint at the end are not what is measured.
        resume: go on with what is in its directory.
    """
    run = setup.run(name)
    if not resume:
        shutil.rmtree(run, ignore_errors=True)  # of an attempt that failed
    command = [*TINYZERO, "train", "--output", str(run), *words, *(["--resume"] if resume else [])]
    place.run(command, until=None if lines is None else lambda: len(metrics(run)) >= lines)
    return metrics(run)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Lines of a run's metrics, so far."""
    file = run / "metrics.jsonl"
    return read_metrics(file) if file.exists() else []


# ---- the parts -------------------------------------------------------------------------------------------------------


def same(setup: Setup) -> list[Job]:
    """Losses of the same rollouts, step by step."""
    jobs = []
    for shape, words in setup.sizes.same.items():
        recorded = f"same {shape}: {tables.RECORDED}"
        jobs.append(model_job(setup, shape))
        for name, (gpus, more) in variants(setup, words).items():
            needs = (f"model {shape}",) if name == tables.RECORDED else (recorded,)
            work = partial(replay, setup, shape, [*words, *more])
            jobs.append(Job(f"same {shape}: {name}", gpus, work, needs, limit=240))
    return jobs


def variants(setup: Setup, words: Sequence[str]) -> dict[str, tuple[int, list[str]]]:
    """GPUs and settings under which the same is to be found; the first draws the rollouts."""
    micro_batch = next(int(word.partition("=")[2]) for word in words if word.startswith("optimizer.micro_batch_tokens"))
    found = {tables.RECORDED: (1, setup.alone())}
    # The yardstick: what differs here is rounding alone.
    found["1, micro-batches halved"] = (1, [*setup.alone(), f"optimizer.micro_batch_tokens={micro_batch // 2}"])
    for count in setup.counts[1:]:
        found[f"{count}, sharded"] = (count, setup.on(count))
    if setup.gpus < 2:
        return found
    changes = [("parallel.sequence_parallel=2",), ("parallel.dp_replicate=2",)]
    if not setup.cpu:
        changes += [("memory.cpu_offload=idle",), ("memory.cpu_offload=always",)]
    for change in changes:
        found[f"2, {' '.join(change)}"] = (2, [*setup.on(2), *change])
    if setup.gpus >= 4:
        found["4, parallel.dp_replicate=2 parallel.sequence_parallel=2"] = (
            4,
            [*setup.on(4), "parallel.dp_replicate=2", "parallel.sequence_parallel=2"],
        )
    return found


def replay(setup: Setup, shape: str, words: Sequence[str], place: Place) -> dict[str, Any]:
    """Draw rollouts, or learn from those that were drawn, with these settings."""
    recording, output = place.name.endswith(tables.RECORDED), setup.run(place.name).with_suffix(".json")
    batches = setup.folder / "batches" / shape
    if recording:
        shutil.rmtree(batches, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    last = {word.partition("=")[0]: word for word in [*SAME, *words]}
    given = [f"run.task={FIXED_TASK}", f"model.path={setup.model(shape)}", f"run.output={setup.run(place.name)}"]
    command = [sys.executable, REPLAY, "record" if recording else "replay"]
    command += ["--batches", str(batches), "--output", str(output), *given, *last.values()]
    failed = ""
    try:
        place.run(command)
    except Failed as error:
        if recording or not output.exists():
            raise
        failed = str(error)  # the steps before it tell something all the same
    return {
        "words": list(last.values()),
        "rows": json.loads(output.read_text()),
        **({"failed": failed} if failed else {}),
    }


def weak(setup: Setup) -> list[Job]:
    """The same work for each GPU."""
    through_ray = Job("weak 1, through Ray", 1, partial(steps, setup, 1, setup.on(1)), ("model " + setup.sizes.shape,))
    return [*scaling(setup, "weak", lambda count: count), through_ray]


def strong(setup: Setup) -> list[Job]:
    """The same work for all GPUs together; on one it is that of `weak`."""
    return scaling(setup, "strong", lambda count: 1)


def scaling(setup: Setup, part: str, times: Callable[[int], int]) -> list[Job]:
    """Whole steps on 1, 2 and 4 GPUs."""
    jobs = [model_job(setup, setup.sizes.shape)]
    for count in setup.counts:
        words = setup.alone() if count == 1 else setup.on(count)
        name = "weak 1" if count == 1 else f"{part} {count}"
        jobs.append(Job(name, count, partial(steps, setup, times(count), words), (jobs[0].name,), limit=300))
    return jobs


def steps(setup: Setup, times: int, words: Sequence[str], place: Place) -> dict[str, Any]:
    """Times of a step, `times` the work of one GPU's: means over all steps but the first."""
    job = dict(setup.sizes.step)
    job["prompts"] *= times
    given = [*without_output(step_settings(setup.model(setup.sizes.shape), Path(), job)), *words]
    given = [word for word in given if not word.startswith("run.steps=")]  # it is ended after so many
    failed = ""
    try:
        train(setup, place.name, [*given, "run.steps=1000"], place, lines=1 + job["steps"])
    except Failed as error:
        failed = str(error)
    rows = metrics(setup.run(place.name))[2:]
    if not rows:
        raise Failed(failed)
    tokens = job["prompts"] * job["samples"] * (job["prompt_tokens"] + job["new_tokens"])
    seconds = {name: fmean(row[name] for row in rows) for name in rows[0] if name.startswith("timing_s/")}
    return {
        **({"failed": failed} if failed else {}),
        "words": list(words),
        "step_s": [row["timing_s/step"] for row in rows],
        "timing_s": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds["timing_s/step"],
        "balance": {name: rows[-1][name] for name in rows[-1] if name.startswith("global_seqlen/")},
    }


def without_output(words: Sequence[str]) -> list[str]:
    """Without the directory, which `train` gives."""
    place = words.index("--output")
    return [*words[:place], *words[place + 2 :]]


def tensor_parallel(setup: Setup) -> list[Job]:
    """vLLM spread over two GPUs: beside two ranks, and apart from one or two."""
    jobs = [model_job(setup, setup.sizes.shape)]
    needs, most = (jobs[0].name,), min(setup.gpus, 4)
    if most >= 2:
        work = partial(spread, setup, setup.on(2))
        jobs.append(Job("tensor_parallel 2, beside the ranks", 2, work, needs, limit=300))
    if most >= 3 or (setup.cpu and most == 2):
        apart = setup.on(most, engines=1, spread=1 if setup.cpu else 2)
        jobs.append(Job(f"tensor_parallel {most}, apart", most, partial(spread, setup, apart), needs, limit=300))
    return jobs


def spread(setup: Setup, words: Sequence[str], place: Place) -> dict[str, Any]:
    """A whole run of two steps, to its end."""
    given = without_output(step_settings(setup.model(setup.sizes.shape), Path(), setup.sizes.spread))
    given = [
        "rollout.return_logprobs=always" if word.startswith("rollout.return_logprobs=") else word for word in given
    ]
    rows = train(setup, place.name, [*given, *setup.sizes.vllm, *words], place)
    shutil.rmtree(setup.run(place.name) / "checkpoints", ignore_errors=True)  # gigabytes
    return {"words": [*setup.sizes.vllm, *words], "rows": rows}


def resume(setup: Setup) -> list[Job]:
    """A run saved on two GPUs goes on on one, two and four."""
    name = "resume: without a break"
    given = ["--task", FIXED_TASK, "--model", str(setup.model("10M")), *setup.sizes.resume, "model.dtype=float32"]
    given += [
        "data.prompt_template=base",
        "optimizer.learning_rate=1e-4",
        "optimizer.num_mini_batches=2",
        "run.steps=4",
    ]
    given += [
        "rollout.return_logprobs=always",
        "checkpoint.every=2",
        "eval.num_problems=8",
        "eval.every=0",
        "eval.greedy=false",
    ]
    jobs = [model_job(setup, "10M")]
    if setup.gpus < 2:
        return jobs
    whole = partial(uninterrupted, setup, [*given, *setup.on(2)])
    jobs.append(Job(name, 2, whole, ("model 10M",), limit=200))
    for count in setup.counts:
        words = setup.alone() if count == 1 else setup.on(count)
        jobs.append(Job(f"resume: on {count}", count, partial(go_on, setup, name, words), (name,), limit=200))
    return jobs


def uninterrupted(setup: Setup, words: Sequence[str], place: Place) -> dict[str, Any]:
    """The run from whose middle others go on."""
    return {"words": list(words), "rows": train(setup, place.name, words, place)}


def go_on(setup: Setup, begun: str, words: Sequence[str], place: Place) -> dict[str, Any]:
    """Go on with a copy of a run, from step 2."""
    copy = setup.run(place.name)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(setup.run(begun), copy)
    for newer in (copy / "checkpoints").glob("step_[!2]*"):
        shutil.rmtree(newer)
    rows = train(setup, place.name, words, place, resume=True)
    if not any("resuming from step 2" in line for line in place.lines):
        raise Failed(f"it did not go on from step 2\n{place.last_lines()}")
    return {"words": list(words), "rows": rows}


def one_step_off(setup: Setup) -> list[Job]:
    """The small model, with engines and update alternating, or with an engine one step behind."""
    if setup.gpus < 2:
        return []
    jobs = [] if setup.cpu else [Job(tables.OWN_MODEL, 1, partial(warm_start, setup), limit=250)]
    needs = tuple(job.name for job in jobs)
    apart = [*setup.on(2, engines=1), ONE_STEP_OFF]
    runs = {
        "synchronous": setup.on(2),
        "one step off": [*apart, "rollout_correction.is_level=token"],
        "one step off, loss ratio alone": apart,
    }
    for name, words in runs.items():
        work = partial(learn, setup, words)
        jobs.append(Job(f"one_step_off: {name}", 2, work, needs, limit=setup.learning))
    return jobs


def small_words(setup: Setup) -> list[str]:
    """Settings of all of its runs."""
    own = [] if setup.cpu else [f"default_model.directory={setup.folder / 'own'}"]
    return ["--task", TASK, *own, *setup.sizes.small]


def warm_start(setup: Setup, place: Place) -> dict[str, Any]:
    """Let `tinyzero train` make the model that it would train, and end it there."""

    def made() -> bool:
        return any(not path.parent.name.endswith(".tmp") for path in (setup.folder / "own").glob("*/tinyzero.toml"))

    run = setup.run(place.name)
    shutil.rmtree(run, ignore_errors=True)
    if not made():
        place.run([*TINYZERO, "train", "--output", str(run), *small_words(setup)], until=made)
    return {"seconds": place.seconds}


def learn(setup: Setup, words: Sequence[str], place: Place) -> dict[str, Any]:
    """A whole run; one that is stopped at its limit tells how far it came."""
    run, failed = setup.run(place.name), ""
    try:
        train(setup, place.name, [*small_words(setup), *words], place)
    except Failed as error:
        if len(metrics(run)) < 2:
            raise
        failed = str(error)
    rows = metrics(run)
    whole = outcome(rows, minutes=rows[-1].get(TRAINING_SECONDS, 0.0) / 60)
    found = {
        "words": list(words),
        **whole,
        "tokens_per_s": rate(rows),
        "settled_tokens_per_s": rate(rows, tables.SETTLED),
    }
    return found | ({"failed": failed} if failed else {})


def rate(rows: Sequence[dict[str, Any]], since: int = 0) -> float | None:
    """Generated tokens a second of training, in the steps after that one; None = there are none, or not that one.

    Example:
        >>> rate([{"step": n, TRAINING_TOKENS: 90.0 * n, TRAINING_SECONDS: 8.0 + n} for n in range(3)], since=1)
        90.0
    """
    first, last = next((row for row in rows if row["step"] == since), None), rows[-1]
    if first is None or last["step"] <= since:
        return None
    tokens, seconds = (last[name] - first.get(name, 0.0) for name in (TRAINING_TOKENS, TRAINING_SECONDS))
    return float(tokens / seconds)


PARTS: dict[str, Callable[[Setup], list[Job]]] = {
    "same": same,
    "resume": resume,
    "tensor_parallel": tensor_parallel,
    "weak": weak,
    "strong": strong,
    "one_step_off": one_step_off,
}
"""In the order in which they are begun."""
