"""verl's rollouts: one .jsonl per step, which its trainers write to `rollout_data_dir` and `validation_data_dir`.

A line has `input` (the prompt as text), `output`, `gts` (the ground truth), `score`, `step`, and other values of the
reward function. Source: `_dump_generations` of verl/trainer/ppo/ray_trainer.py.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.outputs import PARTS, RESULT_COLUMNS
from tinyzero_sdk.scoring.readers.records import read_json_lines

_OURS = (*RESULT_COLUMNS, PARTS, "prompt", "completion", "ground_truth")  # verl's columns of these names get others


def read(path: Path) -> Iterator[Block]:
    """The rollouts of a step, or of all steps in a folder."""
    return read_json_lines(path, "*.jsonl", lambda file: _convert, form="a rollout of verl")


def _convert(record: Row) -> Sequence[Row]:
    if "output" not in record:
        raise DataError("no `output`; expected a line of a rollout that verl dumped")
    if record.get("gts") is None:
        raise DataError("no ground truth in `gts`; verl writes it since version 0.5")
    row = {"prompt": record.get("input"), "completion": record["output"], "ground_truth": record["gts"]}
    others = {name: value for name, value in record.items() if name not in ("input", "output", "gts")}
    return [row | {f"verl_{name}" if name in _OURS else name: value for name, value in others.items()}]
