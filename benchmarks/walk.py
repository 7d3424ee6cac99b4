"""How far a reader walks through a checkout: what one call of the product passes through, by `sys.setprofile`.

    CHECKOUT/.venv/bin/python benchmarks/walk.py CHECKOUT step

Run by `house.py --walk`, with the Python of the checkout that is measured; prints one line of JSON. The walks:

- `step`: the first training step of 16 completions, on the CPU with the engine `torch`; scoring processes are not seen;
- `key`: `algorithm.clip_ratio_low=0.1` from the words of a command to the checked configuration;
- `score_file`: four rows from JSON Lines to JSON Lines, scored in worker processes.

Counted are functions of the checkout with a name (no lambdas or comprehensions), their files, and the moves from one
file to another. Records are the dataclasses and named tuples of the SDK and the trainer, configuration apart, that
are made on the way or returned.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("tinyzero_sdk.", "tinyzero_trainer.")
ANSWERS = ("1*2", "(1+2)", "3", "no idea")


class Walk:
    """What has been passed so far."""

    def __init__(self, checkout: Path) -> None:
        self.root, self.environment = f"{checkout}/", f"{checkout}/.venv/"
        self.functions: set[tuple[str, str]] = set()
        self.records: set[str] = set()
        self.moves, self.place = 0, ""

    def profile(self, frame: FrameType, event: str, returned: Any) -> None:
        """The hook: `call` and `return` of Python functions."""
        code = frame.f_code
        ours = code.co_filename.startswith(self.root) and not code.co_filename.startswith(self.environment)
        if event == "call" and ours and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename, code.co_qualname))
            self.moves += code.co_filename != self.place
            self.place = code.co_filename
        elif event == "call" and code.co_name == "__init__" and code.co_varnames[:1] == ("self",):
            self.see(frame.f_locals["self"])
        elif event == "return" and ours:
            self.see(returned)

    def see(self, value: object) -> None:
        kind = type(value)
        is_record = dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        if is_record and kind.__module__.startswith(PACKAGES) and not kind.__name__.endswith(("Config", "Options")):
            self.records.add(kind.__qualname__)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what this thread does in the block, and threads that it starts."""
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted each time it is called."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            with self.on():
                return call(*arguments, **named)

        return wrapped


def step(walk: Walk, directory: Path) -> None:
    from tinyzero_trainer.controller.step import TrainingStep

    TrainingStep.take = walk.counted(TrainingStep.take)  # type: ignore[method-assign]
    train(
        f"--task=countdown --output={directory}/run --model=tiny run.device=cpu run.steps=1 data.prompts_per_step=4 "
        "rollout.group_size=4 rollout.engine=torch rollout.max_completion_tokens=32 eval.num_problems=4 eval.every=0"
    )


def key(walk: Walk, directory: Path) -> None:
    from tinyzero_trainer.config import compose

    for name in ("gather", "compose"):
        setattr(compose, name, walk.counted(getattr(compose, name)))
    train("--task=countdown --output=/dev/null/run --model=tiny run.device=cpu algorithm.clip_ratio_low=0.1")


def score_file(walk: Walk, directory: Path) -> None:
    from tinyzero_sdk import load_task
    from tinyzero_sdk.scoring.score_file import score_file

    outputs = directory / "outputs.jsonl"
    truth = {"target": 2, "numbers": [1, 2]}
    rows = ({"prompt": "p", "completion": f"<answer>{text}</answer>", "ground_truth": truth} for text in ANSWERS)
    outputs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = load_task("countdown")
    with walk.on():
        score_file(task, outputs, directory / "scored.jsonl")


def train(words: str) -> None:
    from tinyzero_sdk.cli import main

    with suppress(SystemExit):
        main(["train", *words.split()])


def main() -> None:
    walks = {"step": step, "key": key, "score_file": score_file}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("walk", choices=walks)
    options = parser.parse_args()
    walk = Walk(options.checkout.resolve())
    with tempfile.TemporaryDirectory() as directory:
        walks[options.walk](walk, Path(directory))
    files = {file for file, _ in walk.functions}
    print(json.dumps({
        "functions": len(walk.functions), "files": len(files), "moves": walk.moves, "records": sorted(walk.records)
    }))  # fmt: skip


if __name__ == "__main__":
    main()
