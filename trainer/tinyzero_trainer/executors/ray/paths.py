"""The paths of a configuration made absolute: other processes have other working directories."""

from dataclasses import replace
from pathlib import Path

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import directory_of


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The same with absolute paths; names on the Hugging Face Hub and of modules stay as they are.

    Tasks are sent with the absolute path of their file anyway.
    """
    return replace(
        config,
        run=replace(config.run, output=_absolute(config.run.output)),
        model=replace(config.model, path=_model(config.model.path)),
        algorithm=replace(config.algorithm, policy_loss=_loss(config.algorithm.policy_loss)),
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _model(path: str | None) -> str | None:
    found = directory_of(path)
    return _absolute(str(found)) if found is not None and found.expanduser().is_dir() else path


def _loss(name: str) -> str:
    place, _, function = name.rpartition(":")
    return f"{_absolute(place)}:{function}" if place.endswith(".py") else name
