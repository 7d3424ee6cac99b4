"""`tinyzero report`, `view` and `export`: runs and scored files as a page in the browser, or for another viewer."""

import os
import time
import webbrowser
from pathlib import Path
from secrets import token_urlsafe
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.score import Overwrite
from tinyzero_sdk.console import plural, stdout, warn
from tinyzero_sdk.errors import DataError, SettingsError

if TYPE_CHECKING:
    from tinyzero_sdk.report.runs import Run

DEFAULT_PORT = 8020
MARK = b'<meta name="generator" content="TinyZero">'
"""The mark of pages that may be replaced by newer ones."""

_HEAD_BYTES = 1000


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or scored files.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    completions: Annotated[
        int, typer.Option("--completions", min=0, metavar="N", help="Most completions of each run in the file.")
    ] = 100_000,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the file again whenever a run has grown, until Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option("--every", min=1, metavar="N", help="Seconds between two looks.")] = 15.0,
) -> None:
    """Write runs as one HTML page: learning curves, completions, evaluations and what changed between them.

    The file needs no network and no other file. Several runs are drawn over each other. `tinyzero view` serves the same
    page, for runs of any size.
    """
    from tinyzero_sdk.data.files import check_ending, replacing
    from tinyzero_sdk.report.page import report as make_page

    check_ending(output, (".htm", ".html"))
    if output.is_file() and MARK not in output.read_bytes()[:_HEAD_BYTES]:
        raise DataError(f"{output} is not a report, so it is not replaced; choose another --output")
    before: object = None
    while True:
        opened = _open(runs)
        files = [file for run in opened for file in (run.path / "metrics.jsonl", *run.completion_files())]
        now = [(file, file.stat().st_mtime_ns) for file in files if file.exists()]
        if now != before:
            before = now
            with replacing(output) as aside:
                text = make_page(opened, most=completions, refresh=every if watch else None, warn=warn)
                aside.write_text(text, encoding="utf-8")
            stdout.print(Text(f"{output} written, {len(text) / 1e6:.1f} MB"), soft_wrap=True)
        if not watch:
            return
        time.sleep(every)


def _open(paths: list[Path]) -> "list[Run]":
    from tinyzero_sdk.report.runs import open_run

    full = [Path(os.path.realpath(path)) for path in paths]  # `resolve` raises where links form a loop
    if len({*full}) < len(paths):
        raise SettingsError("a run is given twice; name each once")
    names = [path.name for path in full]
    return [
        open_run(path, name if names.count(name) == 1 else str(path)) for path, name in zip(paths, names, strict=True)
    ]


def export(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="Scored file; or a run or checkpoint, for its held-out evaluation.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log to write: .eval, or .json.")],
    overwrite: Overwrite = False,
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format of the log.")] = "inspect",
) -> None:
    """Write scored completions as a log of Inspect, for `inspect view` and its data frames.

    A problem is a sample, and its completions are epochs. Of several tasks each has a log: NAME-TASK.eval.
    """
    from tinyzero_sdk.scoring.readers import load_reader

    write = load_reader(format).export
    if write is None:
        raise SettingsError(f"the format {format!r} can be read, but not written")
    for log, completions in write(source, output, overwrite).items():
        stdout.print(Text(f"{plural(completions, 'completion')} written to {log}"), soft_wrap=True)


def view(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A run, a scored file, or a directory with any of them below it.")
    ] = Path(),
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, metavar="N", help="Port.", show_default=f"{DEFAULT_PORT}, or a free one"
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    token: Annotated[
        bool, typer.Option("--token/--no-token", help="Serve only who has the printed address; other users have not.")
    ] = True,
) -> None:
    """Show runs and scored files in the browser, also while they grow.

    The page is for this machine alone (127.0.0.1) and changes nothing. On another machine, forward the port:
    `ssh -L 8020:127.0.0.1:8020 HOST`.
    """
    from tinyzero_sdk.report.server import make_server

    if not directory.exists():
        raise DataError(f"{directory} does not exist; expected a run, a scored file, or a directory with some")
    secret = token_urlsafe() if token else ""
    try:
        server = make_server(directory, DEFAULT_PORT if port is None else port, secret)
    except OSError as error:
        if port is not None:
            raise SettingsError(f"port {port} cannot be used: {error.strerror}; give another --port") from error
        server = make_server(directory, 0, secret)
    address = f"http://127.0.0.1:{server.server_port}/" + (secret and f"?token={secret}")
    stdout.print(Text(f"{directory.resolve()} at {address} (Ctrl-C ends)"), soft_wrap=True)
    with server, NamedTemporaryFile("w", suffix=".html") as leading:
        if open:
            # Every user of the machine sees the words of a command, so the browser's is a file for this user alone.
            leading.write(
                f'<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; {address}">'
            )
            leading.flush()
            webbrowser.open(Path(leading.name).as_uri())
        server.serve_forever()
