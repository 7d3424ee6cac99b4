"""W&B and TensorBoard as observers that can neither stop nor stall a run.

Each runs in a process of its own, fed through a bounded queue: whatever it does (raise, hang, crash, refuse to
exit), the run loses at most its figures there. `metrics.jsonl` is the record; their files lie beside it.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tinyzero_trainer.monitoring.metrics_log import plain_number

QUEUE_SIZE = 1000
"""Steps that wait for a slow tracker; further ones are left out and counted."""

CLOSE_SECONDS = 15.0
"""What all trackers together may take to finish, before they are killed."""

WANDB_INIT_SECONDS = 8.0
"""After that W&B records offline."""


class Trackers:
    """The trackers of a run; none of the methods blocks on them or raises for their sake."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        directory: Path,
        project: str,
        name: str,
        config: Mapping[str, Any],
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            names: any of `wandb` and `tensorboard`.
            directory: of the run.
            project: for W&B.
            name: of the run, for W&B.
            config: plain JSON.
            note: is told, in one line and from another thread, what the user should know of a tracker.
        """
        about = {"directory": str(directory), "project": project, "name": name, "config": config}
        self._trackers: list[_Tracker] = []
        for tracker in dict.fromkeys(names):
            try:
                self._trackers.append(_Tracker(tracker, about, note))
            except OSError as error:
                note(f"{tracker}: cannot be started ({error.strerror}); training goes on without it")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics of a step; NaN and infinities are left out."""
        if self._trackers:
            numbers = {key: number for key, value in metrics.items() if (number := plain_number(value)) is not None}
            line = json.dumps({"step": step, "metrics": numbers})
            for tracker in self._trackers:
                tracker.send(line)

    def close(self) -> None:
        """Let the trackers finish, for `CLOSE_SECONDS` at most; those that have not by then are killed."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for tracker in self._trackers:
            tracker.send(None)
        for tracker in self._trackers:
            tracker.end(deadline)
        self._trackers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Tracker:
    """The run's side of one tracker: its process, a thread that feeds it and one that listens to it."""

    def __init__(self, name: str, about: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self._name, self._note = name, note
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._killed = False
        self._process = subprocess.Popen(
            # -P: nothing in the working directory can stand in for a library.
            [sys.executable, "-P", "-m", "tinyzero_trainer.monitoring.trackers", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C is meant for the run; and what the tracker starts can be killed with it
        )
        self.send(json.dumps(about))
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._listen)]
        for thread in self._threads:
            thread.start()

    def send(self, line: str | None) -> None:
        """Queue a line, or leave it out if too many wait; None = there are no more."""
        if self._process.poll() is not None:
            return  # it has said why it stopped
        if line is None or self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(line)
        else:
            self._left_out += 1

    def end(self, deadline: float) -> None:
        """Wait until the tracker has finished; kill it at the deadline (of `time.monotonic`)."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._killed = True
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._note(f"{self._name}: did not finish in time and was stopped; metrics.jsonl has everything")
        for thread in self._threads:
            thread.join(timeout=1.0)
        if self._left_out:
            self._note(f"{self._name}: was too slow, {self._left_out} steps are missing there; metrics.jsonl has them")

    def _feed(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            while (line := self._queue.get()) is not None:
                pipe.write(line + "\n")
                pipe.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._note(f"{self._name}: {line.rstrip()}")
        code = self._process.wait()
        if code not in (0, _SAID_WHY) and not self._killed:
            self._note(f"{self._name}: its process ended with code {code}; training goes on without it")


# ---- the tracker's process -------------------------------------------------------------------------------------------

_SAID_WHY = 3
"""Exit code after an error that was reported."""


class _Observer(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


class _Wandb:
    def __init__(self, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
        import wandb

        # Silent from the start, so that it asks nobody for a key: without one it raises, and records offline.
        settings = wandb.Settings(init_timeout=WANDB_INIT_SECONDS, silent=True, console="off")
        wandb.setup(settings)
        options = {key: about[key] for key in ("project", "name", "config")} | {
            "dir": about["directory"],
            "id": _run_id(Path(about["directory"])),
            "resume": "allow",
            "settings": settings,
        }
        try:
            self._run = wandb.init(**options)
        except Exception as error:  # whatever it is, a run on the disk can be uploaded later
            upload = f"wandb sync {about['directory']}/wandb/offline-run-*"
            say(f"recording offline ({_one_line(error)}); upload with: {upload}")
            wandb.teardown()  # or the failed attempt keeps the id
            self._run = wandb.init(**options, mode="offline")
        if self._run.url:
            say(f"recording at {self._run.url}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, about: Mapping[str, Any], say: Callable[[str], None]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # TensorBoard's own writer: torch's SummaryWriter takes seconds to import.
        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(f"{about['directory']}/tensorboard", flush_secs=5)
        self._begun = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._begun:  # hides what an earlier sitting wrote from this step on
            start = self._session(status=self._session.START)
            self._writer.add_event(self._event(wall_time=time.time(), step=step, session_log=start))
            self._begun = True
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def finish(self) -> None:
        self._writer.close()


_OBSERVERS: Mapping[str, Callable[[Mapping[str, Any], Callable[[str], None]], _Observer]] = {
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
}


def _run_id(directory: Path) -> str:
    """W&B's id of this run: new in a new directory, the same when it is resumed."""
    file = directory / ".wandb-id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _one_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _main(name: str) -> int:
    """Observe: the first line of stdin says what run it is, each further one holds a step."""
    # What the libraries print goes to stderr, i.e. nowhere; the way back to the run is kept for ourselves.
    back = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
    os.dup2(2, 1)

    def say(text: str) -> None:
        print(text, file=back, flush=True)

    try:
        observer = _OBSERVERS[name](json.loads(sys.stdin.readline()), say)
        for line in sys.stdin:
            row = json.loads(line)
            observer.log(row["step"], row["metrics"])
        observer.finish()
    except ModuleNotFoundError as error:
        say(f"{error}; install it with: pip install 'tinyzero-trainer[trackers]'. Training goes on without it")
        return _SAID_WHY
    except Exception as error:  # the border to a library over which nothing is promised
        say(f"{type(error).__name__}: {_one_line(error)}; training goes on without it")
        return _SAID_WHY
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
