"""What it takes to add a memory setting and a metric: each is added to a copy of the packages.

Docs: "Where a new kind goes" in docs/design/architecture.md. Estimators, losses, engines, executors and readers are
added in tests of their own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.advisor.planned import HALF_B
from tests.trainer.conftest import PAGE
from tests.trainer.runs import lines

pytestmark = pytest.mark.nightly(reason="copies the packages and runs them; the files that it names change rarely")
ROOT = Path(__file__).parents[2]
TRAINER = "trainer/tinyzero_trainer"
RUN = ("run.device=cpu", "run.steps=1", "data.prompt_template=base", "task.limit=5", "data.test_fraction=0.4")
RUN += ("rollout.max_completion_tokens=4", "eval.num_problems=2")

MEMORY_SETTING = {
    f"{TRAINER}/config/run.py": (
        "    recompute_logits: Annotated[\n",
        "    clear_cache: Annotated[\n"
        "        bool | Auto,\n"
        "        RESUMABLE,\n"
        '        TradesMemory((Option(False), Option(True, "a pause before each update", rank=1)), unresolved=False),\n'
        '    ] = "auto"\n'
        '    """Free what the allocator caches before an update."""\n\n',
    ),
    f"{TRAINER}/controller/step.py": (
        '        with display.activity("updating the weights"), catch_out_of_memory("the weights were updated"):\n',
        "        if self.config.memory.clear_cache is True:\n"
        '            display.log("cache cleared")\n'
        "            torch.cuda.empty_cache()\n",
    ),
    f"{TRAINER}/advisor/memory.py": (
        "        return Phase(name, tuple(part for part in (*parts, *of_engine, *process) if part.size))\n",
        "        if self.config.memory.clear_cache is True:\n"
        '            process = (part for part in process if part.what != "allocator")\n',
    ),
}
METRIC = {
    f"{TRAINER}/controller/step_metrics.py": (
        '        "group/sampled": len(samples) / group_size,\n',
        '        "group/shortest": float(min(batch.lengths, default=0)),\n',
    ),
    PAGE.relative_to(ROOT).as_posix(): ("| `group/sampled` |", "| `group/shortest` | tokens of the shortest |\n"),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a copy of the packages in which texts are inserted, each before its anchor."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("tinyzero_sdk", TRAINER):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, texts in (MEMORY_SETTING | METRIC).items():
        if name.endswith(".md"):
            continue
        file = folder / name
        code = file.read_text(encoding="utf-8") if file.exists() else ""
        for anchor, text in zip(texts[::2], texts[1::2], strict=True):
            assert not code or code.count(anchor) == 1, f"{name} no longer has {anchor!r}"
            code = code.replace(anchor, text + anchor) if code else text
        file.write_text(code, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder / "trainer")])}


def tinyzero(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("tinyzero")
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_memory_setting_is_a_field_its_effect_and_its_bytes(environment):
    assert len(MEMORY_SETTING) == 3
    asked = ("plan", "--task", "countdown", "--model", HALF_B, "--gpu", "H200", "--json", "memory.clear_cache=true")
    planned = json.loads(tinyzero(environment, *asked).stdout)
    parts = {part["what"] for phase in planned["requested"]["phases"] for part in phase["parts"]}
    assert "CUDA context" in parts
    assert "allocator" not in parts
    chosen = json.loads(tinyzero(environment, *asked[:-1]).stdout)["chosen"]
    assert "memory.clear_cache" in {choice["key"] for choice in chosen}


def test_a_metric_is_a_line_and_its_row_and_the_setting_has_its_effect(environment, toy_task, warm_model, tmp_path):
    assert len(METRIC) == 2
    words = ("train", "--task", toy_task, "--model", str(warm_model), "--output", str(tmp_path / "run"), *RUN)
    done = tinyzero(environment, *words, "memory.clear_cache=true")
    assert "cache cleared" in done.stderr
    assert 1 <= lines(tmp_path / "run")[1]["group/shortest"] <= 4
