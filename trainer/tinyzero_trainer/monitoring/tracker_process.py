"""The process of one tracker, which `trackers.py` starts; it imports no other part of the trainer.

It gets a step and its metrics in each message, and None after the last. It sends a mapping for whatever happens:
`recorded` for each step, `say` for the user, with `failed` if that is all.
"""

import json
import os
import signal
import ssl
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tinyzero_sdk.workers.process import SharedTimer

_REACH_SECONDS = 3.0
_INIT_SECONDS = 8.0  # after that W&B records offline

Rows = Iterator[tuple[int, dict[str, float]]]
Tell = Callable[..., None]


def record(arguments: str, connection: Connection, timer: SharedTimer) -> None:
    """The service of the process (see `workers.process.Service`), given the options as JSON."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, which then sends the end
    os.dup2(1, 2)  # where stdout goes already, so that nothing of a library is seen

    def tell(**news: Any) -> None:
        with suppress(OSError):  # the run was killed, and the tracker finishes what it has
            connection.send(news)

    options = json.loads(arguments)
    try:
        RECORDERS[options["name"]](options, _rows(connection, tell), tell)
    except ModuleNotFoundError as error:
        extra = "trackio" if options["name"] == "trackio" else "trackers"
        tell(say=f"{error}; install it with: pip install 'tinyzero-trainer[{extra}]'", failed=True)
    except BaseException as error:  # the libraries promise nothing
        reason = str(error).strip().partition("\n")[0] or "no reason given"
        tell(say=f"{type(error).__name__}: {reason}", failed=True)


def _rows(connection: Connection, tell: Tell) -> Rows:
    with suppress(EOFError, OSError):  # the run was killed, perhaps as it wrote
        while (row := connection.recv()) is not None:
            yield row
            tell(recorded=row[0])


def _record_in_wandb(options: dict[str, Any], rows: Rows, tell: Tell) -> None:
    import wandb

    directory = Path(options["directory"])
    settings = wandb.Settings(init_timeout=_INIT_SECONDS, silent=True, console="off")
    server = wandb.setup(settings).settings.base_url
    file = directory / ".wandb-id"  # the same when a run is resumed
    if options["anew"] or not file.exists():
        file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    arguments: dict[str, Any] = {
        **{name: options[name] for name in ("project", "config")},
        "name": directory.name,
        "dir": str(directory),
        "id": file.read_text(encoding="utf-8"),
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
        upload = f"wandb sync {directory}/wandb/offline-run-*"
        tell(say=f"recording offline ({str(error).partition(chr(10))[0]}); upload with: {upload}")
        wandb.teardown()  # or the failed attempt keeps the id
        run = wandb.init(**arguments, mode="offline")
    if is_online and run.url:
        tell(say=f"recording at {run.url}")
    for step, metrics in rows:
        run.log(metrics, step=step)
    if is_online:
        _reach(server)
    run.finish()


def _reach(server: str) -> None:
    """Raise an OSError if nothing answers there."""
    try:
        urlopen(server, timeout=_REACH_SECONDS).close()
    except URLError as error:  # an HTTPError is an answer, and W&B may know other certificates
        if not isinstance(error, HTTPError) and not isinstance(error.reason, ssl.SSLError):
            raise OSError(f"{server} cannot be reached: {error.reason}") from error


def _record_in_trackio(options: dict[str, Any], rows: Rows, tell: Tell) -> None:
    import trackio

    run, name = None, Path(options["directory"]).name
    for step, metrics in rows:
        if run is None:
            # A new run may have the name of an older one in another directory; a resumed one continues the newest.
            resume = "allow" if step and not options["anew"] else "never"
            run = trackio.init(options["project"], name, config=options["config"], resume=resume, embed=False)
            tell(say=f"view: trackio show --project {options['project']}")
        run.log(metrics, step=step)
    if run is not None:
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
    writer.close()


RECORDERS = {"wandb": _record_in_wandb, "trackio": _record_in_trackio, "tensorboard": _record_in_tensorboard}
