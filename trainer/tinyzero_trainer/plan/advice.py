"""What planning has to say in `train`: before anything is loaded, and where memory ran out."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import RESUMABLE
from tinyzero_trainer.config.spread import device_of, spread_of
from tinyzero_trainer.estimate.constants import GIB
from tinyzero_trainer.estimate.engine_memory import GB, needed_by_vllm
from tinyzero_trainer.estimate.fit import LEAST_SEQUENCES, Settings, setting, settle, with_settings
from tinyzero_trainer.estimate.memory import Phase, host_bytes, predict_memory
from tinyzero_trainer.estimate.workload import workload_on
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.models.well_known import WELL_KNOWN
from tinyzero_trainer.plan.candidates import SETTLED, Change, Plan, moves
from tinyzero_trainer.plan.search import make_plan
from tinyzero_trainer.plan.target_gpu import TargetGpu, on_gpu, present_gpu

LAST_RESORT = "take a smaller model or a card with more memory"

LOADING, FEW_SEQUENCES = "loading", "few sequences"
"""Where memory may run out too, beside the phases of a step: while weights and optimiser states are put on the card,
and before a few sequences are generated."""

_LESS = 0.8
"""What is left of vllm.gpu_memory_gb when it is made smaller."""

_WORTH_A_WORD = GIB // 20
"""Bytes of a card: nobody wants to hear of less that others hold."""


def warning(config: TrainConfig, shape: ModelSpec | None = None) -> str | None:
    """What is to be said before a run that will not fit into this machine's card, or into several; None = nothing.

    Cards of other machines are taken to be like it.

    Never stops a run: where the model or the card cannot be found, others will say so.

    Args:
        config: of the run.
        shape: of a model that is yet to be made; None = find that of `model.path`.
    """
    with suppress(Exception):  # it asks a driver and reads files that may be broken in any way
        target = present_gpu(device_of(config))
        shape = shape if shape is not None or target is None else _shape(config)
        return None if target is None or shape is None else warning_for(shape, config, target)
    return None


def warning_for(shape: ModelSpec, config: TrainConfig, target: TargetGpu) -> str | None:
    """See `warning`."""
    config = on_gpu(config, target)
    found = make_plan(shape, config, target.room, card=target.card, host=target.host)
    cure = f"give {words(found.changes)}" if found.fits else f"no settings were found that fit: {LAST_RESORT}"
    if found.lacking:
        if found.fits and not {change.key for change in found.changes} - set(SETTLED):
            cure = f"leave it out, or {cure}"
        return f"{lacking_words(config, found)}; {cure} (tinyzero plan says more)"
    if found.wanted.peak <= target.room:
        held = host_bytes(shape, config)
        if target.host is None or held <= target.host:
            return None
        return (
            f"memory.cpu_offload={config.memory.cpu_offload} is predicted to keep {held / GIB:.1f} GiB in the "
            f"machine's "
            f"own memory, which has {target.host / GIB:.1f} GiB; train an adapter (lora.rank), or take a smaller model"
        )
    needs = (
        f"{found.wanted.worst.name} is predicted to take {found.wanted.peak / GIB:.1f} GiB"
        f"{of_which(config, found.wanted.worst)}, and {target.name} has "
        + (taken_words(target) or f"{target.memory / GIB:.1f} GiB")
    )
    if found.wanted.peak <= target.memory:
        cure += ", or end what else is on it"
    return f"{needs}; {cure} (tinyzero plan says more)"


def after_out_of_memory(
    config: TrainConfig, phases: Collection[str] = (), target: TargetGpu | None = None, *, resumed: bool = True
) -> str:
    """Which settings to change to what, after memory ran out; empty if none of them lowers what was held there.

    Args:
        config: of the run.
        phases: where that may have been: as in `timing_s/*`, or a name above; none = anywhere.
        target: the card; None = the one that is here, of which what is in use is the run's own.
        resumed: whether only what may be changed with `--resume` counts, since the run is to go on.
    """
    found = _shape(config)
    shape = found or spec_from_config(*next(iter(WELL_KNOWN.items())))  # what lowers what is much the same for all
    target = None if found is None else target or present_gpu(device_of(config))
    present = config
    if target is not None:
        config = on_gpu(config, target)
        plan = make_plan(shape, config, target.memory, card=target.card, host=target.host)
        present = settle(shape, config, plan.limit)
        if plan.wanted.peak > plan.limit:  # so that it was to be expected
            changes = {change.key: change.value for change in plan.changes}
            if plan.fits and _may(changes, resumed=resumed) and _lowers(shape, present, changes, phases):
                return words(plan.changes)
            if not plan.fits and not resumed:
                return ""
    for move in _moves(shape, present):
        changes_something = any(setting(config, key) != value for key, value in move.items())
        if changes_something and _may(move, resumed=resumed) and _lowers(shape, present, move, phases):
            return _settings(move)
    return ""


def without_advice(config: TrainConfig, phases: Collection[str] = (), *, resumed: bool) -> str:
    """What to do where `after_out_of_memory` is empty.

    Args:
        config: of the run.
        phases: where memory ran out.
        resumed: whether there is a checkpoint to go on from.
    """
    if not resumed:
        return f"no settings were found that help: {LAST_RESORT}"
    anew = after_out_of_memory(config, phases, resumed=False)
    anew = f"start a run in another --output with {anew}, or " if anew else ""
    return f"nothing that --resume may change helps: {anew}{LAST_RESORT}"


def fits_without_offload(config: TrainConfig) -> bool:
    """Whether the present card has room for what waits in the host's memory, as far as is known.

    While the run goes on, that is: what is in use of the card is the run's own.
    """
    target, shape = present_gpu(device_of(config)), _shape(config)
    if target is None or shape is None:
        return True
    config = with_settings(on_gpu(config, target), {"memory.cpu_offload": None})
    plan = make_plan(shape, config, target.memory)
    return plan.wanted.peak <= plan.limit


def lacking_words(config: TrainConfig, found: Plan) -> str:
    """That vLLM has too little memory as asked; empty if it has not."""
    if not found.lacking:
        return ""
    return (
        f"vllm.gpu_memory_gb={config.vllm.gpu_memory_gb:g} is too small: weights, workspaces and one sequence are "
        f"predicted "
        f"to take {found.lacking / GB:.1f} GB"
    )


def taken_words(target: TargetGpu) -> str:
    """How much of a card others hold; empty if it is nothing worth a word."""
    if target.taken < _WORTH_A_WORD:
        return ""
    return f"{target.memory / GIB:.1f} GiB, {target.taken / GIB:.1f} GiB of it in use by others"


def of_which(config: TrainConfig, phase: Phase) -> str:
    """On which of several cards a phase is meant; empty if there is one."""
    spread = spread_of(config)
    if spread.cards == 1:
        return ""
    if not spread.apart:
        return " on each GPU"
    return f" on {'a rank' if phase.card == 'rank' else 'an engine'}'s GPU"


def words(changes: Iterable[Change]) -> str:
    """`key=value` words, ready to be typed."""
    return " ".join(f"{change.key}={format_value(change.value)}" for change in changes)


def _settings(settings: Settings) -> str:
    return " ".join(f"{key}={format_value(value)}" for key, value in settings.items())


def _may(settings: Settings, *, resumed: bool) -> bool:
    return not resumed or settings.keys() <= set(RESUMABLE)


def _moves(shape: ModelSpec, config: TrainConfig) -> Iterator[Settings]:
    """As `moves`; and vLLM, whose memory is settled by now, may take less."""
    size = config.vllm.gpu_memory_gb
    if config.rollout.engine == "vllm" and size is not None:
        less = int(100 * _LESS * size) / 100
        if less * GB >= needed_by_vllm(shape, config, workload_on(config), sequences=LEAST_SEQUENCES):
            yield {"vllm.gpu_memory_gb": less}
    yield from moves(config)


def _lowers(shape: ModelSpec, config: TrainConfig, settings: Settings, phases: Collection[str]) -> bool:
    """Whether some settings lower what is held in the worst of some phases."""
    with suppress(ValueError):  # settings that do not go together are no advice
        return _held(shape, with_settings(config, settings), phases) < _held(shape, config, phases)
    return False


def _held(shape: ModelSpec, config: TrainConfig, phases: Collection[str]) -> int:
    """Bytes of the worst of some phases; of the update if the step has none of them, and of all if none is named."""
    if FEW_SEQUENCES in phases or ("update_weights" in phases and config.rollout.engine == "torch"):
        # Weights are taken over before there is a cache, and where not even a few fit, fewer are no help.
        config = with_settings(config, {"rollout.max_num_seqs": LEAST_SEQUENCES})
    memory = predict_memory(shape, config)
    by_name = {phase.name: phase for phase in memory.phases}
    generating = predict_memory(shape, config, card=spread_of(config).generating)
    by_name |= {phase.name: phase for phase in generating.phases if phase.name in ("gen", "gen_greedy")}
    if LOADING in phases:
        return sum(part.size for part in by_name["gen"].parts if part.role not in ("rollout", "process"))
    meant = {*phases, *({"gen"} if FEW_SEQUENCES in phases else ())}
    otherwise = by_name["update_actor"].total if meant else memory.peak
    return max((phase.total for name, phase in by_name.items() if name in meant), default=otherwise)


def _shape(config: TrainConfig) -> ModelSpec | None:
    try:
        return find_spec(config.model.path, download=False)
    except TinyZeroError:
        return None
