"""Code that somebody else's file names: none runs before the user has said so, whichever command reads the file."""

import os
import random
from itertools import product

import pytest
import tomli_w
from rich.prompt import Confirm

from tinyzero_sdk.cli import main
from tinyzero_sdk.console import stderr
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import describe, unflatten
from tinyzero_sdk.tasks import trust
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose, gather
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.config.sft import SftConfig, compose_sft

CANARY = "import os\nos.environ['CANARY'] = __name__\ndef f(*_): pass\n"
SETTINGS = {
    "a task": {"run": {"task": "./canary.py"}},
    "a folder": {"run": {"task": "./folder"}},
    "a table": {"tasks": {"x": {"task": "./canary.py"}}},
    "the name of a table": {"tasks": {"/FOLDER": {}}},
    "another task": {"run": {"task": "countdown"}, "eval": {"tasks": ["./canary.py"]}},
    "an entry": {"run": {"task": "countdown"}, "eval": {"tasks": {"x": {"task": "./folder"}}}},
    "a loss": {"run": {"task": "countdown"}, "algorithm": {"policy_loss": "./canary.py:f"}},
    "an estimator": {"run": {"task": "countdown"}, "algorithm": {"advantage_estimator": "canary:f"}},
    "other letters": {"run": {"task": "countdown"}, "algorithm": {"policy_loss": "./canary.py:évil"}},
    "a file of two lines": {"run": {"task": "countdown"}, "algorithm": {"policy_loss": "./new\nline.py:f"}},
    "a module of other letters": {"run": {"task": "countdown"}, "algorithm": {"advantage_estimator": "é_mod:f"}},
    "a permission": {"run": {"task": "countdown"}, "reward": {"allow_unsafe": True}},
    "a cluster": {"run": {"task": "countdown", "executor": "ray"}, "ray": {"address": "127.0.0.1:9"}},
}
COMMANDS = {
    "--config x.toml": ("train", "plan", "doctor", "sft", "warmstart", "plan --sft"),
    "--recipe x.toml": ("train --task countdown", "plan"),
    "--resume --output run": ("train", "sft"),
    "--model ./run": ("eval", "train --task countdown", "sft --task countdown"),
    "run 1": ("replay",),
    "run": ("runs", "runs --json", "report", "export -o x.json"),
    "": ("runs",),
}
READ = ("runs", "report", "export")
TAKING_CODE = (
    "run.task",
    "tasks",
    "tasks.x.task",
    "eval.tasks",
    "algorithm.policy_loss",
    "algorithm.advantage_estimator",
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working directory with code to name, of an account that trusts nothing."""
    for file in ("canary.py", "folder/__init__.py", "new\nline.py", "é_mod.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(CANARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("CANARY", "")
    monkeypatch.setenv(trust.TRUST_VARIABLE, "0")
    monkeypatch.setattr(trust, "_named", set())
    return tmp_path


def write(place, settings):
    """The settings as a configuration, and as those of a run and a model."""
    text = tomli_w.dumps(settings).replace("/FOLDER", str(place / "folder"))
    (place / "x.toml").write_text(text)
    (place / "run/checkpoints/step_1").mkdir(parents=True, exist_ok=True)
    (place / "run/config.toml").write_text(text)
    (place / "run/metrics.jsonl").write_text('{"step": 1}\n')
    (place / "run/tinyzero.toml").write_text(
        tomli_w.dumps({"settings": settings}).replace("/FOLDER", str(place / "folder"))
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", SETTINGS)
def test_no_command_runs_what_a_file_names(place, what, capsys):
    write(place, SETTINGS[what])
    named = 0
    for file, commands in COMMANDS.items():
        for command in commands:
            with pytest.raises(SystemExit) as end:
                main([*command.split(), *file.split()])
            said = capsys.readouterr().err
            assert os.environ["CANARY"] == "", command
            assert command.startswith(READ) or end.value.code == 2, said
            named += "names code that would run" in said
    assert named >= 7


@pytest.mark.parametrize("what", SETTINGS)
def test_all_that_a_file_names_is_asked_about(place, what):
    write(place, SETTINGS[what])
    with pytest.raises(SettingsError, match="names code that would run"):
        gather(TrainConfig, {}, [], place / "x.toml")


@pytest.mark.slow
@pytest.mark.nightly(reason="a sample of all keys; every change tries the keys that take code in every command")
def test_no_setting_runs_what_a_file_names(place):
    """Keys of both kinds of run with every form of code, also those that take none."""
    forms = ["./canary.py", "canary.py", "./canary.py:f", "canary:f", "folder:f", "./folder", str(place / "folder")]
    forms += ["./canary.py:évil", "./new\nline.py:f", "é_mod:f"]
    keys = [(cls, field.key) for cls in (TrainConfig, SftConfig) for field in describe(cls)]
    named = 0
    for cls, key in random.sample(keys, 8) + [(cls, key) for cls in (TrainConfig, SftConfig) for key in TAKING_CODE]:
        for form, wrap in product(forms, (str, lambda form: [form], lambda form: {form: {}})):
            write(place, unflatten({"run.task": "countdown", key: wrap(form)}))
            for read in (
                lambda cls=cls: (compose if cls is TrainConfig else compose_sft)(gather(cls, {}, [], place / "x.toml")),
                lambda cls=cls: resume_config(place / "run", {}, cls),
                lambda: compose({"run": {"recipe": "x.toml", "task": "countdown"}}),
                lambda: compose({"run": {"task": "countdown"}, "model": {"path": "./run"}}),
            ):
                try:
                    read()
                except SettingsError as error:
                    named += "names code that would run" in str(error)
                assert os.environ["CANARY"] == "", (key, form)
    assert named > 500


def test_what_the_user_names_is_remembered(place, monkeypatch):
    settings = {"run": {"task": "./canary.py"}, "algorithm": {"policy_loss": "canary:f"}}
    write(place, settings)
    with pytest.raises(SettingsError, match=r"names code that would run: .*canary\.py, canary:f \(\S*\); read it"):
        gather(TrainConfig, {}, [], place / "x.toml")
    gather(TrainConfig, {"run.task": "./canary.py"}, ["algorithm.policy_loss=canary:f"])
    trust._named.clear()  # another process
    assert gather(TrainConfig, {}, [], place / "x.toml")["algorithm"] == {"policy_loss": "canary:f"}
    (place / "state/tinyzero/trusted_code").write_text(f"canary:f ({place / 'canary.py'})\n")
    with pytest.raises(SettingsError, match=r"names code that would run: \S*canary\.py; read it"):
        gather(TrainConfig, {}, [], place / "x.toml")
    (place / "folder/canary.py").touch()
    monkeypatch.syspath_prepend(place / "folder")
    with pytest.raises(SettingsError, match=r"canary:f \(\S*folder/canary\.py\)"):
        gather(TrainConfig, {}, [], place / "x.toml")


def test_a_permission_is_one_of_the_same_settings(place):
    allowed = {"reward": {"allow_unsafe": True}, "run": {"steps": 3}}
    trust.vouch(allowed)
    trust.require_trust(place, allowed)
    with pytest.raises(SettingsError, match="names code that would run: allow_unsafe=True of "):
        trust.require_trust(place, {**allowed, "run": {"steps": 4}})
    trust.require_trust(place, {"reward": {"allow_unsafe": False}, "ray": {"address": "auto"}})


def test_a_user_at_a_terminal_is_asked(place, monkeypatch):
    write(place, {"run": {"task": "./can\x1b[2Kary.py"}})
    asked, answers = [], iter([False, True])
    monkeypatch.setattr(type(stderr), "is_terminal", True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(Confirm, "ask", lambda text, **_: asked.append(text) or next(answers))
    with pytest.raises(SettingsError, match="names code that would run"):
        gather(TrainConfig, {}, [], place / "x.toml")
    gather(TrainConfig, {}, [], place / "x.toml")
    gather(TrainConfig, {}, [], place / "x.toml")
    assert len(asked) == 2
    assert r"can\x1b" in asked[0]
    assert "\x1b" not in asked[0]


def test_a_flag_trusts_and_a_home_that_cannot_be_written_is_no_error(place, monkeypatch, capsys):
    write(place, SETTINGS["a task"])
    (place / "state").write_text("a file")
    with pytest.raises(SystemExit):
        main(["plan", "--config", "x.toml", "--trust-code"])
    assert "lacks the hooks" in capsys.readouterr().err
    assert os.environ["CANARY"]
    monkeypatch.setenv(trust.TRUST_VARIABLE, "")
    gather(TrainConfig, {}, [], place / "x.toml")  # trusted in this process
    trust._named.clear()
    with pytest.raises(SettingsError, match="names code that would run"):
        gather(TrainConfig, {}, [], place / "x.toml")
