"""Errors that more than one package raises or handles; running out of memory is in utils/oom.py."""

import textwrap

from tinyzero_sdk.errors import TinyZeroError


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next if it ends with a colon; its type where that says too little.

    Example:
        >>> first_line(ValueError("no such file:\\n  a.json\\nmore")), first_line(KeyError("size"))
        ('no such file: a.json', "KeyError: 'size'")
    """
    line = textwrap.shorten(str(error).replace(":\n", ": ").strip().partition("\n")[0], 200, placeholder=" …")
    name = type(error).__name__
    return f"{name}: {line}" if line and isinstance(error, LookupError) else line or name


class Fault(Exception):
    """What is wrong with a model's files or with torch, and what to do; `tinyzero doctor` shows it as a finding."""

    def __init__(self, what: str, do: str, commands: tuple[str, ...] = ()) -> None:
        super().__init__(what, do, commands)
        self.what, self.do, self.commands = what, do, commands

    def __str__(self) -> str:
        return f"{self.what}; {self.do}" + (f": {' or: '.join(self.commands)}" if self.commands else "")


class WorkerDiedError(TinyZeroError):
    """A worker's process has died."""

    def __init__(self, worker: str, end: str, *, policy_intact: bool) -> None:
        """`policy_intact`: all training ranks are alive, with the weights from before the step."""
        super().__init__(f"{worker} {end}")
        self.worker, self.policy_intact = worker, policy_intact


class NoCapacityError(WorkerDiedError):
    """Nothing can be started in place of a worker that died, for example because its machine is gone."""


class EngineError(TinyZeroError):
    """A rollout engine failed."""


class VllmError(EngineError):
    """vLLM does not start, has other weights than the policy, or cannot do what it is asked to."""


class EngineDiedError(EngineError):
    """A rollout engine died, hangs, or returned less than it was asked for: one in its place may do better."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason, advice)
        self.reason = reason
        self.worker: str | None = None  # the actor that has the engine; None = this process

    def __str__(self) -> str:
        return "; ".join(filter(None, self.args))
