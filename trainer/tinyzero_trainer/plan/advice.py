"""What planning has to say in `train`: before anything is loaded, and where memory ran out."""

from collections.abc import Collection, Iterable
from contextlib import suppress

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import show
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan.constants import GIB
from tinyzero_trainer.plan.find_shape import find_shape
from tinyzero_trainer.plan.memory import Memory, predict_memory
from tinyzero_trainer.plan.proposals import LEAST_TOKENS, Change, Settings, make_plan, moves, settle, with_settings
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.target import Target, present_card
from tinyzero_trainer.resuming import RESUMABLE

LAST_RESORT = "take a smaller model or a card with more memory"


def warning(config: TrainConfig) -> str | None:
    """What is to be said before a run that will not fit into this machine's card; None = nothing.

    Never stops a run: where the model or the card cannot be found, others will say so.
    """
    target = present_card(config.run.device)
    shape = None if target is None else _shape(config)
    return None if target is None or shape is None else warning_for(shape, config, target)


def warning_for(shape: ModelShape, config: TrainConfig, target: Target) -> str | None:
    """See `warning`."""
    found = make_plan(shape, config, target.memory)
    if found.wanted.peak <= target.memory:
        return None
    needs = (
        f"{found.wanted.worst.name} is predicted to take {found.wanted.peak / GIB:.1f} GiB, and {target.name} has "
        f"{target.memory / GIB:.1f} GiB"
    )
    cure = f"give {words(found.changes)}" if found.fits else f"no settings were found that fit: {LAST_RESORT}"
    return f"{needs}; {cure} (tinyzero plan says more)"


def after_out_of_memory(config: TrainConfig, phases: Collection[str] = (), target: Target | None = None) -> str:
    """Which settings to change to what, after memory ran out; empty if nothing is left to change.

    Only what may be changed with `--resume`, since a run is to go on.

    Args:
        config: of the run.
        phases: where that may have been, as in `timing_s/*`; none = anywhere.
        target: the card; None = the one that is here.
    """
    target, shape = target or present_card(config.run.device), _shape(config)
    possible = [move for move in moves(config) if move.keys() <= set(RESUMABLE)]
    if shape is None:
        return _settings(possible[0]) if possible else ""
    if target is not None:
        found = make_plan(shape, config, target.memory)
        keys = {change.key for change in found.changes}
        if found.fits and found.wanted.peak > found.limit and keys <= set(RESUMABLE):
            return words(found.changes)
        config = settle(shape, config, found.limit)
    present = _most(predict_memory(shape, config), phases)
    for move in possible:
        with suppress(ValueError):  # settings that do not go together are no advice
            if _most(predict_memory(shape, with_settings(config, move)), phases) < present:
                return _settings(move)
    # By the prediction nothing helps; but it was wrong.
    half = config.optimizer.micro_batch_tokens // 2
    return _settings({"optimizer.micro_batch_tokens": half}) if half >= LEAST_TOKENS else ""


def words(changes: Iterable[Change]) -> str:
    """`key=value` words, ready to be typed."""
    return " ".join(f"{change.key}={show(change.value)}" for change in changes)


def _settings(settings: Settings) -> str:
    return " ".join(f"{key}={show(value)}" for key, value in settings.items())


def _most(memory: Memory, phases: Collection[str]) -> int:
    """Bytes of the worst of some phases; of all, if the step has none of them."""
    return max((phase.total for phase in memory.phases if phase.name in phases), default=memory.peak)


def _shape(config: TrainConfig) -> ModelShape | None:
    try:
        return find_shape(config.model.path, download=False)
    except TinyZeroError:
        return None
