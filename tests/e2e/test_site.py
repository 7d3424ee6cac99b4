"""The documentation builds strictly as a site: links resolve, every page is in the navigation, all without network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import environments, references

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "-q", "build", "--strict", "--site-dir", str(tmp_path)]
    variables = environments.variables(environments.installed("mkdocs")) | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "```" not in text, page  # a fence that is not understood
        assert re.findall(r"<(?:script|link|img)[^>]* (?:src|href)=\"?(?:https?:)?//[^>]*", text) == [], page


@pytest.mark.parametrize("page", references.PAGES)
def test_a_generated_reference_equals_the_code(page: str) -> None:
    shown = (references.FOLDER / page).read_text(encoding="utf-8")
    assert shown == references.PAGES[page](), "write it anew: .venv/bin/python -m tests.references"
