"""The package that `tinyzero new` writes installs, is found, passes the checks, and trains."""

import json
from pathlib import Path

import pytest

from tests.e2e.transcript import Shell, make_environment, shortened

pytestmark = [pytest.mark.slow, pytest.mark.minutes]


def succeed(shell: Shell, command: str) -> str:
    output, code = shell.run(command)
    assert code == 0, f"$ {command}\n{output}"
    return output


@pytest.mark.parametrize("how", ["", "--no-build-isolation --no-deps"])
def test_a_new_package_installs_passes_the_check_and_trains(tmp_path: Path, how: str) -> None:
    shell = Shell(tmp_path, make_environment(tmp_path / "environment"))
    output = succeed(shell, "tinyzero new my-task").splitlines()
    installing, checking, warming, _ = (line.strip() for line in output[-4:])
    succeed(shell, f"{installing} {how}")
    tasks = {row["name"]: row for row in json.loads(succeed(shell, "tinyzero tasks --json"))}
    assert tasks["my-task"]["distribution"] == "my-task"
    assert not tasks["my-task"]["broken"]
    assert "a task already, of my-task" in shell.run("tinyzero new my-task --output other")[0]
    if not how:
        succeed(shell, shortened(checking))
        # Its own tests, and a property: all of them have just been checked.
        pytest_command = shortened("pytest -q -p no:cacheprovider --tinyzero-task my-task")
        assert " passed" in succeed(shell, f"cd my-task && {pytest_command} -k 'test_ or deterministic'")
        succeed(shell, shortened(warming))  # the tutorial runs this and the next command, after it has made a package
        rows = [json.loads(line) for line in (tmp_path / "start/metrics.jsonl").read_text().splitlines()]
        assert max(row["step"] for row in rows) == 2
