"""The app: its commands, signals and exit codes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

import tinyzero_sdk
from tinyzero_sdk.cli import check, compare, data, evaluate, fuzz, new, report, rescore, score, tasks
from tinyzero_sdk.console import LogStream, exit_on_error, stdout, warn
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.plugins.registry import load_plugins

TRAINER_COMMANDS = ("train", "sft", "warmstart", "recipes", "runs", "replay", "plan", "doctor")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; `arguments` default to those of the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for model text that the terminal cannot encode
    with redirect_stderr(LogStream(sys.stderr)), _signals_as_ctrl_c(), exit_on_error():
        try:
            app, name = build_app(), next(iter(sys.argv[1:] if arguments is None else arguments), None)
            # Typer reads the signatures of all commands, which takes longer than many a command.
            if wanted := [command for command in app.registered_commands if command.name == name]:
                app.registered_commands = wanted
            app(args=arguments, prog_name="tinyzero")
        finally:
            _flush_stdout()


def _flush_stdout() -> None:
    """Write what is left: here a full disk is one line, at the interpreter's exit a complaint of Python's."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it is tried again at the exit
        if not isinstance(error, BrokenPipeError):
            raise


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, so that it cleans up; the exit codes are 143 and 129."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: int | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = number
        signal.signal(number, signal.SIG_IGN)  # `timeout` sends two; the clean-up must finish
        raise KeyboardInterrupt  # not SystemExit, which the guards around a task's code would attribute to the task

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}  # nohup ignores SIGHUP
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received is not None:
            sys.exit(128 + received)


def build_app() -> typer.Typer:
    """The app with the SDK's commands and those of every plugin that works."""
    app = typer.Typer(
        help="Write a task with a verifiable reward, prove the reward, train a language model on it.",
        epilog="Results go to stdout or --output. "
        "Exit codes: 0 success, 1 some rows or checks failed, 2 usage error, 70 internal error.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # which joins the lines of a paragraph
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for command in (
        *(tasks.tasks, tasks.plugins, new.new, check.check, fuzz.fuzz),
        *(data.data, data.sample, score.score, rescore.rescore, compare.compare),
        *(report.report, report.view, report.export),
    ):
        app.command(command.__name__)(command)
    for plugin in load_plugins():
        plugin.call("register_commands", app=app)
        if plugin.error:
            origin = f"{plugin.distribution} {plugin.version}"
            warn(f"plugin {plugin.name!r} ({origin}) is ignored: {plugin.error}")
    evaluate.register(app, load_plugins())
    present = {command.name for command in app.registered_commands}
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in TRAINER_COMMANDS:
        if name not in present:
            app.command(name, help="Needs the trainer.", context_settings=settings)(_needs_trainer)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"tinyzero-sdk {tinyzero_sdk.__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


def _needs_trainer(context: typer.Context) -> None:
    raise TinyZeroError(f"'tinyzero {context.info_name}' needs the trainer: pip install 'tinyzero-sdk[train]'")
