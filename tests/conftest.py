"""What holds for every test, and what makes each a little shorter without asking less."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import scoring_here
from tinyzero_sdk.scoring import pool

# A busy machine is no fault of the code; what must be fast says so in a test of its own. The examples are drawn anew
# in every run, so fewer in each lose nothing for long; what every change must pass takes the other profile.
settings.register_profile("tinyzero", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tinyzero"))

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test pulls the plug: what a process wrote outlives its end, whether or not it waited for the disk.
os.fsync = lambda descriptor: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collector passes over what was imported: to look at all of torch again and again is a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def scored_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to score, for tests that ask what is scored, not where; `real_workers` takes it back."""
    if "real_workers" not in request.fixturenames:
        monkeypatch.setattr(pool, "WorkerProcess", scoring_here.ScoringThread)
        monkeypatch.setattr(pool, "score_answers", scoring_here.score_answers)


@pytest.fixture
def real_workers() -> None:
    """Scoring takes place in processes, as a user's does."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes first, or one process would still be at it when all others are done."""
    for item in items:
        if (mark := item.get_closest_marker("nightly")) and not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: nightly(reason=…) is to say why every change need not run it")
    items.sort(key=lambda item: item.get_closest_marker("minutes") is None)
