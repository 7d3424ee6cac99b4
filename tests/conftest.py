"""Settings and fixtures for all tests, and what makes each a little faster."""

import gc
import os
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests import in_process_scoring
from tests.faults import Fault, Faults
from tinyzero_sdk.scoring import pool
from tinyzero_sdk.tasks.trust import vouch

# No deadlines, because the machine may be busy. Every run draws other examples, so each may have few; `make nightly`
# uses the second profile; `make mutants` the third, which shrinks nothing.
settings.register_profile("tinyzero", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None)
settings.register_profile("mutants", deadline=None, max_examples=30, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tinyzero"))

# Read when torch is imported, here and in the commands that tests start: threads that spin make a busy machine crawl.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell ignores Ctrl-C in background jobs, and nohup a closed terminal; children inherit that. Some tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test cuts the power: what a process wrote outlives it without waiting for the disk.
os.fsync = lambda descriptor: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The garbage collector skips imported modules: scanning all of torch again and again takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(100_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests trust is trusted by them alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        vouch({"tasks": [*map(str, Path(__file__).parent.rglob("*_task.py"))]})
        yield


@pytest.fixture
def scored_in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring in this process, for tests in which the worker processes do not matter; `real_workers` undoes it."""
    if "real_workers" not in request.fixturenames:
        monkeypatch.setattr(pool, "Supervisor", in_process_scoring.ThreadSupervisor)
        monkeypatch.setattr(pool, "score_answers", in_process_scoring.score_answers)


@pytest.fixture
def real_workers() -> None:
    """Scoring in worker processes, as in a real run."""


@pytest.fixture
def fault_row(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """Checks a test's rows of docs/reliability.md."""
    faults = Faults([Fault(*mark.args, **mark.kwargs) for mark in request.node.iter_markers("fault")])
    yield faults
    assert not faults.unchecked, "the test does not check its row"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real pretrained chat model: the directory of SmolLM2-135M-Instruct that TINYZERO_SMOLLM2 names."""
    if not (directory := os.environ.get("TINYZERO_SMOLLM2")):
        pytest.skip("needs TINYZERO_SMOLLM2, the directory of HuggingFaceTB/SmolLM2-135M-Instruct")
    assert Path(directory, "config.json").is_file(), f"TINYZERO_SMOLLM2={directory} is no model"
    return Path(directory)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take minutes go first, or one process would still run them when all others are done."""
    for item in items:
        if (mark := item.get_closest_marker("nightly")) and not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: nightly(reason=…) must say why not every change needs to run it")
    # pytest-xdist cuts the list into equal parts, one for each process. A file's tests may share what takes minutes.
    files = groupby((item for item in items if item.get_closest_marker("minutes")), lambda item: item.path)
    groups = [list(tests) for _, tests in files]
    others = [item for item in items if not item.get_closest_marker("minutes")]
    count, spread = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), list[pytest.Item]()
    for process in range(count):
        first = [item for group in groups[process::count] for item in group]
        size = (len(items) - len(spread)) // (count - process) - len(first)
        spread += [*first, *others[: max(size, 0)]]
        del others[: max(size, 0)]
    items[:] = spread + others
