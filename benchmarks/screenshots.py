"""The pictures of docs/evaluation/report.md: a report of two runs, in Chromium.

    tinyzero train countdown --model tiny run.device=cpu run.steps=40 eval.every=5 --output runs/grpo \\
        rollout.return_logprobs=always
    tinyzero train countdown --model tiny run.device=cpu run.steps=24 eval.every=5 --output runs/dapo run.seed=1 \\
        algorithm.clip_ratio_high=0.28 algorithm.kl_coefficient=0 eval.pass_at=[4] eval.tasks=[multiply]
    python benchmarks/screenshots.py runs/grpo runs/dapo

Needs Chromium; playwright is installed on first use.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

import typer

from tests.environments import ROOT, installed
from tinyzero_sdk.report.page import report
from tinyzero_sdk.report.runs import open_run

FILTERS = '{"split":["train"],"reason":["ok"],"sort":"num_tokens","descending":true}'
PICTURES = {
    "report-curves": ({}, ".chart canvas"),
    "report-completion": ({"view": "completions", "shade": "entropy", "filters": FILTERS}, "table.rows tbody tr"),
    "report-evaluations": ({"view": "evaluations"}, ".flips"),
}


def main(runs: list[Path]) -> None:
    sys.path.insert(0, str(installed("playwright")))
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "report.html"
        page_file.write_text(report([open_run(path, path.name) for path in runs], most=10**6), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (state, ready) in PICTURES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(f"{page_file.as_uri()}#{urlencode(state)}")
            page.locator(ready).first.wait_for()
            if state.get("view") == "completions":
                page.locator(ready).nth(3).click()
                page.locator(".completion").first.wait_for()
            page.wait_for_timeout(500)
            page.screenshot(path=ROOT / f"docs/images/{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    typer.run(main)
