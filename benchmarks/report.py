"""How fast a report of a large run opens and filters in a browser, and `view` with ten times as much.

    python benchmarks/report.py [--steps 1000] [--completions 100000] [--served 1000000] [--runs 5]

Synthetic runs. First paint is the browser's first contentful paint of the file, curves drawn the frame after which they
are on the screen: of a report, whose data are in the file, the same one or the next. A filter is the time from the
input to the table. Needs Chromium; playwright is installed on first use.
"""

import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.common import print_machine, print_table
from tests.dummy_runs import write_run
from tests.environments import ROOT, installed
from tinyzero_sdk.report.page import report
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.report.server import make_server

FILTERS: dict[str, dict[str, Any]] = {
    "a reason and a set": {"reason": ["wrong"], "split": ["heldout"]},
    "a range of steps": {"step": [100, 400], "sort": "num_tokens"},
    "a text": {"text": "multiply {}"},  # another one each time: the server remembers what it has searched
}
TARGETS = {"first paint": 1.5, "curves drawn": 1.5, **dict.fromkeys(FILTERS, 0.3)}


def measure(browser: Any, address: str, number: int) -> dict[str, float]:
    """Seconds of each of `TARGETS`, in a new page; the text searched for has this number."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(address)
    page.locator(".chart canvas").first.wait_for()
    paint = "performance.getEntriesByName({0})[0].startTime / 1000"
    names = {"first paint": "'first-contentful-paint'", "curves drawn": "'shown'"}
    found = {what: page.evaluate(paint.format(name)) for what, name in names.items()}
    page.evaluate("show({view: 'completions'})")
    page.locator("table.rows tbody tr").first.wait_for()
    page.wait_for_timeout(3000)  # the texts are unpacked while the page is idle
    for what, filters in FILTERS.items():
        script = """async (filters) => {
            const start = performance.now(), marks = () => performance.getEntriesByName("filtered").length;
            const before = marks();
            show({filters: JSON.stringify(filters), offset: 0});
            while (marks() === before) await new Promise(requestAnimationFrame);
            return (performance.now() - start) / 1000;
        }"""
        wanted = {name: value.format(number) if name == "text" else value for name, value in filters.items()}
        found[what] = page.evaluate(script, wanted)
    page.close()
    return found


def main(
    steps: Annotated[int, typer.Option(help="Steps of the run of the report.")] = 1000,
    completions: Annotated[int, typer.Option(help="Its completions.")] = 100_000,
    served: Annotated[int, typer.Option(help="Completions of a run of ten times the steps, for `view`; 0 = none.")] = 10
    ** 6,
    runs: Annotated[int, typer.Option(help="Times each page is opened.")] = 5,
) -> None:
    print_machine("pyarrow")
    sys.path.insert(0, str(installed("playwright")))
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as driver:
        path = write_run(Path(folder) / "report", steps=steps, completions=completions, tokens=False)
        start = time.perf_counter()
        page = path.with_suffix(".html")
        page.write_text(report([open_run(path, "run")], most=completions), encoding="utf-8")
        print(f"report written in {time.perf_counter() - start:.1f} s, {page.stat().st_size / 1e6:.1f} MB\n")
        addresses = {f"report, {completions:,} completions": page.as_uri()}
        if served:
            large = write_run(Path(folder) / "view", steps=10 * steps, completions=served, tokens=False)
            server = make_server(large, 0)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            addresses[f"view, {served:,} completions"] = f"http://127.0.0.1:{server.server_port}/"
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        rows = {}
        for name, address in addresses.items():
            times = [measure(browser, address, 7 + number) for number in range(runs)]
            medians = [statistics.median(one[what] for one in times) for what in TARGETS]
            rows[name] = {what: f"{median:.2f} s" for what, median in zip(TARGETS, medians, strict=True)}
        rows["target, of the report"] = {what: f"{target:.1f} s" for what, target in TARGETS.items()}
        print_table(f"median of {runs}", rows)
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    typer.run(main)
