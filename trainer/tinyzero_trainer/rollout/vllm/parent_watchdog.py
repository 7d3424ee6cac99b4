"""Ends vLLM's processes with the trainer's, however that ends: orphaned, they would keep the GPU's memory."""

import os
import select
import threading
import time

TRAINER = "TINYZERO_TRAINER_PID"
"""Variable with the id of the trainer's process, for those that it starts."""


def exit_with_trainer() -> None:
    """End this process once the trainer's has ended; without effect in the trainer's own."""
    trainer = int(os.environ.get(TRAINER, os.getpid()))
    if trainer != os.getpid():
        threading.Thread(target=_follow, args=(trainer,), name="tinyzero-parent-watchdog", daemon=True).start()


def _follow(pid: int) -> None:
    _wait_for_end(pid)
    os._exit(1)  # as a signal that cannot be caught would


def _wait_for_end(pid: int) -> None:
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or a sandbox without it
        while _lives(pid):
            time.sleep(1.0)
        return
    select.select([ended], [], [])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
