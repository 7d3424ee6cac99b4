"""Unsafe scorers: where a scorer may run that must not be trusted with a model's text.

A task declares it (`TaskInfo.unsafe_scorer`). Such a scorer runs only in worker processes, which can be killed, and
only if the user allows it. This is not a sandbox: code that the scorer runs has the user's permissions.
"""

from tinyzero_sdk.errors import UnsafeScorerError

_is_worker = False


def enter_worker() -> None:
    """Mark this process as a worker; called before it loads its task."""
    global _is_worker  # noqa: PLW0603
    _is_worker = True


def check_allowed(task_name: str, why: str, allowed: bool) -> None:
    """Refuse an unsafe scorer that the user has not allowed."""
    if why and not allowed:
        raise UnsafeScorerError(
            f"the scorer of task {task_name!r} is unsafe for a model's text ({why}); to run it in worker processes "
            "anyway, give --allow-unsafe-scorers (in Python: allow_unsafe_scorers=True)"
        )


def check_place(task_name: str, why: str, allowed: bool) -> None:
    """Refuse an unsafe scorer that the user has not allowed, or that would run outside of a worker process."""
    check_allowed(task_name, why, allowed)
    if why and not _is_worker:
        raise UnsafeScorerError(
            f"the scorer of task {task_name!r} is unsafe for a model's text ({why}), so it does not run in this "
            "process; score in a ScoringPool, or with tinyzero score"
        )
