"""The command line's frame (help, errors, exit codes, extensions) and the commands `tasks` and `plugins`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import tinyzero_sdk
from tests.sdk.conftest import options_source

CALL = "from tinyzero_sdk.cli import main; main()"
PROMPT = "@hookimpl\ndef make_prompt(): return 'say it'"
FIELDS = ("size: int = 3", '"""How many [digits]."""', "pair: tuple[int, int] = (1, 2)")
DESCRIBED = f"""
{options_source(*FIELDS)}
@hookimpl
def info(): return TaskInfo("Say a [number].")
@hookimpl
def solve(item): return f"<answer>{{item.ground_truth}}</answer>"
"""


@pytest.fixture
def say(install, task_source):
    modules = {"say_module": task_source(extra=DESCRIBED)}
    install("tz-say", version="2.1", modules=modules, tasks={"say": "say_module"})


@pytest.mark.slow
def test_version_and_help(run, monkeypatch):
    assert run("--version") == (0, f"tinyzero-sdk {tinyzero_sdk.__version__}\n", "")
    code, out, _ = run("--help")
    commands = ["tasks", "plugins", "new", "check", "fuzz", "data", "sample", "score", "rescore"]
    commands += ["compare", "train", "eval"]
    assert code == 0
    assert [command for command in commands if f"│ {command} " not in out] == []
    monkeypatch.setenv("COLUMNS", "80")
    assert [command for command in commands if re.search(r"[\w-]…", run(command, "--help")[1])] == []


@pytest.mark.parametrize("arguments", [("no-such-command",), ("tasks", "--no-such-option"), ("tasks", "a", "b")])
def test_wrong_use_exits_2(run, arguments):
    assert run(*arguments)[0] == 2


def test_tasks_lists_each_with_its_origin(run, say):
    code, out, err = run("tasks")
    assert (code, err) == (0, "")
    [line] = [line for line in out.splitlines() if line.startswith("say ")]
    assert line.rstrip().endswith("tz-say 2.1")
    assert "Say a [number]." in line


@pytest.mark.slow
def test_tasks_lists_what_is_broken_too(run, say, install):
    install("tz-broken", modules={"broken_module": "import no_such"}, tasks={"broken": "broken_module"})
    install("tz-again", tasks={"say": "other_module"})
    code, out, err = run("tasks", "--json")
    rows = {(row["name"], row["distribution"]): row for row in json.loads(out)}
    assert (code, err) == (0, "")
    assert "No module named 'no_such'" in rows["broken", "tz-broken"]["broken"]
    assert "tz-again" in rows["say", "tz-say"]["broken"]
    assert "broken: task 'broken'" in " ".join(run("tasks")[1].split())


def test_task_is_described(run, say):
    code, out, err = run("tasks", "say", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "name": "say",
        "version": "2.1",
        "description": "Say a [number].",
        "ability": "math",
        "score_range": [0.0, 1.0],
        "parts": {},
        "waivers": {},
        "unsafe_scorer": "",
        "judge": None,
        "options": [
            {"key": "task.size", "type": "int", "default": 3, "help": "How many [digits]."},
            {"key": "task.pair", "type": "[int, int]", "default": [1, 2], "help": ""},
        ],
        "templates": ["base", "chat", "compact"],
        "example": {"prompt": "base: say 0", "ground_truth": 0, "solution": "<answer>0</answer>"},
    }
    shown = run("tasks", "say")[1]
    for text in ("say 2.1  Say a [number].", "How many [digits].", "[int, int]  [1, 2]", "  <answer>0</answer>"):
        assert text in shown


def test_task_file_without_data_still_shows_its_options(run, write_task):
    path = write_task(generate_dataset="@hookimpl\ndef generate_dataset(): raise OSError('no data')", extra=DESCRIBED)
    code, out, _ = run("tasks", path)
    assert code == 0
    assert "task.size" in out
    assert "generate_dataset raised OSError: no data" in out


def test_error_is_one_line_without_traceback(run, monkeypatch):
    code, out, err = run("tasks", "nonesuch")
    assert (code, out) == (2, "")
    assert err.startswith("error: no task 'nonesuch'; ")
    assert err.count("\n") == 1
    monkeypatch.setenv("TINYZERO_DEBUG", "1")
    assert "Traceback" in run("tasks", "nonesuch")[2]


COMMANDS = """
from pathlib import Path
from tinyzero_sdk import hookimpl
@hookimpl
def register_commands(app):
    @app.command("crash")
    def crash(): raise ValueError("two\\nlines [red]")
    @app.command("stop")
    def stop(): raise KeyboardInterrupt
"""


def test_hook_register_commands(run, install):
    install("tz-commands", modules={"commands_module": COMMANDS}, plugins={"more": "commands_module"})
    code, out, err = run("crash")
    assert (code, out) == (70, "")  # 1 would say that some rows failed
    assert err == "unexpected error: ValueError: two lines [red] (set TINYZERO_DEBUG=1 to see where)\n"
    assert run("stop")[0] == 130


def test_plugins_lists_what_each_offers(run, install):
    code = COMMANDS + "@hookimpl\ndef score_wrappers(): return {}\n"
    install("tz-commands", modules={"commands_module": code}, plugins={"more": "commands_module"})
    rows = {row["name"]: row for row in json.loads(run("plugins", "--json")[1])}
    assert rows["more"]["offers"] == "commands, score wrappers"
    assert rows["more"]["broken"] is None
    assert "tz-commands 1.0" in run("plugins")[1]


def test_broken_plugin_warns_in_one_line_and_the_rest_works(run, install):
    install("tz-broken", modules={"broken_module": "raise ValueError('a\\nb')"}, plugins={"broken": "broken_module"})
    code, out, err = run("--version")
    assert code == 0
    assert out.startswith("tinyzero-sdk ")
    assert err == "warning: plugin 'broken' (tz-broken 1.0) is ignored: ValueError: a b\n"
    rows = {row["name"]: row for row in json.loads(run("plugins", "--json")[1])}
    assert rows["broken"]["broken"] == "ValueError: a\nb"


@pytest.mark.parametrize("command", ["train", "eval", "sft", "warmstart", "plan", "doctor"])
def test_without_the_trainer_its_commands_say_what_to_install(run, monkeypatch, command):
    monkeypatch.setattr("tinyzero_sdk.cli.app.load_plugins", tuple)
    code, out, err = run(command, "--task", "countdown", "task.numbers=[3,4]")
    assert (code, out) == (2, "")
    assert err == f"error: 'tinyzero {command}' needs the trainer: pip install 'tinyzero-sdk[train]'\n"


def run_in_process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **variables):
    """The command line in a process of its own."""
    command = [sys.executable, "-c", CALL, *words]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, stdout=stdout, stderr=stderr, text=True, check=False)


@pytest.mark.slow
def test_text_that_the_terminal_cannot_show_is_escaped(write_task):
    data = "@hookimpl\ndef generate_dataset(): return [Item('× \\ud800')]"
    shown = run_in_process("tasks", write_task(generate_dataset=data, make_prompt=PROMPT), PYTHONIOENCODING="ascii")
    assert r"\xd7 \ud800" in shown.stdout
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_stdout_is_one_line(write_task, unbuffered):
    with open("/dev/full", "w") as full:
        ended = run_in_process("sample", "--task", write_task(), stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert (ended.returncode, ended.stderr) == (2, "error: cannot write the output: No space left on device\n")


@pytest.mark.slow
@pytest.mark.fault(
    "terminal",
    "What reads the output leaves",
    made="a command writes into a pipe whose reader has ended (`| head -1`)",
    seen="",
    kept="everything, and its exit code; what follows of the output is lost",
)
@pytest.mark.parametrize("arguments", [["tasks"], ["tasks", "--json"]])
def test_a_reader_that_leaves_changes_nothing(arguments, fault_row):
    read, write = os.pipe()
    os.close(read)
    ended = run_in_process(*arguments, stdout=write)
    os.close(write)
    fault_row.check(ended.stderr, ended.returncode or None)
    assert ended.stderr == ""


@pytest.mark.slow
@pytest.mark.fault(
    "full log",
    "The output of a command that does more than print is lost",
    made="its stdout, its stderr or both are /dev/full",
    seen="warning: the output could not be written: No space left on device",
    kept="everything, and its exit code; a command that only prints ends with an error",
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_on_a_full_disk_changes_nothing(write_task, tmp_path, fault_row):
    words = ["data", "--task", write_task(), "--size", "9", "--test-size", "0", "--format", "jsonl", "--output"]
    with open("/dev/full", "w") as full:
        ended = run_in_process(*words, str(tmp_path / "out"), stdout=full)
        fault_row.check(ended.stderr, ended.returncode or None)
        ended = run_in_process(*words, str(tmp_path / "other"), stdout=full, stderr=full)
    assert ended.returncode == 0
    assert (tmp_path / "out/train.jsonl").read_text() == (tmp_path / "other/train.jsonl").read_text() != ""


FEW_THREADS = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


@pytest.mark.slow
@pytest.mark.fault(
    "threads",
    "Hardly any process or thread may be started",
    made="a user whose limit is `ulimit -u 3` starts a command",
    seen="error: this user can start only … more processes or threads, and the command needs about …; raise the limit,"
    " `ulimit -u`, which is 3",
    kept="nothing has begun",
    code=2,
)
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes rights away by setpriv, as root")
@pytest.mark.parametrize("words", ["data --size 9 --output out", "check", "train --model tiny"])
def test_too_few_threads_are_one_line(write_task, fault_row, words):
    words = ["bash", "-c", 'ulimit -u 3; exec "$@"', "few", sys.executable, "-c", CALL, *words.split(), write_task()]
    ended = subprocess.run([*FEW_THREADS, *words], capture_output=True, text=True, check=False)
    fault_row.check(ended.stderr, ended.returncode)
    assert ended.stderr.count("\n") == 1


@pytest.mark.fault(
    "home",
    "The user has no home directory, as in some containers",
    made="HOME is not set, and the user ID has no entry",
    seen="warning: this user has no home directory, so caches last as long as the command; set HOME to keep them",
    kept="everything but caches",
)
def test_a_user_without_a_home_has_one_for_the_time_of_the_command(run, write_task, monkeypatch, fault_row):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    at_home = (
        "@hookimpl\ndef make_prompt():\n    from pathlib import Path\n    return str(Path('~/cache').expanduser())"
    )
    code, out, err = run("tasks", write_task(make_prompt=at_home))
    fault_row.check(err.strip(), code or None)
    assert re.search("tinyzero-home-.*/cache", out)


@pytest.mark.slow
def test_sigterm_removes_temporary_files(write_task, tmp_path):
    slow = """
import time
@hookimpl
def generate_dataset(size, start):
    print("begun", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", CALL, "data", "--task", write_task(generate_dataset=slow)]
    command += f"--output {tmp_path}/out --size 9 --test-size 0 --workers 1 --format jsonl".split()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        assert list((tmp_path / "out").iterdir())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
    assert not list((tmp_path / "out").iterdir())
