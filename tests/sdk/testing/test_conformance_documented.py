"""Every law is in docs/conformance.md with its text and its reason, and no other."""

import re
from pathlib import Path

import pytest

from tinyzero_sdk.testing import LAWS, Law

DOCUMENT = (Path(__file__).parents[3] / "docs/conformance.md").read_text(encoding="utf-8")


def test_the_documentation_lists_the_laws_and_no_others() -> None:
    assert re.findall(r"^### `(.+)`$", DOCUMENT, re.MULTILINE) == [law.name for law in LAWS]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_law_is_documented(law: Law) -> None:
    section = DOCUMENT.partition(f"\n### `{law.name}`\n")[2].partition("\n### ")[0]
    words = " ".join(section.split())
    assert law.text in words
    assert law.reason in words
    assert all(f"`{hook}`" in words.partition("*Needs*")[2] for hook in law.needs)
    assert bool(law.examine or law.listed or law.drawn)
