"""The process of one tracker: `trackers.py` starts it by its file, with no other part of the trainer.

It reads JSON lines: first the options, then a step and its metrics in each. It writes a line for whatever happens:
`recorded` for each step, `finishing` before it waits for a server, and `say` for the user.
"""

import json
import os
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

TOLD = 3
"""Exit code after an error that has been told."""

_REACH_SECONDS = 3.0
_INIT_SECONDS = 8.0  # after that W&B records offline

Rows = Iterator[tuple[int, dict[str, float]]]
Tell = Callable[..., None]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, which then closes the input
    output = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)

    def tell(**what: Any) -> None:
        with suppress(OSError):  # the run was killed, and the tracker finishes what it has
            print(json.dumps(what), file=output)

    options = json.loads(sys.stdin.readline())
    sys.path[:] = options["sys.path"]
    name, code = options["name"], TOLD
    try:
        RECORDERS[name](options, _rows(tell), tell)
        code = 0
    except ModuleNotFoundError as error:
        extra = "trackio" if name == "trackio" else "trackers"
        tell(say=f"{error}; install it with: pip install 'tinyzero-trainer[{extra}]'", failed=True)
    except BaseException as error:  # the libraries promise nothing
        reason = str(error).strip().partition("\n")[0] or "no reason given"
        tell(say=f"{type(error).__name__}: {reason}", failed=True)
    os._exit(code)  # without what the libraries do at the interpreter's exit, which may wait for a server


def _rows(tell: Tell) -> Rows:
    for line in sys.stdin:
        if not line.endswith("\n"):
            return  # the run was killed as it wrote
        step, metrics = json.loads(line)
        yield step, metrics
        tell(recorded=step)


def _record_in_wandb(options: dict[str, Any], rows: Rows, tell: Tell) -> None:
    import wandb

    settings = wandb.Settings(init_timeout=_INIT_SECONDS, silent=True, console="off")
    server = wandb.setup(settings).settings.base_url
    arguments: dict[str, Any] = {
        **{name: options[name] for name in ("project", "config")},
        "name": Path(options["directory"]).name,
        "dir": options["directory"],
        "id": _run_id(Path(options["directory"]), new=options["anew"]),
        "resume": "allow",
        "settings": settings,
    }
    is_online = os.environ.get("WANDB_MODE", "online") == "online"
    try:
        if is_online:
            _reach(server)  # in less time than W&B takes to give up
        run = wandb.init(**arguments)
    except Exception as error:  # of any type: a run on the disk can be uploaded later
        is_online = False
        upload = f"wandb sync {options['directory']}/wandb/offline-run-*"
        tell(say=f"recording offline ({str(error).partition(chr(10))[0]}); upload with: {upload}")
        wandb.teardown()  # or the failed attempt keeps the id
        run = wandb.init(**arguments, mode="offline")
    if is_online and run.url:
        tell(say=f"recording at {run.url}")
    for step, metrics in rows:
        run.log(metrics, step=step)
    if is_online:
        _reach(server)
    tell(finishing=True)
    run.finish()


def _reach(server: str) -> None:
    """Raise an OSError if nothing answers there."""
    try:
        urlopen(server, timeout=_REACH_SECONDS).close()
    except HTTPError as error:
        if error.code >= 500:  # which W&B would repeat for as long as it may
            raise OSError(f"{server} answers with {error.code}") from error
    except URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # W&B may know other certificates
            raise OSError(f"{server} cannot be reached: {error.reason}") from error
    except OSError as error:
        raise OSError(f"{server} does not answer: {error}") from error


def _run_id(directory: Path, *, new: bool) -> str:
    """W&B's id of this run: new in a new directory, the same when it is resumed."""
    file = directory / ".wandb-id"
    if new or not file.exists():
        file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _record_in_trackio(options: dict[str, Any], rows: Rows, tell: Tell) -> None:
    import trackio

    run, name = None, Path(options["directory"]).name
    for step, metrics in rows:
        if run is None:
            # A new run may have the name of an older one in another directory; a resumed one continues the newest.
            resume = "allow" if step and not options["anew"] else "never"
            run = trackio.init(options["project"], name, config=options["config"], resume=resume, embed=False)
            tell(say=f"look: trackio show --project {options['project']}")
        run.log(metrics, step=step)
    if run is not None:
        tell(finishing=True)
        run.finish()


def _record_in_tensorboard(options: dict[str, Any], rows: Rows, tell: Tell) -> None:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # TensorBoard's own writer: torch's SummaryWriter takes seconds to import.
    writer = EventFileWriter(str(Path(options["directory"], "tensorboard")), flush_secs=5)
    start = SessionLog(status=SessionLog.START)  # hides what an earlier session wrote from this step on
    for step, metrics in rows:
        if start is not None:
            writer.add_event(Event(wall_time=time.time(), step=step, session_log=start))
            start = None
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    tell(finishing=True)
    writer.close()


RECORDERS = {"wandb": _record_in_wandb, "trackio": _record_in_trackio, "tensorboard": _record_in_tensorboard}

if __name__ == "__main__":
    main()
