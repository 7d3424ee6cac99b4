"""The mutation score of the core: of the one-line faults that mutmut thinks of, how many do the fast tests notice?

    make mutants                                                     a sample of each area, an hour or so
    make mutants SAMPLE=0                                            every mutant: a day

mutmut (https://mutmut.readthedocs.io) says what may go wrong in a file; `mutants.py` plants it and runs the tests.
mutmut's own runner copies but the tests that it is given, without their helpers, and its wrappers of functions are seen
by tests that look at frames. Prints how many mutants of a sample, drawn by the seed, are killed, and writes the
differences of those that survive to `build/mutants/`.
"""

import difflib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.mutants import ALGORITHMS, REWARDS, SCORING, TASKS, TRAINING, broken_tests, copy_to, killer

if TYPE_CHECKING:
    from libcst import Module
    from mutmut.mutation.file_mutation import Mutation

ROOT = Path(__file__).parents[1]
SURVIVORS = ROOT / "build/mutants"
AREAS = (ALGORITHMS, f"{TRAINING}/objective.py", REWARDS, SCORING, TASKS)
"""Files and folders that mutmut changes."""


def mutants_of(file: str) -> Iterator[tuple[str, "Module", "Mutation"]]:
    """The faults of a file in the order of mutmut."""
    from mutmut.mutation.file_mutation import create_mutations

    module, mutations, _, _ = create_mutations(file, (ROOT / file).read_text("utf-8"))
    for mutation in mutations:
        if mutation.contained_by_top_level_function is not None:  # mutmut changes no other code
            yield file, module, mutation


def difference(file: str, text: str) -> str:
    right = (ROOT / file).read_text("utf-8")
    return "".join(difflib.unified_diff(right.splitlines(True), text.splitlines(True), file, file, n=1))


def main(
    area: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(AREAS)}; all")] = None,
    sample: Annotated[int, typer.Option(help="mutants of each area; 0 = all")] = 60,
    seed: Annotated[int, typer.Option(help="of the sample")] = 0,
    whole: Annotated[bool, typer.Option("--whole", help="survivors meet all fast tests of their half")] = False,
) -> None:
    """Print the mutation score of each area."""
    os.chdir(ROOT)  # where mutmut finds its settings
    shutil.rmtree(SURVIVORS, ignore_errors=True)
    SURVIVORS.mkdir(parents=True)
    stages = 3 if whole else 2
    print(f"| seed {seed} | mutants | sampled | killed | score | seconds |\n|---|---|---|---|---|---|", flush=True)
    for name in area or AREAS:
        started = time.monotonic()
        files = sorted(str(path) for path in Path(name).rglob("*.py")) or [name]
        mutants = [mutant for file in files for mutant in mutants_of(file)]
        sampled = random.Random(seed).sample(mutants, min(sample or len(mutants), len(mutants)))
        chosen = [
            (file, module.deep_replace(each.original_node, each.mutated_node).code) for file, module, each in sampled
        ]
        with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
            copy = Path(directory)
            copy_to(copy, ROOT)
            without = broken_tests(copy, files, stages=stages)
            survived = [fault for fault in chosen if not killer(copy, *fault, stages=stages, without=without)]
        for number, fault in enumerate(survived):
            (SURVIVORS / f"{name.replace('/', '.')}-{number}.diff").write_text(difference(*fault), "utf-8")
        killed, seconds = len(chosen) - len(survived), time.monotonic() - started
        score = killed / len(chosen)
        print(f"| `{name}` | {len(mutants):,} | {len(chosen)} | {killed} | {score:.0%} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
