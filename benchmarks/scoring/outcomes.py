"""The rewards for labelled cases, computed in a separate process: some answers make some rewards hang or die."""

import multiprocessing
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.scoring.rewards import Reward
from tinyzero_sdk.testing.cases import Case

TIMEOUT = 2.0  # seconds for one answer
MEMORY_BYTES = 8 * 2**30


def judge_cases(reward: Reward, cases: Sequence[Case], timeout: float = TIMEOUT) -> dict[str, int]:
    """How often a reward is wrong about labelled cases; only full credit counts as accepted."""
    values = rewards_of(reward, [(case.completion, case.ground_truth) for case in cases], timeout)
    pairs = list(zip(cases, values, strict=True))
    counts = {
        "wrong answers accepted": sum(value == 1.0 and not case.correct for case, value in pairs),
        "right answers rejected": sum(value not in (None, 1.0) and case.correct for case, value in pairs),
        "no score (hangs, raises)": values.count(None),
    }
    return {f"wrong of {len(cases)}": sum(counts.values()), **counts}


def rewards_of(reward: Reward, asked: Sequence[tuple[str, Any]], timeout: float = TIMEOUT) -> list[float | None]:
    """The reward of each (completion, ground truth); None if it takes longer than `timeout`, raises or dies."""
    values: list[float | None] = []
    context = multiprocessing.get_context("fork")
    while len(values) < len(asked):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(reward, asked[len(values) :], sender))
        process.start()
        sender.close()  # the child's end is then the only one, and closes when it dies
        try:
            while len(values) < len(asked):
                if not receiver.poll(timeout):
                    values.append(None)
                    break
                values.append(receiver.recv())
        except EOFError:
            values.append(None)
        finally:
            process.kill()
            process.join()
    return values


def _serve(reward: Reward, asked: Sequence[tuple[str, Any]], sender: Connection) -> None:
    """In the child process."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - rewards that evaluate answers may print
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("ignore")  # from evaluated answers
    for completion, ground_truth in asked:
        try:
            value: float | None = float(reward(completion, ground_truth))
        except Exception:  # counted as a failure
            value = None
        sender.send(value)
