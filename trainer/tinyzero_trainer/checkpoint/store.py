"""Checkpoints that are whole or absent: written to a temporary directory, sealed by a manifest, renamed into place.

The only state is the directory. No torch here.

    checkpoints/step_40/                  sealed: manifest.json has the size and a SHA-256 of every file
    checkpoints/step_50.tmp-<uuid>/       being written or deleted, or left by a killed run
"""

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Json
from tinyzero_trainer.errors import first_line

PIECE_BYTES, BLOCK_BYTES = 2**28, 2**20  # what a thread hashes of a file, and what it reads at a time

HASHING_THREADS = min(16, os.cpu_count() or 1)
MANIFEST, FORMAT = "manifest.json", 1  # other formats are refused
USERS = "used_by"
"""A file in a checkpoint: the directories of runs that must load its model to be resumed, one a line."""

MIN_KEEP = 2  # one remains intact while another is being written, or turns out to be damaged

_DAMAGE = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError),
    *(ValueError, TypeError, LookupError, RecursionError, SafetensorError),  # of JSON, pydantic and tensors
)
_SEALED = re.compile(r"step_(\d+)")
_TEMPORARY = re.compile(r"step_\d+\.tmp-[0-9a-f]{32}")


class CheckpointError(TinyZeroError):
    """A checkpoint cannot be written or read, or none of those that exist is intact."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not what its manifest says, or does not hold what the run needs."""


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint, saved after a training step: every byte is as it was written."""

    step: int
    path: Path
    meta: Mapping[str, Json]  # what `save` was called with: configuration, versions, world size, …
    skipped: tuple[str, ...] = ()  # one line for each newer checkpoint that is damaged: which and why


def save(
    root: Path, step: int, fill: Callable[[Path], None], *, meta: Mapping[str, Json], keep: int = MIN_KEEP
) -> Path:
    """Write the checkpoint of `step`, then delete all but the newest `keep` and those that another run needs.

    Killed at any moment, it leaves the older checkpoints as they were, and the new one whole or absent. A checkpoint of
    this step that exists already is replaced: the run has not resumed from it. `fill` writes the files into the empty
    directory that it is given.

    Raises:
        CheckpointError: it cannot be written; what was there before is intact, and nothing is left behind.
    """
    final = root / f"step_{step}"
    temporary = _temporary_name(final)
    try:
        temporary.mkdir()
        fill(temporary)
        _seal(temporary, step, meta)
        if final.exists():
            _remove(final)
        os.rename(temporary, final)
        _sync(root)
    except (OSError, RuntimeError, SafetensorError) as error:  # the last two: torch and safetensors on a full disk
        reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        space = f" ({shutil.disk_usage(root).free:,} bytes free)" if root.is_dir() else ""
        raise CheckpointError(f"cannot save {final}: {reason}{space}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with suppress(OSError):  # the checkpoint is saved; what cannot be deleted now is deleted after the next one
        up_to_now = sorted((number for number, _ in sealed(root) if number <= step), reverse=True)
        for number, path in list(sealed(root)):
            is_later = number > step  # this run could not resume from it
            if is_later or (number not in up_to_now[: max(keep, MIN_KEEP)] and not _is_used(path)):
                _remove(path)
    return final


def latest(root: Path) -> Checkpoint | None:
    """The newest intact checkpoint under `root`, None without any; a CheckpointError if all are damaged."""
    skipped: list[str] = []
    for step, path in sorted(sealed(root), reverse=True):
        try:
            return Checkpoint(step, path, verify(path), tuple(skipped))
        except DamagedCheckpointError as error:
            skipped.append(str(error))
    if skipped:
        raise CheckpointError(
            f"all checkpoints in {root} are damaged: {'; '.join(skipped)}; start a run in another directory"
        )
    return None


def verify(path: Path) -> Mapping[str, Json]:
    """Compare every byte of a checkpoint with the manifest, and return the meta; errors as `damage_in_one_line`."""
    file = path / MANIFEST
    with damage_in_one_line(file):
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DamagedCheckpointError(f"{file} has format {manifest['format']!r}, expected {FORMAT}")
        if manifest.pop("sha256") != _digest(manifest):
            raise DamagedCheckpointError(f"{file} has changed since it was written")
    if path.name != f"step_{manifest['step']}":
        raise DamagedCheckpointError(f"{path} holds step {manifest['step']}; rename it back")
    for name, recorded in manifest["files"].items():
        file = path / name
        with damage_in_one_line(file):
            if _fingerprint(file) != recorded:
                raise DamagedCheckpointError(f"{file} has changed since it was written")
    meta: dict[str, Json] = manifest["meta"]
    return meta


@contextmanager
def damage_in_one_line(file: Path) -> Iterator[None]:
    """A DamagedCheckpointError, which names the file, for what reading a missing or damaged one ends in.

    Other errors of the system, as of a disk or of permissions, say nothing about the file's content: these are a
    CheckpointError, so that no older checkpoint is taken and this one deleted.
    """
    try:
        yield
    except _DAMAGE as error:
        raise DamagedCheckpointError(f"{file}: {getattr(error, 'strerror', None) or first_line(error)}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}; try again") from error


def sealed(root: Path) -> Iterator[tuple[int, Path]]:
    """(step, directory) of every checkpoint under `root`, damaged ones included, in no order."""
    for entry in root.iterdir() if root.is_dir() else ():
        if match := _SEALED.fullmatch(entry.name):
            yield int(match[1]), entry


def prune(root: Path) -> None:
    """Delete all checkpoints but the newest intact one and those that another run needs, and what killed runs left."""
    newest = latest(root)
    for _, path in list(sealed(root)):
        if newest is not None and path != newest.path and not _is_used(path):
            _remove(path)
    sweep(root)


def keep_for(run: Path, model: Path) -> None:
    """Keep a model, if it is a checkpoint of another run, for as long as the directory of `run` exists."""
    if (model / MANIFEST).exists():
        with suppress(PermissionError), (model / USERS).open("a", encoding="utf-8") as file:  # another user's
            file.write(f"{run.absolute()}\n")


def _is_used(checkpoint: Path) -> bool:
    users = checkpoint / USERS
    return users.exists() and any(Path(run).is_dir() for run in users.read_text(encoding="utf-8").splitlines())


def sweep(root: Path) -> None:
    """Delete what killed runs left half written or half deleted; the caller holds the run's lock."""
    for entry in root.iterdir():
        if _TEMPORARY.fullmatch(entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def _seal(directory: Path, step: int, meta: Mapping[str, Json]) -> None:
    """Sync every file to the disk, then the manifest, then the directories that name them."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in files:
        _sync(path)
    body = {
        "format": FORMAT,
        "step": step,
        "meta": dict(meta),
        "files": {path.relative_to(directory).as_posix(): _fingerprint(path) for path in files},
    }
    manifest = directory / MANIFEST
    manifest.write_text(json.dumps(body | {"sha256": _digest(body)}, indent=1), encoding="utf-8")
    _sync(manifest)
    for path in [*filter(Path.is_dir, directory.rglob("*")), directory]:
        _sync(path)


def _remove(path: Path) -> None:
    """Delete a checkpoint such that a kill half-way leaves a temporary directory, not a damaged checkpoint."""
    temporary = _temporary_name(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{uuid.uuid4().hex}")


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file; of a larger one, of the SHA-256s of its pieces, which all cores compute together."""
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()

        def digest(start: int) -> bytes:
            sha256, place, end = hashlib.sha256(), start, min(size, start + PIECE_BYTES)
            while place < end and (block := os.pread(descriptor, min(BLOCK_BYTES, end - place), place)):
                sha256.update(block)
                place += len(block)
            return sha256.digest()

        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            pieces = list(pool.map(digest, range(0, max(size, 1), PIECE_BYTES)))
    whole = pieces[0] if len(pieces) == 1 else hashlib.sha256(b"".join(pieces)).digest()
    return {"bytes": size, "sha256": whole.hex()}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Bring a file or directory to the disk; some network file systems cannot do that for directories."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
