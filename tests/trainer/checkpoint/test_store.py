"""A checkpoint is whole or absent, whatever call fails and wherever the process dies."""

import errno
import os
import resource
import shutil
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tinyzero_trainer.checkpoint import store as checkpoint
from tinyzero_trainer.checkpoint.store import (
    CheckpointError,
    DamagedCheckpointError,
    keep_for,
    latest,
    prune,
    save,
    sweep,
    verify,
)

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
META = {"config": "c0ffee", "world_size": 1}

# Python 3.12 warns of a fork in a process with threads; the children here touch only files and leave by os._exit.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def content(step):
    return {"model.safetensors": b"weights %d " % step * 9, "state/optimizer.bin": b"moments %d" % step, "empty": b""}


def filler(step, *, tick=lambda: None):
    """A `fill` that calls `tick` in the middle of every file."""

    def fill(directory):
        for name, data in content(step).items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                tick()
                file.write(data[len(data) // 2 :])

    return fill


def read_back(found):
    return {name: (found.path / name).read_bytes() for name in content(found.step)}


def names(root):
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def root(tmp_path):
    """Two checkpoints, of steps 10 and 20."""
    root = tmp_path / "checkpoints ✓"
    root.mkdir()
    for step in (10, 20):
        save(root, step, filler(step), meta=META)
    return root


def test_saved_is_found_with_its_meta(root, tmp_path):
    found = latest(root)
    assert (found.step, found.path, found.meta, found.skipped) == (20, root / "step_20", META, ())
    assert read_back(found) == content(20)
    assert latest(tmp_path) is None


@pytest.mark.parametrize(("keep", "kept"), [(0, [100, 20]), (2, [100, 20]), (3, [10, 100, 20])])
def test_the_newest_are_kept_and_at_least_two(root, keep, kept):
    save(root, 100, filler(100), meta=META, keep=keep)
    assert names(root) == [f"step_{step}" for step in kept]
    assert latest(root).step == 100


def test_one_that_another_run_needs_is_kept_as_long_as_that_run_is_there(root, tmp_path):
    (tmp_path / "user").mkdir()
    for model in (root / "step_10", root, Path("Qwen/Qwen3-0.6B")):  # only the first is a checkpoint
        keep_for(tmp_path / "user", model)
    save(root, 30, filler(30), meta=META)
    prune(root)
    assert names(root) == ["step_10", "step_30"]
    (tmp_path / "user").rmdir()
    prune(root)
    assert names(root) == ["step_30"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_of_the_same_step_is_replaced(root, damaged):
    """One that is intact, too: a run that has not resumed from it could not use it."""
    (root / "step_20" / "empty").write_bytes(b"other")
    if not damaged:
        (root / "step_20" / "manifest.json").unlink()
        checkpoint._seal(root / "step_20", 20, META)
        assert verify(root / "step_20")
    save(root, 20, filler(20), meta=META)
    assert read_back(latest(root)) == content(20)
    assert names(root) == ["step_10", "step_20"]


def test_damaged_ones_past_the_resumed_step_go_when_the_run_has_saved_again(root):
    (root / "step_20" / "empty").unlink()
    save(root, 15, filler(15), meta=META)
    assert names(root) == ["step_10", "step_15"]


@pytest.mark.fault(
    "F18",
    "Every checkpoint is damaged",
    made="a file is deleted from each",
    seen="all checkpoints in … are damaged: …step_20/empty: No such file…step_10…; start…",
    kept="the files as they are",
    code=2,
)
def test_if_every_one_is_damaged_resuming_stops(fault_row, root):
    for step in (10, 20):
        (root / f"step_{step}" / "empty").unlink()
    with pytest.raises(CheckpointError) as error:
        latest(root)
    fault_row.check(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*content(20), "manifest.json"])
@pytest.mark.fault(
    "F18",
    "A byte of a checkpoint has changed",
    made="each byte of each file is changed in turn",
    seen="step_20/…",
    kept="the newest sound checkpoint is taken, and the others are named",
)
def test_any_changed_byte_is_found(fault_row, root, name, monkeypatch):
    """In whichever piece of a file it is."""
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 7)
    monkeypatch.setattr(checkpoint, "BLOCK_BYTES", 3)
    for step in (10, 20):
        (root / f"step_{step}/manifest.json").unlink()
        checkpoint._seal(root / f"step_{step}", step, META)
    file = root / "step_20" / name
    intact = file.read_bytes()
    for position in range(len(intact)):
        file.write_bytes(intact[:position] + bytes([intact[position] ^ 1]) + intact[position + 1 :])
        with pytest.raises(DamagedCheckpointError):
            verify(root / "step_20")
    file.write_bytes(intact[:-1] if intact else b"!")
    found = latest(root)
    assert found.step == 10
    fault_row.check(found.skipped)


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        ("[]", "manifest.json: "),
        ("{}", "KeyError: 'format'"),
        ('{"format": 2}', "has format 2, expected 1"),
        ("\0", "manifest.json: "),
        ('{"format": 1}', "manifest.json: "),
    ],
)
def test_a_foreign_manifest_is_refused(root, manifest, fault):
    (root / "step_20" / "manifest.json").write_text(manifest)
    with pytest.raises(DamagedCheckpointError, match=fault):
        verify(root / "step_20")


def test_a_renamed_checkpoint_is_refused(root):
    (root / "step_20").rename(root / "step_99")
    assert latest(root).skipped == (f"{root}/step_99 holds step 20; rename it back",)


@pytest.mark.fault(
    "F3",
    "What a killed save has left lies about",
    made="the directories are made by hand, and others with similar names",
    seen="",
    kept="all that is not the run's own litter, which is removed at the next start",
)
def test_sweep_deletes_temporary_checkpoints_only(fault_row, root):
    foreign = ["step_20.tmp-backup", "notes", "step_20.bak"]
    for name in [*foreign, f"step_30.tmp-{'0f' * 16}"]:
        (root / name).mkdir()
    sweep(root)
    assert names(root) == sorted([*foreign, "step_10", "step_20"])
    fault_row.check("")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors have no names here")
def test_everything_is_on_the_disk_before_the_rename_and_the_rename_before_the_return(root, monkeypatch):
    calls, real_fsync, real_rename = [], os.fsync, os.rename

    def fsync(descriptor):
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def rename(source, target):
        calls.append(f"rename to {target.name}")
        real_rename(source, target)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    monkeypatch.setattr(checkpoint.os, "rename", rename)
    save(root, 30, filler(30), meta=META, keep=3)
    *files, manifest, state, whole, renamed, parent = calls
    assert sorted(files) == ["empty", "model.safetensors", "optimizer.bin"]
    assert (manifest, state, renamed, parent) == ("manifest.json", "state", "rename to step_30", root.name)
    assert whole.startswith("step_30.tmp-")


def test_a_bug_is_raised_as_it_is_and_leaves_nothing_behind(root):
    def fill(directory):
        (directory / "half").touch()
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        save(root, 30, fill, meta=META)
    assert names(root) == ["step_10", "step_20"]


def test_a_real_write_error_inside_safetensors_is_one_line(root):
    def fill(directory):
        save_file({"weight": np.zeros(100_000)}, directory / "model.safetensors")

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            save(root, 30, fill, meta=META)
        except CheckpointError as error:
            os._exit(0 if "File too large" in str(error) and "\n" not in str(error) else 2)

    assert in_child(child) == 0
    assert names(root) == ["step_10", "step_20"]


def in_child(work):
    """Run `work` in a forked process; its exit code, 1 if it raised, 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


WRITES = ("os.mkdir", "os.rename")
DELETES = ("os.remove", "os.rmdir")  # these work on a full disk


def save_with_fault(root, at, fault, events):
    """Save step 30; `fault` is called at the `at`-th moment at which something changes on the disk.

    Moments are: before every open for writing, fsync and one of `events`, and in the middle of every file.
    """
    moments = 0

    def tick():
        nonlocal moments
        moments += 1
        if moments == at:
            fault()

    def audit(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS
        if writes or event in events:
            tick()

    def fsync(descriptor, real=os.fsync):
        tick()
        real(descriptor)

    def write_text(path, text, **kwargs):
        path.write_bytes(text[: len(text) // 2].encode())
        tick()
        path.write_bytes(text.encode())

    os.fsync, Path.write_text = fsync, write_text
    sys.addaudithook(audit)
    save(root, 30, filler(30, tick=tick), meta=META)
    if moments < at:
        os._exit(99)  # past the last one


def every_moment(root, tmp_path, work):
    """Yield (exit code, directory) of saving into a copy of `root` with a fault at each moment in turn."""
    for at in range(1, 200):
        copy = shutil.copytree(root, tmp_path / f"{at}")
        code = in_child(lambda at=at, copy=copy: work(copy, at))
        if code == 99:
            assert at > 20, "the faults do not reach what they should"
            return
        yield code, copy
    pytest.fail("no end")


def assert_whole(copy):
    found = latest(copy)
    assert found.skipped == ()
    assert found.step in (20, 30)
    assert read_back(found) == content(found.step)
    return found.step


@pytest.mark.slow
@pytest.mark.fault(
    "F2",
    "The process is killed while it saves",
    made="it exits before each system call of a save in turn, and in the middle of each file",
    seen="",
    kept="the checkpoint before it, or the new one: whole, and nothing between",
    code=137,
)
def test_killed_at_any_moment_the_newest_checkpoint_is_whole(fault_row, root, tmp_path):
    def save_and_die(copy, at):
        save_with_fault(copy, at, lambda: os._exit(137), WRITES + DELETES)

    seen = set()
    for code, copy in every_moment(root, tmp_path, save_and_die):
        assert code == 137
        seen.add(assert_whole(copy))
        sweep(copy)
        assert all(verify(path) for path in copy.iterdir())
        assert len(names(copy)) >= 2
        save(copy, 40, filler(40), meta=META)
        assert latest(copy).step == 40
        assert len(names(copy)) == 2
    assert seen == {20, 30}
    fault_row.check("", code)


@pytest.mark.slow
def test_disk_full_at_any_moment_leaves_no_half_checkpoint(root, tmp_path):
    def no_space():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save_on_full_disk(copy, at):
        try:
            save_with_fault(copy, at, no_space, WRITES)
        except CheckpointError as error:
            os._exit(0 if "No space left on device" in str(error) else 2)

    for code, copy in every_moment(root, tmp_path, save_on_full_disk):
        assert code == 0
        assert_whole(copy)
        assert len(names(copy)) >= 2
        assert "tmp" not in " ".join(names(copy))


@pytest.mark.parametrize("name", ["empty", "manifest.json"])
def test_a_file_that_the_system_cannot_read_is_not_damaged(root, monkeypatch, name):
    real = Path.open

    def opened(path, *args, **options):
        if path == root / "step_20" / name:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **options)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(CheckpointError) as caught:
        latest(root)
    monkeypatch.undo()
    assert str(caught.value) == f"cannot read {root}/step_20/{name}: Input/output error; try again"
    assert not isinstance(caught.value, DamagedCheckpointError)
    assert latest(root).step == 20


@pytest.mark.fault(
    "F19",
    "The file system cannot sync directories",
    made="fsync of a directory ends in EINVAL, as on some network file systems",
    seen="",
    kept="everything",
)
def test_where_directories_cannot_be_synced_a_checkpoint_is_saved(fault_row, root, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    save(root, 30, filler(30), meta=META)
    assert read_back(latest(root)) == content(30)
    fault_row.check("")
