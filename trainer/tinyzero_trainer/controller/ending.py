"""How a run ends: with a checkpoint of what is whole, one line that says how to resume, and a signal's exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.controller.checkpointer import how_to_resume
from tinyzero_trainer.controller.session import Session, Step
from tinyzero_trainer.utils.oom import OutOfMemoryError
from tinyzero_trainer.utils.signals import Interrupted, Stopped, StopRequested


@contextmanager
def ending(session: Session, step: Step) -> Iterator[None]:
    """Save where a signal or an error ends the block and has left the policy intact.

    An error says in addition how to resume. Once a signal has asked the run to stop, it ends with the signal's exit
    code, whatever else happens.

    Raises:
        Interrupted: a signal ended the run, which is saved.
        Stopped: an error ended it after a signal.
        TinyZeroError: the error of the block.
    """
    stop = session.stop
    try:
        try:
            yield
        except Exception as error:
            _save_if_intact(session, step, error)
            raise
    except StopRequested:
        assert stop.signal is not None
        raise Interrupted(stop.signal, session.state.step, resume_command(session.recorded)) from None
    except OutOfMemoryError:  # its advice says with which settings to resume
        raise
    except TinyZeroError as error:
        error.args = (f"{error}; {how_to_resume(session.run, session.recorded)}",)
        if stop.signal is None:
            raise
        raise Stopped(stop.signal, f"with an error: {error}") from error


def _save_if_intact(session: Session, step: Step, error: Exception) -> None:
    """Save the last whole step, unless the error says that the policy is lost; before the first, only for a signal."""
    if isinstance(error, StopRequested):
        session.save(step)
    elif not isinstance(error, TinyZeroError):
        session.workers.check()  # what has died there is the reason of whatever was raised
    elif error.policy_intact and step.policy_intact and session.state.step:
        session.save(step)
