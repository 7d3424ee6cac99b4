"""Inspect's logs: `.eval` (a ZIP of JSON, compressed with Zstandard or Deflate) and `.json`.

A sample has `id`, `epoch`, `input`, `target`, `output` with a message for each choice, and `metadata`. Long texts are
in `attachments`. A `.json` log is read at once, an `.eval` log sample by sample. What `tinyzero export` wrote gives the
rows it was written from.
"""

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tinyzero_sdk.data.arrow import Row
from tinyzero_sdk.data.files import parse_line
from tinyzero_sdk.data.folders import files_of
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Json
from tinyzero_sdk.scoring.readers.records import converted

_ZSTANDARD = 93  # of APPNOTE.TXT 4.4.5; Python's zipfile knows it from 3.14 on
_AT_ONCE = 64
_ATTACHMENT = "attachment://"
_MOST_BYTES = 2**28  # of a sample, decompressed
_FAULTS = (OSError, zipfile.BadZipFile, ValueError, struct.error, EOFError, RuntimeError, zlib.error, lzma.LZMAError)
"""What damaged archives and JSON raise; of a RuntimeError an encrypted sample and JSON nested too deeply."""

EXPORTED = "tinyzero"
"""The metadata of an exported sample that holds the columns for which Inspect has no place."""


def read(path: Path) -> Iterator[Block]:
    """The samples of a log, or of all logs in a folder."""
    files, number = files_of(path, "*.eval", "*.json"), 0
    for index, file in enumerate(files):
        try:
            samples = _samples_of_archive(file) if file.suffix == ".eval" else _samples_of_json(file)
            while some := list(islice(samples, _AT_ONCE)):
                numbered = [(number + offset, sample) for offset, sample in enumerate(some, 1)]
                number += len(some)
                yield converted(
                    numbered, [], partial(_convert, file.name), index / len(files), form="a sample of Inspect"
                )
        except _FAULTS as error:
            raise DataError(f"{file} is not a log of Inspect, or damaged: {error}") from error
    yield Block([], [], [], 1.0)


def _samples_of_archive(path: Path) -> Iterator[Row | str]:
    """The samples of an `.eval` file; a text instead of a sample says why it cannot be read."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.filename.startswith("samples/") and entry.filename.endswith(".json"):
                try:
                    yield parse_line(_content(file, archive, entry)) or "an empty sample"
                except DataError as error:
                    yield f"{entry.filename}: {error}"


def _content(file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MOST_BYTES:
        raise DataError(f"{entry.file_size:,} bytes; expected at most {_MOST_BYTES:,} in a sample")
    if entry.compress_type != _ZSTANDARD:
        return archive.read(entry)
    file.seek(entry.header_offset + 26)  # in the local header: lengths of the name and of the extra field
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(name + extra, 1)
    compressed = pa.py_buffer(file.read(entry.compress_size))
    with pa.CompressedInputStream(pa.BufferReader(compressed), "zstd") as stream:
        return stream.read(entry.file_size)


def _samples_of_json(path: Path) -> Iterator[Row | str]:
    with path.open(encoding="utf-8") as file:
        log = json.load(file)
    if not (isinstance(log, dict) and isinstance(log.get("eval"), dict) and "task" in log["eval"]):
        raise ValueError("it has no task")
    samples = log.get("samples") or []
    if not isinstance(samples, list):
        raise DataError(f"{path} is not a log of Inspect, or damaged: its samples are not a list")
    for sample in samples:
        yield sample if isinstance(sample, dict) else f"a {type(sample).__name__}; expected a sample of Inspect"


def _convert(log: str, sample: Row | str) -> Sequence[Row]:
    if isinstance(sample, str):
        raise DataError(sample)
    output, target, attached = sample.get("output"), sample.get("target"), sample.get("attachments") or {}
    output = output if isinstance(output, dict) else {}
    choices = output.get("choices")
    if not choices:
        failed = sample.get("error")
        why = f" (it ended in an error: {str(failed.get('message'))[:100]})" if isinstance(failed, dict) else ""
        raise DataError(f"sample {sample.get('id')!r} has no output{why}")
    metadata = sample.get("metadata") or {}
    if isinstance(metadata, dict) and isinstance(exported := metadata.get(EXPORTED), dict):
        prompt = _text(asked, attached) if isinstance(asked := sample.get("input"), str) else _messages(asked, attached)
        text = _text(choices[0]["message"]["content"], attached)
        own = {"prompt": prompt} if prompt else {}
        return [{**own, "completion": text, "epoch": sample.get("epoch"), **exported}]
    if target is None or target in ("", []):
        raise DataError(f"sample {sample.get('id')!r} has no target")
    common: Row = {
        "prompt": _messages(sample.get("input"), attached),
        "ground_truth": target[0] if isinstance(target, list) and len(target) == 1 else target,
        "extra_info": {"key": f"{log}:{sample.get('id')}"},  # sample ids repeat across logs
        "epoch": sample.get("epoch"),
        "metadata": json.dumps(metadata),  # as text, since it may have any structure
    }
    usage = output.get("usage") if len(choices) == 1 else None  # of all choices together
    if isinstance(usage, dict):
        common["token_count"] = usage.get("output_tokens")
    return [
        {
            **common,
            "completion": _text(choice.get("message", {}).get("content"), attached),
            "finished": choice.get("stop_reason") != "max_tokens",
        }
        for choice in choices
    ]


def _messages(prompt: Json, attached: Row) -> Json:
    if isinstance(prompt, list):
        return [{"role": message.get("role"), "content": _text(message.get("content"), attached)} for message in prompt]
    return [{"role": "user", "content": _text(prompt, attached)}]


def _text(content: Json, attached: Row) -> Json:
    """A message's text: plain, from its parts of type `text`, or from the attachments."""
    if isinstance(content, list):
        texts = [_text(part.get("text"), attached) for part in content if part.get("type") == "text"]
        return "".join(text for text in texts if isinstance(text, str))
    if isinstance(content, str) and content.startswith(_ATTACHMENT):
        return attached.get(content.removeprefix(_ATTACHMENT), content)
    return content
