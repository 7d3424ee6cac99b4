"""A report and a served directory in Chromium, used as a reader does; prints what it found as JSON.

python in_browser.py CHROMIUM FIRST_RUN SECOND_RUN
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.report.page import report
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.report.server import make_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROWS = "table.rows tbody tr"


def until(page: "Page", condition: str) -> None:
    """Wait for a condition; playwright's own way to wait needs `eval` in the page, which the page forbids."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise TimeoutError(condition)


def filters(page: "Page") -> dict[str, Any]:
    """Counts and first rows under some filters, which a report and a server must answer alike."""
    page.get_by_role("button", name="Completions").first.click()
    found = {}
    steps: dict[str, Callable[[], Any]] = {
        "all": lambda: None,
        "wrong": lambda: page.locator(".chips button[value=wrong]").click(),
        "held-out": lambda: page.locator(".chips button[value=heldout]").click(),
        "level 4": lambda: (page.get_by_label("Difficulty from").fill("4"), page.keyboard.press("Tab")),
        "text": lambda: page.get_by_label("Search", exact=True).fill("TRY"),
        "none": lambda: page.get_by_label("Search", exact=True).fill("in no text at all"),
    }
    for name, act in steps.items():
        before = page.evaluate("performance.getEntriesByName('filtered').length")
        act()
        until(page, f"performance.getEntriesByName('filtered').length > {before - (name == 'all')}")
        page.wait_for_timeout(100)
        found[name] = [page.locator(".pages span").inner_text(), page.locator(ROWS).all_inner_texts()[:3]]
    page.get_by_role("button", name="Clear filters").click()
    until(page, "document.querySelectorAll('table.rows tbody tr').length === 50")
    return found


def problem(page: "Page") -> dict[str, Any]:
    """One completion, with keys: the next one, the same problem later, all side by side, closed."""
    page.locator(ROWS).first.click()
    page.locator(".completion").first.wait_for()
    addresses = [page.evaluate("location.hash")]
    found = {"answer": page.locator(".detail mark").all_inner_texts(), "marks": page.locator(".marks button").count()}
    for key in ("j", "]"):
        page.keyboard.press(key)
        until(page, f"location.hash !== {json.dumps(addresses[-1])}")
        page.wait_for_timeout(300)
        addresses.append(page.evaluate("location.hash"))
    page.keyboard.press("s")
    page.locator(".beside article").first.wait_for()
    found["beside"] = page.locator(".beside article").count()
    page.get_by_role("button", name="Entropy").click()
    until(page, "document.querySelector('.completion span').style.background.includes('color-mix')")
    page.reload()
    page.locator(".beside article").first.wait_for()
    found["beside again"] = page.locator(".beside article").count()
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('.split.open')")
    return {**found, "addresses": len(set(addresses))}


def others(page: "Page") -> dict[str, Any]:
    """Evaluations, configuration, curves and themes."""
    page.keyboard.press("3")
    page.get_by_text("From A to B").wait_for()
    found = {"comparison": page.locator("h2:text-is('From A to B') + p").inner_text()}
    found["compared"] = page.evaluate("""async () => {
        const sampled = every().filter((one) => one.decoding === "sampled");
        const last = chosenRuns().map((run) => sampled.filter((one) => one.run === run).at(-1));
        const sides = last.map((one) => ({ run: one.run.name, filters: filtersOf(one) }));
        const [found, same] = [await source.compare(sides), await source.compare([sides[0], sides[0]])];
        const shown = (one) => [one.problem, one.rates, one.rows.map((row) => row.problem)];
        const listed = ({ total, first }) => [total, first.slice(0, 3).map(shown)];
        const remarks = [found.remark, same.remark];
        return { ...found, remarks, better: listed(found.better), worse: listed(found.worse) };
    }""")
    page.locator(".flips button").first.click()
    page.locator(".completion").first.wait_for()
    page.keyboard.press("4")
    page.get_by_label("Differences only").check()
    found["differences"] = page.locator(".settings tbody th").all_inner_texts()
    page.keyboard.press("1")
    page.locator(".chart canvas").first.wait_for()
    found["charts"] = page.locator(".chart canvas").count()
    found["titles"] = page.locator("figcaption b").all_inner_texts()
    for axis in ("tokens", "hours", "step"):
        page.get_by_role("button", name=axis, exact=True).click()
    page.get_by_label("Find a metric").fill("grad_norm")
    page.get_by_text("1 metric", exact=True).wait_for()
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".chart").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    until(page, "[...document.querySelectorAll('.at')].filter((one) => one.textContent).length > 5")
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.up()
    until(page, "location.hash.includes('from=')")
    return found


@contextmanager
def served(directory: Path) -> Iterator[str]:
    server = make_server(directory, 0, "secret")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/?token=secret"
    server.shutdown()


def main(chromium: str, *paths: str) -> None:
    from playwright.sync_api import sync_playwright

    runs = [Path(path) for path in paths]
    page_file = runs[0].parent / "report.html"
    page_file.write_text(report([open_run(path, path.name) for path in runs], most=10**6), encoding="utf-8")
    found: dict[str, Any] = {"errors": []}

    def tell(error: str) -> None:
        if "Failed to fetch" not in error:  # of a page that has been left
            found["errors"].append(error)

    with sync_playwright() as driver, served(runs[0].parent) as address:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, start in (("report", page_file.as_uri()), ("view", f"{address}#runs={runs[0].name},{runs[1].name}")):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.on("console", lambda message: message.type == "error" and tell(message.text))
            page.on("pageerror", lambda error: tell(str(error)))
            page.set_default_timeout(15_000)
            page.goto(start)
            page.locator(".chart canvas").first.wait_for()
            found[name] = {"filters": filters(page), "problem": problem(page), "others": others(page)}
            if name == "view":
                page.get_by_label("Find a metric").fill("")
                with (runs[0] / "metrics.jsonl").open("a") as file:
                    file.write('{"step": 21, "found_while_it_runs": 1.0}\n')
                page.get_by_role("button", name="found_while_it_runs").wait_for()
                assert "secret" not in page.evaluate("location.href")
                page.goto(f"{address}&newest")
                until(page, f"document.title === '{runs[0].name} – TinyZero'")
            again = start.partition("#")[0]
            page.goto(f"{again}{'&' if '?' in again else '?'}absent#view=evaluations&runs=nope&a=foo")
            page.get_by_text("There is no run “nope” here; this shows ").wait_for()
            page.get_by_text("The chosen runs have no evaluation “foo”; A is ").wait_for()
            page.close()
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
