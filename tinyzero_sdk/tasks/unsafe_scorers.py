"""Scorers that must not be trusted with a model's text: where they may run, and what is said where they may not.

A task says so of itself (`TaskInfo.unsafe_scorer`). Such a scorer runs in worker processes alone, which can be
killed, and there only if the user allowed it. It is not a sandbox: what the scorer runs has the user's rights.
"""

from tinyzero_sdk.errors import UnsafeScorerError

_is_worker = False


def enter_worker() -> None:
    """Called by a worker process for itself, before it loads its task."""
    global _is_worker  # noqa: PLW0603
    _is_worker = True


def check_allowed(task_name: str, why: str, allowed: bool) -> None:
    """Nothing for a safe scorer, or one that the user allowed.

    Raises:
        UnsafeScorerError: the user must allow it first.
    """
    if why and not allowed:
        raise UnsafeScorerError(
            f"the scorer of task {task_name!r} must not be trusted with a model's text ({why}); to run it in worker "
            "processes all the same, give --allow-unsafe-scorers (in Python: allow_unsafe_scorers=True)"
        )


def check_place(task_name: str, why: str, allowed: bool) -> None:
    """Nothing for a safe scorer, or for an allowed one within a worker process.

    Raises:
        UnsafeScorerError: the user must allow it first, or must not score in this process.
    """
    check_allowed(task_name, why, allowed)
    if why and not _is_worker:
        raise UnsafeScorerError(
            f"the scorer of task {task_name!r} must not be trusted with a model's text ({why}), so it does not run "
            "in this process; score in a ScoringPool, or with tinyzero score"
        )
