"""The directory of a run: its layout, and which process may write in it.

config.toml          the resolved configuration, and the versions of packages and tasks
metrics.jsonl        one line per step
completions/         completions that are kept to be read
audit/               completions whose score the oracle contradicts, as labelled cases
skipped/step_N.json  the batch of a step that skipped an update
checkpoints/step_N/  what the run can resume from, and what transformers and vLLM load
curve.png            the plot at the end
"""

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import read_toml, to_mapping
from tinyzero_sdk.tasks.trust import vouch
from tinyzero_trainer.checkpoint import store as checkpoint
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.resume import resume_command

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = ".lock"
OWNER = ".owner.json"  # the process that holds the lock, or held it last; its presence marks a run directory


class RunDirectoryError(TinyZeroError):
    """A run directory cannot be used: another trainer, another run, no permission, no space."""


class RunDirectory:
    """Paths in a run directory; from `open`, one that only this process writes in."""

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, path / "config.toml"
        self.metrics, self.curve = path / "metrics.jsonl", path / "curve.png"
        self.completions, self.checkpoints = path / "completions", path / "checkpoints"
        self.audit = path / "audit"
        self._descriptor: int | None = None  # of the directory, while it is open

    @property
    def place(self) -> Path:
        """Where the directory is: `path`, unless it was renamed since it was opened, or deleted."""
        with suppress(OSError):  # of systems without /proc
            if self._descriptor is not None and not (
                self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
            ):
                return Path(os.readlink(f"/proc/self/fd/{self._descriptor}"))
        return self.path

    def require_in_place(self) -> None:
        """Raise a RunDirectoryError if it is not: half of the run would be written where nothing is locked."""
        if (place := self.place) != self.path:
            raise RunDirectoryError(f"{self.path} is now {place}: it was renamed or deleted while the run writes in it")

    def skipped_batch(self, step: int) -> Path:
        return self.path / "skipped" / f"step_{step}.json"

    @classmethod
    @contextmanager
    def open(cls, path: str | Path, *, resume: bool = False) -> Iterator["RunDirectory"]:
        """Create or enter a run directory and hold its lock, which the system releases if the process is killed."""
        if not str(path):
            raise RunDirectoryError("run.output is empty; name the directory of the run")
        run = cls(Path(path).expanduser())
        run.check(resume=resume)
        is_new = not run.path.exists()
        with errors_in_one_line(run.path):
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            lock = run.acquire()
        try:
            run.check(resume=resume)  # again: now no other process can change it
            with errors_in_one_line(run.path):
                owner = {"pid": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
                (run.path / OWNER).write_text(json.dumps(owner), encoding="utf-8")
                checkpoint.sweep(run.checkpoints)
            run._descriptor = os.open(run.path, os.O_RDONLY)
            yield run
        finally:
            lock.release()
            own = {LOCK, OWNER, run.checkpoints.name}
            if is_new and run.path.exists() and {entry.name for entry in run.path.iterdir()} <= own:
                shutil.rmtree(run.path)  # it was refused before it wrote anything
            if run._descriptor is not None:
                os.close(run._descriptor)
                run._descriptor = None

    def acquire(self) -> "BaseFileLock":
        """The lock; a RunDirectoryError that names the other process, if one holds it."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            name = "another process"
            with suppress(FileNotFoundError, ValueError):  # it is writing the file right now
                owner = json.loads((self.path / OWNER).read_text(encoding="utf-8"))
                name = f"process {owner['pid']}, started {owner['started']}"
            raise RunDirectoryError(f"{self.path} is in use by {name}; wait or stop it") from None
        return lock

    @property
    def is_locked(self) -> bool:
        """Whether a process trains there."""
        with suppress(FileNotFoundError), (self.path / LOCK).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: only looking, it leaves the run alone
            except BlockingIOError:
                return True
        return False

    def check(self, *, resume: bool) -> None:
        """Refuse a directory without a run to resume, with a run to start over, or that is not a run's."""
        with errors_in_one_line(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise RunDirectoryError(f"{self.path} is not a directory; give --output that of a run")
            if resume and not self.config.exists():
                raise RunDirectoryError(f"{self.path} holds no run to resume; leave out --resume to start one")
            if not resume and any(checkpoint.sealed(self.checkpoints)):
                command = resume_command(read_toml(self.config) if self.config.exists() else {}, self.path)
                raise RunDirectoryError(
                    f"{self.path} holds a run with checkpoints; resume with: {command} (or choose another --output)"
                )
            if not resume and self.config.exists() and not (self.path / OWNER).exists():
                raise RunDirectoryError(
                    f"{self.config} is not from a run and would be overwritten; choose another --output"
                )

    def save_config(self, config: TrainConfig | SftConfig, tasks: Mapping[str, str] | None = None) -> None:
        """Write `config.toml`, whole or not at all; as comments the versions of the packages, and those of `tasks`."""
        import tomli_w

        command = "sft" if isinstance(config, SftConfig) else "train"
        text = f"# Resolved configuration of this run; `tinyzero {command} --help` explains every key.\n"
        packages = ("tinyzero-trainer", "tinyzero-sdk", "torch", "transformers")
        versions = {name: version(name) for name in packages} | {"Python": platform.python_version()}
        for title, numbers in (("Versions", versions), ("Tasks", tasks or {})):
            listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
            text += f"# {title}: {listed}\n" if numbers else ""
        text += tomli_w.dumps(to_mapping(config))
        vouch(to_mapping(config))
        from tinyzero_sdk.data.files import replacing  # imports pyarrow, which no command needs at its start

        with replacing(self.config) as temporary:
            temporary.write_text(text, encoding="utf-8")


def newest_model(path: str) -> str:
    """The newest checkpoint of a run directory, which must have one; any other `model.path` as it is."""
    run = RunDirectory(Path(path).expanduser())
    if not run.config.exists():
        return path
    newest = checkpoint.latest(run.checkpoints)
    if newest is None:
        raise RunDirectoryError(f"{path} has no checkpoint yet; wait for its first, or give another --model")
    return str(newest.path)


@contextmanager
def errors_in_one_line(path: Path) -> Iterator[None]:
    """A RunDirectoryError for an OSError."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
