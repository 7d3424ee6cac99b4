"""What a configuration names by a path, as other processes find it: their working directory need not be this one's."""

from dataclasses import replace
from pathlib import Path

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import directory_of


def with_whole_paths(config: TrainConfig) -> TrainConfig:
    """The same with absolute paths; names on the Hub and of modules stay as they are.

    A task is no matter of this: what is sent has its file's absolute path.
    """
    return replace(
        config,
        run=replace(config.run, output=_whole(config.run.output)),
        model=replace(config.model, path=_model(config.model.path)),
        algorithm=replace(config.algorithm, policy_loss=_loss(config.algorithm.policy_loss)),
    )


def _whole(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _model(path: str | None) -> str | None:
    found = directory_of(path)
    return _whole(str(found)) if found is not None and found.expanduser().is_dir() else path


def _loss(name: str) -> str:
    place, _, function = name.rpartition(":")
    return f"{_whole(place)}:{function}" if place.endswith(".py") else name
