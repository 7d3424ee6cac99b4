"""Chooses the memory settings that are left to the run (`auto`): the fastest with which it fits its GPUs.

None of them changes the loss. What changes it, or what the user gave, is for plan.py to propose.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import log2

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.fit import LEAST_TOKENS, engine_keeps, predict_within, settle
from tinyzero_trainer.advisor.memory import Memory, host_bytes, predict_memory
from tinyzero_trainer.advisor.speed import launching_seconds, predict_speed
from tinyzero_trainer.advisor.target_gpu import TargetGpu, gpu_of_run, on_gpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.algorithm import MICRO_BATCH_TOKENS
from tinyzero_trainer.config.settings import memory_settings, replaced, setting, why_unused, with_settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.kinds import find_engine
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.rollout.sizes import LEAST_SEQUENCES

MEMORY_SETTINGS = memory_settings(TrainConfig)
RESHARD = "memory.reshard_after_forward"  # which ranks choose by the memory that is left
MOST_TOKENS = 131_072  # of a micro-batch: no gain was measured beyond
NEGLIGIBLE = 1.01  # factor in the time of a step for which nothing is offloaded or recomputed


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration whose `auto` settings have values, with its memory and seconds a step."""

    config: TrainConfig
    memory: Memory
    seconds: float


def resolve_auto(
    config: TrainConfig, spec: ModelSpec | None = None, target: TargetGpu | None = None
) -> tuple[TrainConfig, str]:
    """The configuration with values for `auto`, and a line that reports them.

    Unchanged, with an empty line, where all has values, on the CPU, and where there is no such GPU or model.

    Args:
        spec: of a model that does not exist yet; None = the configuration's.
        target: the GPU; None = the run's.

    Raises:
        RayError: see `gpu_of_run`.
    """
    open_keys = left_open(config)
    target = target or (gpu_of_run(config) if open_keys else None)
    if target is None:
        return config, ""
    with suppress(SettingsError):  # loading the model says what is wrong with it
        spec = spec or find_spec(config.model.path)
    if spec is None:
        return config, ""
    choice = choose(spec, on_gpu(config, target), usable(target.free), target.spec, host=target.host)
    values = {key: setting(choice.config, key) for key in open_keys}
    values = {key: value for key, value in values.items() if value != "auto"}  # those with an effect
    if not values:
        return config, ""
    words = " ".join(f"{key}={format_value(value)}" for key, value in values.items())
    peak, memory = choice.memory.peak / GIB, target.memory / GIB
    return with_settings(config, values), f"auto: {words} (about {peak:.1f} of {memory:.1f} GiB, {target.name})"


def left_open(config: TrainConfig) -> list[str]:
    """The settings that are left to the run and have an effect."""
    keys = (key for key in MEMORY_SETTINGS if setting(config, key) == "auto")
    return [key for key in keys if why_unused(config, key) is None]


def choose(
    spec: ModelSpec,
    config: TrainConfig,
    limit: int,
    gpu: GpuSpec | None = None,
    prompt_tokens: int | None = None,
    *,
    host: int | None = None,
) -> Choice:
    """The values for `auto` with the shortest step, up to `NEGLIGIBLE`, that fit; if none fit, with the least memory.

    Args:
        limit: bytes of each GPU that may be used.
        gpu: its data sheet; None = unknown, so that times are those of a common GPU.
        prompt_tokens: see `workload_of`.
        host: bytes of host memory that `memory.cpu_offload` may use; None = unknown.
    """
    gpu = gpu or find_gpu_spec(constants.COMMON_GPU)
    assert gpu is not None

    def evaluated(candidate: TrainConfig) -> Choice:
        settled = settle(spec, candidate, limit, prompt_tokens)
        # Logits are kept only beside the engine: to build it anew takes longer than to compute them again.
        keeps = settled.memory.recompute_logits is False and settled.memory.offload is None
        work = workload_of(settled, prompt_tokens)
        # Larger micro-batches gain a little where the prediction has the GPU busy all the time.
        waiting = 3 * work.epochs * constants.LAUNCH_WAIT * launching_seconds(spec, work)
        seconds = predict_speed(spec, settled, gpu, prompt_tokens).step + waiting
        return Choice(settled, predict_memory(spec, settled, prompt_tokens, keeps=keeps), seconds)

    def completed(choice: Choice) -> Choice:
        """With the number of sequences at a time where all fit, and an engine and ranks that keep what fits."""
        work, settled = workload_of(choice.config, prompt_tokens), choice.config
        if settled.rollout.max_num_seqs == "auto":
            count = work.max_num_seqs if find_engine(config.rollout.engine).preallocates else work.at_a_time
            settled = replace(settled, rollout=replace(settled.rollout, max_num_seqs=count))
        if RESHARD in left_open(settled) and planned_dims(settled).world_size > 1:
            keeping = replaced(settled, {RESHARD: False})
            # The engine before the ranks: to build it anew takes longer than to gather the weights.
            same = len({engine_keeps(spec, candidate, limit, prompt_tokens) for candidate in (settled, keeping)}) == 1
            fits = same and predict_within(spec, keeping, limit, prompt_tokens).peak <= limit
            settled = keeping if fits else replaced(settled, {RESHARD: True})
        return Choice(settled, predict_within(spec, settled, limit, prompt_tokens), choice.seconds)

    for fewer in (config, *_with_fewer_sequences(config, prompt_tokens)):
        choices = [evaluated(candidate) for candidate in _candidates(spec, fewer, host)]
        if fitting := [choice for choice in choices if choice.memory.peak <= limit]:
            enough = NEGLIGIBLE * min(choice.seconds for choice in fitting)
            return completed(next(choice for choice in fitting if choice.seconds <= enough))
    return completed(min(choices, key=lambda choice: choice.memory.peak))


def _with_fewer_sequences(config: TrainConfig, prompt_tokens: int | None) -> Iterator[TrainConfig]:
    """Half as many sequences at a time, again and again, for an engine that reserves memory for the logits of all."""
    count = workload_of(config, prompt_tokens).max_num_seqs
    if config.rollout.max_num_seqs == "auto" and find_engine(config.rollout.engine).preallocates:
        while (count := count // 2) >= LEAST_SEQUENCES:
            yield replace(config, rollout=replace(config.rollout, max_num_seqs=count))


def _candidates(spec: ModelSpec, config: TrainConfig, host: int | None) -> Iterator[TrainConfig]:
    """What the open settings may be, in order of preference; what the rollout engine decides stays open."""
    trades = {
        key: MEMORY_SETTINGS[key].options for key in left_open(config) if MEMORY_SETTINGS[key].chosen_by == "plan"
    }
    sizes = [config.optimizer.token_budget]
    if trades.pop("optimizer.micro_batch_tokens", None):
        powers = [1 << power for power in range(LEAST_TOKENS.bit_length() - 1, MOST_TOKENS.bit_length())]
        sizes = sorted(powers, key=lambda size: abs(log2(size / MICRO_BATCH_TOKENS)))
    keys = sorted(trades, key=lambda key: -trades[key][-1].rank)
    values = ([option.value for option in trades[key]] for key in keys)
    for *chosen, size in product(*values, sizes):
        settings = dict(zip(keys, chosen, strict=True))
        candidate = replaced(config, {**settings, "optimizer.micro_batch_tokens": size})
        if settings.get("memory.recompute_logits") is False and candidate.memory.offload is not None:
            continue  # nothing is offloaded to keep them
        if config.memory.cpu_offload != "auto" or host is None or host_bytes(spec, candidate) <= host:
            yield candidate
