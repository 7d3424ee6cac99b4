"""Restarting a worker that died, with numbers as workers."""

import pytest

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError, WorkerDiedError
from tinyzero_trainer.executors.restart import Restartable


def died(worker: str, end: str = "has died", kind: type[WorkerDiedError] = WorkerDiedError) -> WorkerDiedError:
    return kind(worker, end, policy_intact=True)


class Engine:
    """A restartable worker that counts its restarts, of which those in `failures` fail."""

    def __init__(self, *failures: TinyZeroError, max_restarts: int = 2) -> None:
        self.failures, self.reports, self.started = list(failures), list[str](), list[int]()
        limits = {WorkerDiedError: max_restarts, EngineDiedError: max_restarts}
        self.worker = Restartable("engine", 0, self.start, limits, self.reports.append)

    def start(self, worker: int) -> int:
        self.started.append(worker)
        if self.failures:
            raise self.failures.pop(0)
        return worker + 1


def test_a_worker_is_restarted_up_to_a_limit_and_no_other_worker_is() -> None:
    engine, names = Engine(), ["engine", "engine", "rank 0"]

    def work(worker: int) -> int:
        if names:
            raise died(names.pop(0))
        return worker

    with pytest.raises(WorkerDiedError, match="rank 0 has died"):
        engine.worker.do(work)
    assert engine.started == [0, 1]
    assert engine.reports == [
        f"engine has died; it is restarted, and its work repeated (at most {more})"
        for more in ("1 more time", "0 more times")
    ]
    assert engine.worker.do(work) == 2
    names += ["engine"]
    with pytest.raises(WorkerDiedError, match="engine has died"):  # for the third time
        engine.worker.do(work)
    assert len(engine.started) == 2


def test_each_type_of_failure_has_a_separate_limit() -> None:
    engine = Engine(max_restarts=1)
    engine.worker.restart(died("engine"))
    engine.worker.restart(EngineDiedError("it hangs"))
    assert engine.reports[1].startswith("engine: it hangs; it is restarted")
    for failure in (died("engine"), EngineDiedError("it hangs", "raise vllm.timeout")):
        with pytest.raises(type(failure), match=str(failure)):
            engine.worker.restart(failure)


def test_a_worker_that_fails_at_its_restart_is_restarted_too() -> None:
    engine = Engine(died("engine", "could not start"))
    engine.worker.restart(died("engine"))
    assert (engine.worker.worker, len(engine.reports)) == (1, 2)
    engine = Engine(died("engine", "could not start"), died("engine", "could not start again"))
    with pytest.raises(WorkerDiedError, match="could not start again"):
        engine.worker.restart(died("engine"))
    assert len(engine.started) == 2


@pytest.mark.parametrize(
    "failure", [died("rank 0"), died("engine", "has no capacity", NoCapacityError), TinyZeroError("no")]
)
def test_a_restart_is_given_up_when_it_cannot_succeed(failure: TinyZeroError) -> None:
    engine = Engine(failure)
    with pytest.raises(type(failure), match=str(failure)):
        engine.worker.restart(died("engine"))
    assert len(engine.started) == 1
