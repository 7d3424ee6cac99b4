"""What a reward says of labelled cases, asked in a process of its own: some answers make some rewards hang or die."""

import multiprocessing
import os
import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tinyzero_sdk.testing.cases import Case

Reward = Callable[[str, Any], float]

LIMIT = 2.0
"""Seconds for one answer."""

_MEMORY = 8 * 2**30
_FULL = 1.0


@dataclass
class Verdicts:
    """How often a reward is wrong about labelled cases."""

    cases: int = 0
    """How many there are."""

    false_accepts: int = 0
    """Wrong answers with full marks."""

    false_rejects: int = 0
    """Right answers without full marks."""

    failures: int = 0
    """No verdict: it hung, raised, or died."""

    @property
    def wrong(self) -> int:
        """All three together."""
        return self.false_accepts + self.false_rejects + self.failures

    def add(self, case: Case, paid: float | None) -> None:
        """Count the verdict on one case; None is no verdict."""
        self.cases += 1
        self.failures += paid is None
        self.false_accepts += paid == _FULL and not case.correct
        self.false_rejects += paid is not None and paid != _FULL and case.correct


def judge_cases(reward: Reward, cases: Sequence[Case], limit: float = LIMIT) -> Verdicts:
    """The verdicts of a reward on all cases."""
    verdicts = Verdicts()
    asked = [(case.completion, case.ground_truth) for case in cases]
    for case, paid in zip(cases, payments(reward, asked, limit), strict=True):
        verdicts.add(case, paid)
    return verdicts


def payments(reward: Reward, asked: Sequence[tuple[str, Any]], limit: float = LIMIT) -> list[float | None]:
    """What a reward pays for each completion; None where it takes longer than `limit`, raises or ends the process."""
    paid: list[float | None] = []
    context = multiprocessing.get_context("fork")
    while len(paid) < len(asked):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_pay, args=(reward, asked[len(paid) :], sender))
        process.start()
        sender.close()  # so that the child's end is the only one, and its death is seen
        try:
            while len(paid) < len(asked):
                if not receiver.poll(limit):
                    paid.append(None)
                    break
                paid.append(receiver.recv())
        except EOFError:
            paid.append(None)
        finally:
            process.kill()
            process.join()
    return paid


def _pay(reward: Reward, asked: Sequence[tuple[str, Any]], sender: Connection) -> None:
    """In the child: ask one after another."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - where a reward runs its answers as code, one of them prints
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")  # Python warns of some answers that are evaluated
    for completion, ground_truth in asked:
        try:
            paid: float | None = float(reward(completion, ground_truth))
        except Exception:  # a reward that raises gives no verdict, which is counted
            paid = None
        sender.send(paid)
