"""What holds for every test."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no fault of the code; what must be fast says so in a test of its own.
settings.register_profile("tinyzero", deadline=None)
settings.load_profile("tinyzero")

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The collector passes over what was imported: to look at all of torch again and again is a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
