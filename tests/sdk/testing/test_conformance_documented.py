"""docs/conformance.md lists every property with its text and its reason, and no other."""

import re
from pathlib import Path

import pytest

from tinyzero_sdk.testing import PROPERTIES

DOCUMENT = (Path(__file__).parents[3] / "docs/conformance.md").read_text(encoding="utf-8")


def test_the_documentation_lists_the_properties_and_no_others():
    assert re.findall(r"^### `(.+)`$", DOCUMENT, re.MULTILINE) == [prop.name for prop in PROPERTIES]


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.name)
def test_property_is_documented(prop):
    section = DOCUMENT.partition(f"\n### `{prop.name}`\n")[2].partition("\n### ")[0]
    words = " ".join(section.split())
    assert prop.text in words
    assert prop.reason in words
    assert all(f"`{hook}`" in words.partition("*Needs*")[2] for hook in prop.needs)
    assert bool(prop.examine or prop.completions or prop.strategy)
