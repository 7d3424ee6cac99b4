"""Every hook is in docs/reference/hooks.md with its exact arguments, and has a test that is named after it."""

import inspect
import re
from pathlib import Path

import pytest

from tinyzero_sdk import Completion, hookspecs, load_task
from tinyzero_sdk.plugins import registry
from tinyzero_sdk.testing import PROPERTIES

DOCUMENT = (Path(__file__).parents[2] / "docs/reference/hooks.md").read_text(encoding="utf-8")
SPECS = {
    name: value
    for module in (hookspecs, registry)
    for name, value in vars(module).items()
    if hasattr(value, "tinyzero_spec")
}


def test_the_documentation_lists_the_hooks_and_no_others():
    headings = re.findall(r"^### `(\w+)\(.*\)`", DOCUMENT, re.MULTILINE)
    assert headings == list(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_hook_is_documented_with_its_arguments_and_tested(name):
    arguments = ", ".join(inspect.signature(SPECS[name]).parameters)
    assert f"\n### `{name}({arguments})`\n" in DOCUMENT
    assert inspect.getdoc(SPECS[name])
    files = Path(__file__).parent.rglob("test_*.py")
    assert any(f"\ndef test_hook_{name}(" in path.read_text(encoding="utf-8") for path in files)


@pytest.mark.parametrize("hook", ["solve", "oracle", "score_group", "grammar"])
def test_the_checks_that_need_a_hook_are_listed_with_it(hook):
    [properties] = re.findall(rf"^\| `{hook}` \| (.*?) \|", DOCUMENT, re.MULTILINE)
    needing = [prop.name for prop in PROPERTIES if hook in prop.needs]
    named = [name for name in re.findall(r"`([\w-]+)`", properties) if name in {prop.name for prop in PROPERTIES}]
    assert named == needing
    assert properties.startswith("none") == (not needing)


def test_the_examples_work(tmp_path, install):
    *task_code, wrapper_code = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    (tmp_path / "say.py").write_text("\n".join(task_code), encoding="utf-8")
    wrapper_code += "\n@hookimpl\ndef score_wrappers(): return {'punish': PunishLength}"
    install("tz-punish", modules={"punish_module": wrapper_code}, plugins={"punish": "punish_module"})

    task = load_task(tmp_path / "say.py", options={"digits": 3}, wrappers=["punish"])
    [item] = task.dataset("train", 1)
    assert task.make_prompt(item).startswith("Write the number")
    assert list(task.grammar(item)) == ["answer", "number"]
    right = Completion(f"<answer>{item.ground_truth}</answer>", token_count=100)
    assert (task.score_completion(right, item.ground_truth).value, task.error_count) == (0.9, 0)
