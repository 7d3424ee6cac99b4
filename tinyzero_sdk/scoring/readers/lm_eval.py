"""lm-eval's samples: `samples_TASK_TIME.jsonl`, written with `--log_samples`.

A line has `doc`, `doc_id`, `target`, `arguments` (the first is the prompt), `resps` (a list for each request, with one
text for each repeat), `filter` and metrics. A sample has one line for each filter, with the same `resps`; only the
first is read.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json
from tinyzero_sdk.scoring.readers.records import Convert, read_json_lines


def read(path: Path) -> Iterator[Block]:
    """The samples of a file, or of all `samples_*.jsonl` in a folder."""
    return read_json_lines(path, "samples_*.jsonl", _convert_for, form="a sample of lm-eval")


def _convert_for(file: Path) -> Convert:
    task = re.sub(r"_\d{4}-\d\d-\d\dT.*", "", file.stem.removeprefix("samples_"))
    filters: dict[int, Json] = {}  # by sample, so that none is lost whatever a task's filters are

    def convert(record: Row) -> Sequence[Row]:
        sample = hash(json.dumps([record.get(name) for name in ("doc_id", "doc_hash", "target", "arguments")]))
        its_filter = record.get("filter")
        return _convert(record, task) if filters.setdefault(sample, its_filter) == its_filter else []

    return convert


def _convert(record: Row, task: str) -> Sequence[Row]:
    if "resps" not in record or "target" not in record:
        raise DataError("no `resps` or no `target`; expected a line of lm-eval's samples")
    requests = record["resps"]
    if not isinstance(requests, list):
        raise DataError(f"`resps` holds {str(requests)[:80]!r}; expected a list of responses")
    texts = [text for request in requests for text in (request if isinstance(request, list) else [request])]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError("`resps` holds no texts; only generative tasks can be scored, not those by likelihood")
    number, prompt = record.get("doc_id"), _prompt(record.get("arguments"))
    own_key = f"{task}:{prompt if number is None else number}"  # without a hash
    target = record["target"]
    if isinstance(target, str):
        target = target.rpartition("####")[2].strip()  # of a worked solution as in GSM8K, the result
    common: Row = {
        "prompt": prompt,
        "ground_truth": target,
        "extra_info": {"index": number, "key": f"{record.get('doc_hash') or own_key}"},
        "doc": record.get("doc"),
    }
    return [{**common, "completion": text} for text in texts]


def _prompt(arguments: Json) -> Json:
    """The first argument of the first request, in either of the forms in which they are logged."""
    if isinstance(arguments, dict):
        arguments = [list(request.values()) for request in arguments.values() if isinstance(request, dict)]
    first = arguments[0] if isinstance(arguments, list) and arguments else None
    return first[0] if isinstance(first, list) and first else None
