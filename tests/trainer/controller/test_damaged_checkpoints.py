"""Checkpoints that are consistent and wrong: one line that names the file, or what was saved; with an older one, that.

The manifest is written anew after each fault, where it would give the fault away.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.configurations import typed
from tests.trainer.controller.test_checkpointer import batch_of
from tests.trainer.samples import make_sample
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.resume import fingerprint
from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY, SavedRun, newest_checkpoint
from tinyzero_trainer.controller.rollout_batch import save_batch
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.data.prompts import StreamState

MANIFEST, STATE, BATCH = "manifest.json", f"{STATE_DIRECTORY}/state.json", f"{STATE_DIRECTORY}/next_batch.json"
ODD: list[Any] = [None, True, -1, 0, 7, 0.5, 1e308, float("nan"), 10**400, "", "x", "\ud800", [], {}, [[]], {"x": 1}]


def seal(path: Path, change: Callable[[dict[str, Any]], Any] = lambda body: None) -> None:
    """Write the manifest of a checkpoint for the files that it has now, and with a change."""
    body = json.loads((path / MANIFEST).read_text())
    del body["sha256"]
    body["files"] = {name: store._fingerprint(path / name) for name in body["files"] if (path / name).is_file()}
    change(body)
    (path / MANIFEST).write_text(json.dumps(body | {"sha256": store._digest(body)}))


@pytest.fixture(scope="module")
def config(toy_task: str) -> TrainConfig:
    return make_config(typed("data.prompt_template=base", task=toy_task))


@pytest.fixture(scope="module")
def saved(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Two checkpoints, without tensors."""
    run = RunDirectory(tmp_path_factory.mktemp("saved"))
    run.checkpoints.mkdir()
    for step in (2, 4):

        def fill(path: Path, step: int = step) -> None:
            (path / STATE_DIRECTORY).mkdir()
            progress = {name: StreamState(8, 0, 8, (8,)) for name in config.tasks}
            TrainerState(step, None, progress=progress).save(path / STATE_DIRECTORY)
            save_batch(batch_of([make_sample(3, 2) for _ in range(4)]), path / STATE_DIRECTORY)

        store.save(run.checkpoints, step, fill, meta={"config": fingerprint(config), "tasks": {}})
    return run


@pytest.fixture
def copy(saved: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(saved.path, tmp_path / "copy")
    return RunDirectory(tmp_path / "copy")


def rewritten(file: str, content: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        (path / file).write_text(content)
        seal(path)

    return act


def in_state(**changes: Any) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        values = json.loads((path / STATE).read_text())
        (path / STATE).write_text(json.dumps(values | changes))
        seal(path)

    return act


def in_manifest(**changes: Any) -> Callable[[Path], None]:
    return lambda path: seal(path, lambda body: body.update(changes))


def without(key: str) -> Callable[[Path], None]:
    return lambda path: seal(path, lambda body: body.pop(key))


def removed(file: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        (path / file).unlink()
        seal(path)

    return act


def linked(file: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        outside = (path / file).rename(path.parents[1] / "outside")
        (path / file).symlink_to(outside)
        seal(path)

    return act


FAULTS = {
    "no step": (without("step"), r"manifest\.json is wrong at step: Field required"),
    "empty meta": (in_manifest(meta={}), r"manifest\.json is wrong at config"),
    "a deep manifest": (lambda path: (path / MANIFEST).write_text("[" * 10**6), r"manifest\.json cannot be read"),
    "a file outside": (in_manifest(files={"../../config.toml": {"bytes": 0, "sha256": ""}}), "leads out of the check"),
    "a link to the outside": (linked(STATE), r"state\.json leads out of the checkpoint; put the file itself"),
    "no state": (removed(STATE), r"state\.json: No such file"),
    "a state that does not parse": (rewritten(STATE, "{"), r"state\.json is wrong at the whole"),
    "the state of another step": (in_state(step=7), r"state\.json is not of this step and these tasks"),
    "a batch that does not parse": (rewritten(BATCH, "{"), r"next_batch\.json cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_checkpoint_that_is_consistent_and_wrong_is_named_and_the_one_before_it_taken(name, copy, config):
    act, message = FAULTS[name]
    act(copy.checkpoints / "step_4")
    found = newest_checkpoint(config, copy, {})
    assert found is not None
    assert found.state.step == 2
    assert re.search(message, *found.checkpoint.skipped)
    shutil.rmtree(copy.checkpoints / "step_2")
    with pytest.raises(store.CheckpointError, match=f"all checkpoints in .* are damaged: .*{message}"):
        newest_checkpoint(config, copy, {})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with each of its keys."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(inner)


def mutate(path: Path, files: list[str], data: st.DataObject) -> None:
    """Change one thing in a checkpoint, and seal it again or not."""
    file = path / data.draw(st.sampled_from(files), "file")
    content = file.read_bytes()
    acts = ["cut", "flip", "remove", "directory", *(["key", "value"] if file.suffix == ".json" else [])]
    act = data.draw(st.sampled_from(acts), "act")
    place = data.draw(st.integers(0, len(content) - 1), "byte")
    if act == "cut":
        file.write_bytes(content[:place])
    elif act == "flip":
        file.write_bytes(
            content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
        )
    elif act in ("remove", "directory"):
        file.unlink()
        if act == "directory":
            file.mkdir()
    else:
        body = json.loads(content)
        container, key = data.draw(st.sampled_from(list(places(body))), "place")
        if act == "key":
            del container[key]
        else:
            container[key] = data.draw(st.sampled_from(ODD), "value")
        if file.name == MANIFEST and "sha256" in body:
            body["sha256"] = store._digest({name: value for name, value in body.items() if name != "sha256"})
        file.write_text(json.dumps(body))
    if file.name != MANIFEST and data.draw(st.booleans(), "sealed"):
        seal(path)


@pytest.mark.slow
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_in_a_checkpoint_it_is_refused_in_one_line_or_is_what_it_says(
    saved, config, tmp_path, data
):
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    shutil.copytree(saved.path, tmp_path / "copy")
    run = RunDirectory(tmp_path / "copy")
    mutate(run.checkpoints / "step_4", [MANIFEST, STATE, BATCH], data)
    try:
        found = newest_checkpoint(config, run, {})
    except SettingsError:  # it is of another configuration
        return
    assert found is not None
    if found.checkpoint.skipped:
        (line,) = found.checkpoint.skipped
        assert re.fullmatch(".*step_4.*", line)
        assert found.state.step == 2
    else:
        assert found.state.step == 4
        assert_saved_again(found, tmp_path)


def assert_saved_again(found: SavedRun, directory: Path) -> None:
    """The state is what it is written as."""
    found.state.save(directory)
    assert repr(TrainerState.load(directory)) == repr(found.state)
