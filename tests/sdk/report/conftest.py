import pytest

from tests.dummy_runs import write_run


@pytest.fixture(scope="session")
def run_path(tmp_path_factory):
    """A run of 20 steps with some 1,500 completions."""
    return write_run(tmp_path_factory.mktemp("runs") / "first", steps=20, completions=1500)
