"""Ends vLLM's processes when the trainer ends in any way: orphaned, they would keep the GPU's memory."""

import contextlib
import os
import select
import threading

TRAINER = "TINYZERO_TRAINER_PID"
"""Environment variable with the id of the trainer's process, for those that it starts."""


def exit_with_trainer() -> None:
    """End this process once the trainer's has ended; no effect in the trainer's own."""
    trainer = int(os.environ.get(TRAINER, os.getpid()))
    if trainer != os.getpid():
        threading.Thread(target=_follow, args=(trainer,), name="tinyzero-parent-watchdog", daemon=True).start()


def _follow(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        select.select([os.pidfd_open(pid)], [], [])
    os._exit(1)  # as a signal that cannot be caught would
