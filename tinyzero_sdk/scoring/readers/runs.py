"""The held-out completions that a training run keeps in `completions/`, with the columns of a scored file."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.data.files import read_blocks
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError

_OTHERWISE = ("problem", "difficulty", "num_tokens", "step", "decoding")  # what a scored file has in other columns


def is_evaluation(path: Path) -> bool:
    """Whether a path is a directory, or names a checkpoint of a run, which may be deleted: its evaluation is kept."""
    return run_and_step(path)[0].is_dir()


def first_and_last(path: Path) -> tuple[Path, Path]:
    """The first and the last evaluation of a run, as `read_held_out` takes them; a DataError where there are none."""
    run, step = run_and_step(path)
    steps = sorted(_evaluations(run)) if step is None else []
    if len(steps) < 2:
        has = "no run with two evaluations" if run.is_dir() else "one file"
        raise DataError(f"{path} is {has}; compare needs something to compare with: tinyzero compare BASELINE OTHER...")
    return path / "checkpoints" / f"step_{steps[0]}", path / "checkpoints" / f"step_{steps[-1]}"


def read_held_out(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    """The last evaluation of a run, or that at the step of a checkpoint: sampled completions, or else the greedy ones.

    Problem, difficulty, length and evaluation are read beside the columns. Where there is none, a DataError says why.
    """
    run, step = run_and_step(path)
    evaluations = _evaluations(run)
    step = max(evaluations, default=0) if step is None else step
    if step not in evaluations:
        raise DataError(f"{path} {_why(run, sorted(evaluations))}")
    file = evaluations[step]
    table = _read(file, (*columns, *_OTHERWISE))
    table = table.append_column("number", pa.array(range(1, len(table) + 1)))
    table = table.filter(pc.equal(table["step"], step))
    sampled = pc.equal(table["decoding"], "sampled")
    if pc.any(sampled).as_py():
        table = table.filter(sampled)
    yield _block(table.combine_chunks())


def _read(file: Path, columns: Sequence[str]) -> pa.Table:
    """Those of the columns that a file has; all of `_OTHERWISE` that are asked for must be there."""
    try:
        tables = [block.data for block in read_blocks(file, columns)]
        table = pa.concat_tables(tables) if tables else pq.read_schema(file).empty_table()
        for name, kind in (("step", pa.int64()), ("decoding", pa.string())):
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    if missing := [name for name in _OTHERWISE if name in columns and name not in table.column_names]:
        raise DataError(f"cannot read {file}: it has no {', '.join(missing)}")
    return table


def run_and_step(path: Path) -> tuple[Path, int | None]:
    """The run, and the step of the checkpoint that is named."""
    run = Path(os.path.realpath(path))  # `resolve` raises where links form a loop
    if run.parent.name == "checkpoints" and (named := re.fullmatch(r"step_(\d+)", run.name)):
        return run.parents[1], int(named[1])
    return run, None


def _evaluations(run: Path) -> dict[int, Path]:
    """The file that holds the evaluation of each step."""
    files = sorted((run / "completions").glob("heldout_*_*.parquet"))
    return {step: file for file in files for step in pc.unique(_read(file, ["step"])["step"].drop_null()).to_pylist()}


def _why(run: Path, steps: Sequence[int]) -> str:
    """Why an evaluation is not there, and what to do."""
    if steps:
        return f"has no evaluation at that step; the run has kept those at {', '.join(map(str, steps))}"
    if (run / "metrics.jsonl").exists():
        return "has kept no held-out completions; evaluate its model: tinyzero eval --model RUN --output FILE"
    return "is not a run; expected a scored file, a run directory, or RUN/checkpoints/step_N"


def _block(table: pa.Table) -> Block:
    info = {"key": table["problem"], "difficulty": table["difficulty"]}
    evaluation = {name: table[name] for name in ("step", "decoding")}
    columns = {name: table[name] for name in table.column_names if name not in (*_OTHERWISE, "number")} | {
        "token_count": table["num_tokens"],
        **{
            name: pa.StructArray.from_arrays([pa.array(cells.to_pylist()) for cells in parts.values()], list(parts))
            for name, parts in {"extra_info": info, "evaluation": evaluation}.items()
        },
    }
    return Block(table["number"].to_pylist(), pa.table(columns), [], 1.0)
