"""The app: its commands, signals and exit codes."""

import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

import tinyzero_sdk
from tinyzero_sdk.cli import check, compare, data, evaluate, fuzz, new, report, rescore, score, tasks
from tinyzero_sdk.console import LossyStream, exit_on_error, stdout, warn
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.plugins.registry import load_plugins
from tinyzero_sdk.redaction import redact
from tinyzero_sdk.tasks.trust import TRUST_OPTION, TRUST_VARIABLE
from tinyzero_sdk.workers.process import count_cores

ONLY_PRINT = {"tasks", "plugins", "sample", "compare", "report", "recipes", "runs", "replay", "plan", "doctor"}
"""Commands without effect if their output is lost; the others then go on to their own exit code, unless with --json."""

TRAINER_COMMANDS = ("train", "sft", "warmstart", "recipes", "runs", "replay", "plan", "doctor")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; `arguments` default to those of the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for model text that the terminal cannot encode
    output, words = LossyStream(sys.stdout), [*(sys.argv[1:] if arguments is None else arguments)]
    if TRUST_OPTION in words:  # of every command, and so at any place
        words.remove(TRUST_OPTION)
        os.environ[TRUST_VARIABLE] = "1"
    streams = redirect_stdout(output), redirect_stderr(LossyStream(sys.stderr, redact))
    with streams[0], streams[1], _signals_as_ctrl_c(), exit_on_error(), _home():
        try:
            _require_threads(count_cores() if ONLY_PRINT.intersection(words[:1]) else 3 * count_cores() + 10)
            app = build_app()
            # Typer reads the signatures of all commands, which takes longer than many a command.
            if wanted := [command for command in app.registered_commands if command.name == next(iter(words), None)]:
                app.registered_commands = wanted
            app(args=words, prog_name="tinyzero")
        finally:
            output.flush()
            if output.lost is not None and not isinstance(output.lost, BrokenPipeError):
                if "--json" in words or ONLY_PRINT.intersection(words[:1]):
                    raise output.lost
                warn(f"the output could not be written: {output.lost.strerror}")


def _require_threads(needed: int) -> None:
    """Refuse to begin where fewer threads can be started than libraries and workers start, which then hang or crash."""
    enough, threads = threading.Event(), list[threading.Thread]()
    try:
        while len(threads) < needed:
            thread = threading.Thread(target=enough.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        raise TinyZeroError(
            f"this user can start only {len(threads)} more processes or threads, and the command needs about {needed}; "
            f"raise the limit, {f'`ulimit -u`, which is {limit}' if limit >= 0 else 'which may be that of a container'}"
        ) from None
    finally:
        enough.set()


@contextmanager
def _home() -> Iterator[None]:
    """Give a user without a home directory, as in some containers, one for the time of the command."""
    if os.path.expanduser("~") != "~":
        yield
        return
    warn("this user has no home directory, so caches last as long as the command; set HOME to keep them")
    with tempfile.TemporaryDirectory(prefix="tinyzero-home-", ignore_cleanup_errors=True) as home:
        os.environ["HOME"] = home
        try:
            yield
        finally:
            del os.environ["HOME"]


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
    trust_code: Annotated[
        bool, typer.Option(TRUST_OPTION, help="Run code that a configuration, recipe, run or model of others names.")
    ] = False,
) -> None:
    """Options before the command."""


def _needs_trainer(context: typer.Context) -> None:
    raise TinyZeroError(f"'tinyzero {context.info_name}' needs the trainer: pip install 'tinyzero-sdk[train]'")
