"""The mutation score of the core: mutmut changes its lines one at a time, and the fast tests should notice.

    make mutants                                                     a sample of each package, half an hour or so
    make mutants SAMPLE=0                                            every mutant: hours

For each package mutmut (https://mutmut.readthedocs.io) gets a folder that has the checkout's packages side by side,
since it derives the name of a module from its path. Prints how many mutants of a sample, drawn by the seed, are killed,
and writes those that survive with their difference to `build/mutants/`. `mutants.py` has faults by name.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tomli_w
import typer

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/mutants"
PLUGINS = ("countdown", "multiply", "gsm8k", "reasoning_gym")
AREAS = {
    "algorithms": ("tinyzero_trainer/algorithms", ("trainer/algorithms", "trainer/training")),
    "objective": ("tinyzero_trainer/training/objective.py", ("trainer/training",)),
    "rewards": ("tinyzero_trainer/rewards", ("trainer/rewards",)),
    "scoring": ("tinyzero_sdk/scoring", ("sdk/scoring", "sdk/evaluation", "sdk/report")),
    "tasks": ("tinyzero_sdk/tasks", ("sdk/tasks", "sdk/data")),
}
"""By name: what is changed, and the tests that run, with the doctests of what is changed."""

QUIET = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--ignore=tests/trainer/training/test_no_device_sync.py"]
"""Of modules that mutmut has imported before pytest, and of a test that counts calls, which its own would add to."""

KILLED, SURVIVED = (1, 3, 24, 36), (0, 33)
"""Exit codes of mutmut for a test that fails, an error, and a timeout; for tests that pass, and none that reach it."""


def stage(area: str) -> Path:
    """A folder with the packages and tests of the checkout, and mutmut's settings."""
    folder = BUILD / area
    shutil.rmtree(folder, ignore_errors=True)
    source, tests = AREAS[area]
    packages = {ROOT / "tinyzero_sdk": "tinyzero_sdk", ROOT / "trainer/tinyzero_trainer": "tinyzero_trainer"}
    packages |= {ROOT / f"plugins/{name}/tinyzero_{name}": f"tinyzero_{name}" for name in PLUGINS}
    packages |= {ROOT / name: name for name in ("tests", "benchmarks", "examples", "docs", "plugins")}
    for origin, name in packages.items():
        shutil.copytree(origin, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = [path.name for path in ROOT.iterdir() if path.suffix in (".md", ".txt")]
    for name in files:
        shutil.copyfile(ROOT / name, folder / name)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    settings["ini_options"]["pythonpath"] = ["."]
    mutmut = {
        "source_paths": [source],
        "also_copy": [*files, *(name for name in packages.values() if name != "tests")],
        "pytest_add_cli_args_test_selection": [source, *(f"tests/{name}" for name in tests)],
        "pytest_add_cli_args": ["-p", "no:tinyzero", "-p", "no:cacheprovider", *QUIET],
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
        "mutate_only_covered_lines": False,
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"tool": {"pytest": settings, "mutmut": mutmut}}), "utf-8")
    return folder


def mutmut(folder: Path, *words: str, log: str) -> None:
    """Run mutmut in a folder, with what it prints in a file of it."""
    paths = [str(folder / "mutants"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    environment["HYPOTHESIS_PROFILE"] = "mutants"
    with (folder / log).open("w") as file:
        subprocess.run(
            [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", *words],
            cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip


def outcomes(folder: Path) -> Iterator[tuple[str, int | None]]:
    """The mutants that there are, and the exit code of those that have run."""
    for file in sorted((folder / "mutants").rglob("*.meta")):
        yield from json.loads(file.read_text("utf-8"))["exit_code_by_key"].items()


def main(
    area: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(AREAS)}; all")] = None,
    sample: Annotated[int, typer.Option(help="mutants of each area; 0 = all")] = 60,
    seed: Annotated[int, typer.Option(help="of the sample")] = 0,
    jobs: Annotated[int, typer.Option(help="processes")] = os.cpu_count() or 1,
) -> None:
    """Print the mutation score of each area."""
    print("| mutation score of the fast tests | mutants | sampled | killed | score |\n|---|---|---|---|---|")
    for name in area or AREAS:
        folder = stage(name)
        mutmut(folder, "run", "none", "--max-children", str(jobs), log="generated.log")
        names = sorted(mutant for mutant, _ in outcomes(folder))
        chosen = random.Random(seed).sample(names, min(sample or len(names), len(names)))
        mutmut(folder, "run", *chosen, "--max-children", str(jobs), log="run.log")
        codes = {mutant: code for mutant, code in outcomes(folder) if mutant in set(chosen)}
        killed = sum(code in KILLED for code in codes.values())
        survived = [mutant for mutant, code in codes.items() if code in SURVIVED]
        for mutant in survived:
            mutmut(folder, "show", mutant, log=f"survived-{mutant.replace('/', '.')[-120:]}.diff")
        if killed + len(survived) != len(chosen) or not chosen:
            missing = len(chosen) - killed - len(survived)
            raise SystemExit(f"{name}: {missing} of {len(chosen)} mutants have no result; see the logs in {folder}")
        score = killed / len(chosen)
        print(f"| `{AREAS[name][0]}` | {len(names):,} | {len(chosen):,} | {killed:,} | {score:.0%} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
