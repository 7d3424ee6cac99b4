"""The held-out completions that a training run keeps in `completions/`, with the columns of a scored file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tinyzero_sdk.data.files import Block
from tinyzero_sdk.errors import DataError

_SCORES = ("task", "score", "correct", "reason", "finished")
_READ = (*_SCORES, "step", "decoding", "problem", "difficulty", "num_tokens")


def read_held_out(path: Path) -> Iterator[Block]:
    """The scores of one evaluation during training, without the completions; see `held_out_table`."""
    yield _block(held_out_table(path, _READ))


def held_out_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The completions of one evaluation during training: the sampled ones, not the greedy ones, where there are any.

    Args:
        path: a run directory, for its last evaluation; or one of its checkpoints, for the evaluation at that step.
        columns: those to read, with `step` and `decoding`; None = all. `number` is the row of the file.

    Raises:
        DataError: it is neither, or that evaluation was not kept.
    """
    run, step = path.resolve(), None
    if run.parent.name == "checkpoints" and (named := re.fullmatch(r"step_(\d+)", run.name)):
        run, step = run.parents[1], int(named[1])
    spans = {
        file: (int(named[1]), int(named[2]))
        for file in (run / "completions").glob("heldout_*.parquet")
        if (named := re.fullmatch(r"heldout_(\d+)_(\d+)", file.stem))
    }
    if step is None:
        step = max((last for _, last in spans.values()), default=0)
    try:
        for file, (first, last) in spans.items():
            table = pq.read_table(file, columns=columns and list(columns)) if first <= step <= last else None
            if table is not None and pc.any(pc.equal(table["step"], step)).as_py():
                table = table.append_column("number", pa.array(range(1, len(table) + 1)))
                table = table.filter(pc.equal(table["step"], step))
                sampled = pc.equal(table["decoding"].cast(pa.string()), "sampled")
                return (table.filter(sampled) if pc.any(sampled).as_py() else table).combine_chunks()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"cannot read the evaluations of {run}: {' '.join(str(error).split())}") from error
    raise DataError(
        f"{path} is a directory without a held-out evaluation at that step; evaluate the model with: "
        f"tinyzero eval --model {path} --output FILE"
    )


def _block(table: pa.Table) -> Block:
    info = {"key": table["problem"], "difficulty": table["difficulty"]}
    evaluation = {name: table[name] for name in ("step", "decoding")}
    columns = {name: table[name] for name in _SCORES} | {
        "token_count": table["num_tokens"],
        **{
            name: pa.StructArray.from_arrays([pa.array(cells.to_pylist()) for cells in parts.values()], list(parts))
            for name, parts in {"extra_info": info, "evaluation": evaluation}.items()
        },
    }
    return Block(table["number"].to_pylist(), [], pa.table(columns), [], 1.0)
