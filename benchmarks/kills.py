"""Whether a run that is killed at random moments ends as if nothing had happened, and leaves nothing behind.

    python benchmarks/kills.py [--local 70] [--asynchronous 30] [--ray 30] [--seed 0]

Runs of 20 steps of a very small model on the tests' toy task get SIGKILL at random moments, from their start to their
end: the trainer, or any other of their processes. A run that this ends is resumed, and killed again, until it is done.
Then its metrics, completions and weights must be those of a run that was not disturbed, bit for bit. After each kill
that ends a run, none of its processes may be left within `GONE_SECONDS`, nor anything in /dev/shm; at the end the run's
directory has the same files. Exits with 1 unless all holds.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from uuid import uuid4

import psutil
import torch
import typer

from benchmarks.common import print_machine
from tests.trainer import preloaded
from tests.trainer.conftest import TOY_TASK, make_warm_model
from tests.trainer.runs import assert_same_weights, completions, lines, short_run
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import build, to_mapping
from tinyzero_trainer.config import TrainConfig

STEPS = 20
GONE_SECONDS = 120.0
HANGS_SECONDS = 300.0
"""For a run to end by itself after one of its processes was killed."""

MARK = "TINYZERO_KILLS"
"""An environment variable by which the processes of a run are found, whoever their parent is by then."""

RAY: dict[str, Any] = {
    "run__executor": "ray",
    "parallel__world_size": 2,
    "rollout__num_engines": 1,
    "ray__max_restarts": 10,
}
ASYNC: dict[str, Any] = {
    "rollout__max_async_level": 2,
    "rollout__return_logprobs": "always",
    "rollout_correction__is_level": "token",
    "rollout__temperature": 1.4,  # so that lengths differ
    "rollout__max_completion_tokens": 24,
}


@dataclass
class Tally:
    """What has happened to the runs of an executor."""

    victims: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    """Kills that ended the run, which was resumed."""

    runs: int = 0
    faults: list[str] = field(default_factory=list)


def main(
    local: Annotated[int, typer.Option(help="kills of runs without Ray")] = 70,
    ray: Annotated[int, typer.Option(help="kills of runs with Ray")] = 30,
    asynchronous: Annotated[int, typer.Option(help="kills of runs without Ray, with groups in flight")] = 30,
    seed: int = 0,
    keep: Annotated[Path | None, typer.Option(help="a new directory for the runs, which are kept")] = None,
) -> None:
    """Kill, resume and compare; print what happened."""
    print_machine("torch", "tinyzero-trainer", *(["ray"] if ray else []))
    os.environ[MARK] = uuid4().hex
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded.__name__])
    faults = list[str]()
    with TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        make_warm_model(str(TOY_TASK), folder / "model")
        for kind, kills, changes in (("local", local, {}), ("async", asynchronous, ASYNC), ("ray", ray, RAY)):
            if kills:
                tally = kill_runs(context, folder / kind, kills, changes, random.Random(seed))
                print(
                    f"{kind}: {kills} kills of {tally.runs} runs ({tally.ended} ended the run, which was resumed), "
                    f"{len(tally.faults)} faults; killed: {dict(tally.victims)}",
                    flush=True,
                )
                faults += tally.faults
    if faults:
        raise SystemExit("\n".join(faults))


def kill_runs(context: Any, folder: Path, kills: int, changes: dict[str, Any], dice: random.Random) -> Tally:
    """Run, kill and resume until there were so many kills and the last run is done."""
    tally, folder_of_model = Tally(), folder.parent / "model"
    folder.mkdir()

    def configure(name: str) -> TrainConfig:
        given = {"run__task": str(TOY_TASK), "run__steps": STEPS, "task__limit": 5, "optimizer__num_mini_batches": 2}
        given |= {"checkpoint__every": 1, "log__rollouts_every": 1, "log__held_out_count": 8, "reward__num_workers": 2}
        return short_run(folder_of_model, folder / name, **given, **changes)

    whole = configure("whole")
    seconds = undisturbed(context, whole)
    settle(tally, "the undisturbed run", shared_memory())
    while tally.victims.total() < kills:
        run = configure(f"run_{tally.runs}")
        tally.runs += 1
        while (code := session(context, run, tally, kills, seconds, dice)) != 0:
            if code not in (2, -signal.SIGKILL):
                tally.faults.append(f"{run.run.output}: exit code {code}")
            if len(tally.faults) > 5:
                return tally
        tally.faults += differences(run, whole)
        print(f"{run.run.output}: done after {tally.victims.total()} kills", *tally.faults, sep="\n  ", flush=True)
    return tally


def session(
    context: Any, run: TrainConfig, tally: Tally, kills: int, seconds: tuple[float, float], dice: random.Random
) -> int | None:
    """Start or resume a run and kill one of its processes at a random moment; its exit code."""
    before, first = shared_memory(), written(run)
    process = launch(context, run)
    target = dice.randint(first, STEPS + 1)  # lines of metrics, and a part of what comes after them
    while process.is_alive() and written(run) < target:
        time.sleep(0.002)
    process.join(dice.random() * (seconds[0] if target == first else 2 * seconds[1]))
    everyone, name = [process.pid, *(other for other in marked() if other != process.pid)], "nothing"
    if tally.victims.total() < kills and process.is_alive():
        with suppress(psutil.NoSuchProcess):
            victim = psutil.Process(process.pid if dice.random() < 0.6 else dice.choice(everyone))
            name = "the trainer" if victim.pid == process.pid else title(victim)
            victim.kill()
            tally.victims[name] += 1
    code = end_of(process)
    if code is None:
        tally.faults.append(f"{run.run.output}: hangs after the kill of {name}")
    if code != 0:
        tally.ended += 1
        if name == "nothing":
            tally.faults.append(f"{run.run.output}: ended by itself, exit code {code}")
    settle(tally, f"{run.run.output} after the kill of {name}", before)
    return code


def undisturbed(context: Any, run: TrainConfig) -> tuple[float, float]:
    """Take a run to its end: how long it took to the first line of metrics, and for each line after it."""
    process, started = launch(context, run), time.monotonic()
    while process.is_alive() and not written(run):
        time.sleep(0.002)
    begun = time.monotonic()
    assert end_of(process) == 0
    return begun - started, (time.monotonic() - begun) / STEPS


def written(run: TrainConfig) -> int:
    """How many lines its metrics have."""
    file = Path(run.run.output, "metrics.jsonl")
    return file.read_bytes().count(b"\n") if file.exists() else 0


def launch(context: Any, run: TrainConfig) -> Any:
    process = context.Process(target=train_or_resume, args=(to_mapping(run),))
    process.start()
    return process


def train_or_resume(values: dict[str, Any]) -> None:
    """In a process of its own; exits with 2 if a dead worker ends the run, as the command line does."""
    from tinyzero_trainer.controller.loop import train

    os.setpgid(0, 0)
    faulthandler.register(signal.SIGUSR2)
    torch.set_num_threads(1)
    run = build(TrainConfig, values)
    with Path(f"{run.run.output}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        train(run, resume=Path(run.run.output, "config.toml").exists())
    except TinyZeroError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


def end_of(process: Any) -> int | None:
    """Its exit code, once it has ended; None if it hangs, and was killed."""
    process.join(HANGS_SECONDS)
    if hangs := process.is_alive():
        process.kill()
        process.join()
    return None if hangs else int(process.exitcode)


def settle(tally: Tally, what: str, memory: set[str]) -> None:
    """Wait until no process of a run is left, and see whether shared memory is."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := list(marked())) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            tally.faults.append(f"{what}: left {title(psutil.Process(process))} ({process})")
            psutil.Process(process).kill()
    if new := shared_memory() - memory:  # what is in use is another program's, since no process of the run is left
        in_use = mapped()
        for name in sorted(new):
            with suppress(FileNotFoundError):
                if os.stat(f"/dev/shm/{name}").st_ino not in in_use:
                    tally.faults.append(f"{what}: left /dev/shm/{name}")


def marked() -> Iterator[int]:
    """Ids of all running processes of a run: what has our mark, without this process and its helpers."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    helpers = {os.getpid(), *(child.pid for child in psutil.Process().children())}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in helpers:
            with suppress(OSError):
                environment = (folder / "environ").read_bytes()
                if mark in environment.split(b"\0"):
                    yield int(folder.name)


def title(process: psutil.Process) -> str:
    """What a process is."""
    words = process.cmdline()
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0].partition(" ")[0]
    modules = [Path(word).name for word in words[1:] if word.endswith(".py") or word.startswith("tinyzero")]
    return modules[0] if modules else process.name()


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def mapped() -> set[int]:
    """The inodes of the shared memory that any process of this machine has; names in maps may be older ones."""
    inodes = set[int]()
    for file in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
            inodes.update(int(line.split()[4]) for line in lines if "/dev/shm/" in line)
    return inodes


def differences(run: TrainConfig, whole: TrainConfig) -> list[str]:
    """What a run that was killed has not as one that was not."""
    ours, theirs, faults = run.run.output, whole.run.output, list[str]()
    if lines(ours) != lines(theirs):
        faults.append(f"{ours}: other metrics")
    for split in ("train", "heldout"):
        if completions(ours, split) != completions(theirs, split):
            faults.append(f"{ours}: other completions of {split}")
    try:
        assert_same_weights(ours, theirs, STEPS)
    except AssertionError as error:
        faults.append(f"{ours}: other weights in {error}")
    if files(ours) != files(theirs):
        faults.append(f"{ours}: other files: {sorted(files(ours) ^ files(theirs))}")
    return faults


def files(output: str) -> set[str]:
    """Of a run; how many files its completions are in depends on when it was killed."""
    names = {path.relative_to(output).as_posix() for path in Path(output).rglob("*")}
    return {name for name in names if not name.startswith("completions/")}


if __name__ == "__main__":
    typer.run(main)
