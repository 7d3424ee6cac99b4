"""What `train` says about memory: before anything is loaded, and after memory has run out."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS
from tinyzero_trainer.advisor.fit import LEAST_TOKENS, settle
from tinyzero_trainer.advisor.memory import Phase, host_bytes, predict_memory, predictions_of
from tinyzero_trainer.advisor.plan import Change, Plan, adapter_settings, make_plan
from tinyzero_trainer.advisor.target_gpu import TargetGpu, on_gpu, present_gpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import SMALLER, Settings, resumable, setting, with_settings
from tinyzero_trainer.distributed.parallel_dims import device_of, planned_dims
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import Workload, workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.kinds import find_engine
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import WELL_KNOWN, ModelSpec
from tinyzero_trainer.rollout.sizes import GB, LEAST_SEQUENCES
from tinyzero_trainer.utils.bounds import unless_auto

LAST_RESORT = "take a smaller model or a GPU with more memory"

LOADING, FEW_SEQUENCES = "loading", "few sequences"
"""Where memory may run out besides the phases of a step: while weights and optimizer state are loaded onto the GPU,
and where not even a few sequences can be generated."""


def warning(config: TrainConfig, spec: ModelSpec | None = None) -> str | None:
    """A warning before a run that is predicted not to fit GPUs like this machine's; a `spec` if there is no model yet.

    None if it fits, or if the model or the GPU cannot be found: loading says what is wrong with them.
    """
    target = present_gpu(device_of(config))
    if target is None or (spec := spec or _find(config)) is None:
        return None
    return warning_for(spec, config, target)


def warning_for(spec: ModelSpec, config: TrainConfig, target: TargetGpu) -> str | None:
    """A warning of a run that is predicted not to fit a GPU, or host memory; None if it fits."""
    config = on_gpu(config, target)
    plan = make_plan(spec, config, target.free, gpu=target.spec, host=target.host)
    fix = f"give {as_overrides(plan.changes)}" if plan.fits else f"no settings were found that fit: {LAST_RESORT}"
    if plan.shortfall:
        return f"{shortfall_message(config, plan)}; {fix}"
    worst = plan.requested.worst
    if worst.total <= target.free:
        held = host_bytes(spec, config)
        if target.host is None or held <= target.host:
            return None
        return (
            f"memory.cpu_offload={config.memory.cpu_offload} is predicted to keep {held / GIB:.1f} GiB in host memory, "
            f"which has {target.host / GIB:.1f} GiB; train an adapter (lora.rank), or take a smaller model"
        )
    if worst.total <= target.memory:
        fix += ", or end the other processes on it"
    has = in_use_message(target) or f"{target.memory / GIB:.1f} GiB"
    return (
        f"{worst.name} is predicted to take {worst.total / GIB:.1f} GiB{on_which_gpu(config, worst)}, and "
        f"{target.name} has {has}; {fix}"
    )


def after_out_of_memory(
    config: TrainConfig, phases: Collection[str] = (), target: TargetGpu | None = None, *, resumed: bool = True
) -> str:
    """The overrides to give after memory ran out; empty if none lowers what was held there.

    Args:
        phases: where memory may have run out: names of `timing_s/*`, or one of those above; none = anywhere.
        target: the GPU; None = this machine's, where all memory in use is the run's own.
        resumed: whether to propose only settings that `--resume` may change.
    """

    known = _find(config)
    spec = known or next(iter(WELL_KNOWN.values()))  # what lowers memory is much the same for all
    target = None if known is None else target or present_gpu(device_of(config))
    if target is not None:
        config = settle(spec, on_gpu(config, target), usable(target.memory))
    less = predictions_of(config).less_memory(spec, config, workload_of(config))
    for change in (*less, *candidate_changes(config)):
        changes_something = any(setting(config, key) != value for key, value in change.items())
        allowed = not resumed or change.keys() <= resumable(TrainConfig)
        if not changes_something or not allowed:
            continue
        with suppress(ValueError):  # the change contradicts other settings
            if _held(spec, with_settings(config, change), phases) < _held(spec, config, phases):
                return " ".join(f"{key}={format_value(value)}" for key, value in change.items())
    return ""


def candidate_changes(config: TrainConfig, prompt_tokens: int | None = None) -> Iterator[Settings]:
    """Settings that may take less memory, the cheapest first, for a configuration that `settle` has filled in."""
    work, changes = workload_of(config, prompt_tokens), list[tuple[int, str, object]]()
    for key, trade in MEMORY_SETTINGS.items():
        present = trade.option_index(setting(config, key))
        changes += [(option.rank, key, option.value) for option in trade.options[present + 1 :]]
    for _, key, value in sorted(changes, key=lambda change: change[0]):
        if value is SMALLER:
            value = SMALLER_NUMBERS[key](config, work)
        if value is not None:
            yield {key: value}
    if not config.lora.rank:
        yield adapter_settings(config)


def fewer_sequences(config: TrainConfig, work: Workload) -> int | None:
    """Half of rollout.max_num_seqs; None = that are too few."""
    count = min(unless_auto(config.rollout.max_num_seqs) or work.at_a_time, work.at_a_time)
    least = max(LEAST_SEQUENCES, config.rollout.group_size)
    return max(count // 2, least) if count > least else None


def smaller_micro_batch(config: TrainConfig, work: Workload) -> int | None:
    """The power of two below optimizer.micro_batch_tokens; None = too few, or each sequence goes alone already."""
    budget = min(config.optimizer.token_budget, work.micro_batch)
    size = 1 << (budget - 1).bit_length() - 1
    return size if budget * work.sequence_parallel > work.sequence and size >= LEAST_TOKENS else None


SMALLER_NUMBERS = {
    "rollout.max_num_seqs": fewer_sequences,
    "optimizer.micro_batch_tokens": smaller_micro_batch,
}


def without_advice(config: TrainConfig, phases: Collection[str] = (), *, resumed: bool) -> str:
    """What to do where `after_out_of_memory` is empty; `resumed` = there is a checkpoint to resume from."""
    if not resumed:
        return f"no settings were found that help: {LAST_RESORT}"
    overrides = after_out_of_memory(config, phases, resumed=False)
    new_run = f"start a run in another --output with {overrides}, or " if overrides else ""
    return f"no setting that --resume may change helps: {new_run}{LAST_RESORT}"


def shortfall_message(config: TrainConfig, plan: Plan) -> str:
    """A message if the requested vllm.gpu_memory_gb is too small; otherwise empty."""
    if not plan.shortfall:
        return ""
    return (
        f"vllm.gpu_memory_gb={config.vllm.gpu_memory_gb:g} is too small: weights, workspaces and one sequence are "
        f"predicted to take {plan.shortfall / GB:.1f} GB"
    )


def in_use_message(target: TargetGpu) -> str:
    """How much of a GPU's memory other processes use; empty if hardly any."""
    if target.in_use < GIB // 20:
        return ""
    return f"{target.memory / GIB:.1f} GiB, {target.in_use / GIB:.1f} GiB of it in use by other processes"


def on_which_gpu(config: TrainConfig, phase: Phase) -> str:
    """Which of several GPUs a phase's memory is on; empty for one GPU."""
    dims = planned_dims(config)
    if dims.gpus == 1:
        return ""
    if dims.colocated:
        return " on each GPU"
    return f" on {'a rank' if phase.gpu == 'rank' else 'an engine'}'s GPU"


def as_overrides(changes: Iterable[Change]) -> str:
    """Changes as `key=value`, ready to be typed."""
    return " ".join(f"{change.key}={format_value(change.value)}" for change in changes)


def _held(spec: ModelSpec, config: TrainConfig, phases: Collection[str]) -> int:
    """Bytes of the worst of some phases; of the update if the step has none of them, and of all if none is given."""
    if FEW_SEQUENCES in phases or ("update_weights" in phases and not find_engine(config.rollout.engine).preallocates):
        # Weights are loaded before there is a cache; and where not even a few sequences fit, fewer do not help.
        config = with_settings(config, {"rollout.max_num_seqs": LEAST_SEQUENCES})
    memory = predict_memory(spec, config)
    by_name = {phase.name: phase for phase in memory.phases}
    generating = predict_memory(spec, config, gpu=planned_dims(config).generating)
    by_name |= {phase.name: phase for phase in generating.phases if phase.name in ("gen", "gen_greedy")}
    if LOADING in phases:
        return sum(part.size for part in by_name["gen"].parts if part.role not in ("rollout", "process"))
    phase_names = {*phases, *({"gen"} if FEW_SEQUENCES in phases else ())}
    otherwise = by_name["update_actor"].total if phase_names else memory.peak
    return max((phase.total for name, phase in by_name.items() if name in phase_names), default=otherwise)


def _find(config: TrainConfig) -> ModelSpec | None:
    with suppress(TinyZeroError):
        return find_spec(config.model.path, download=False)
    return None
