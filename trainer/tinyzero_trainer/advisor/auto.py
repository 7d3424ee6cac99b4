"""Chooses the memory settings that are left to the run (`auto`): the fastest with which it fits its GPUs.

None of them changes the loss. What changes it, or what the user gave, is for plan.py to propose.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log2

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.fit import LEAST_SEQUENCES, LEAST_TOKENS, engine_keeps, predict_within, settle, usable
from tinyzero_trainer.advisor.memory import Memory, host_bytes, predict_memory
from tinyzero_trainer.advisor.speed import launching_seconds, predict_speed
from tinyzero_trainer.advisor.target_gpu import TargetGpu, on_gpu, present_gpu
from tinyzero_trainer.advisor.workload import workload_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.optimizer import MICRO_BATCH_TOKENS
from tinyzero_trainer.config.run import Offload
from tinyzero_trainer.config.settings import setting, with_settings
from tinyzero_trainer.distributed.parallel_dims import device_of, planned_dims
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import ModelSpec

AUTO_KEYS = (
    "optimizer.micro_batch_tokens",
    "memory.activation_checkpointing",
    "memory.recompute_logits",
    "memory.cpu_offload",
    "rollout.max_num_seqs",
    "vllm.gpu_memory_gb",
    "vllm.sleep_mode",
    "memory.reshard_after_forward",
)
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

    Unchanged, with an empty line, where all has values, on the CPU, and where there is no such GPU or model; unchanged,
    with the reason, where driver or model are broken.

    Args:
        spec: of a model that does not exist yet; None = the configuration's.
        target: the GPU; None = this machine's.
    """
    if not left_open(config):
        return config, ""
    try:
        target = target or present_gpu(device_of(config))
        if target is None:
            return config, ""
        spec = spec or find_spec(config.model.path)
        found = choose(spec, on_gpu(config, target), usable(target.free), target.spec, host=target.host)
        values = {key: setting(found.config, key) for key in left_open(config)}
        values = {key: value for key, value in values.items() if value != "auto"}  # those with an effect
        if not values:
            return config, ""
        words = " ".join(f"{key}={format_value(value)}" for key, value in values.items())
        peak, memory = found.memory.peak / GIB, target.memory / GIB
        return with_settings(config, values), f"auto: {words} (about {peak:.1f} of {memory:.1f} GiB, {target.name})"
    except TinyZeroError:
        return config, ""  # loading the model says what is wrong with it
    except Exception as error:  # the driver and the model's files may be broken in any way
        keys = " and ".join(left_open(config))
        return config, f"auto: nothing could be chosen ({first_line(error)}), so defaults stand for {keys}"


def left_open(config: TrainConfig) -> list[str]:
    """The settings that are left to the run."""
    several = config.run.kind.own_processes
    keys = [key for key in AUTO_KEYS if several or key != "memory.reshard_after_forward"]
    return [key for key in keys if setting(config, key) == "auto"]


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
        return Choice(settled, predict_memory(spec, settled, prompt_tokens, keeps=keeps), seconds(settled))

    def seconds(settled: TrainConfig) -> float:
        # Larger micro-batches gain a little where the prediction has the GPU busy all the time.
        work = workload_of(settled, prompt_tokens)
        waiting = 3 * work.epochs * constants.LAUNCH_WAIT * launching_seconds(spec, work)
        return predict_speed(spec, settled, gpu, prompt_tokens).step + waiting

    def completed(found: Choice) -> Choice:
        """With the number of sequences at a time where all fit, and an engine and ranks that keep what fits."""
        work, settled = workload_of(found.config, prompt_tokens), found.config
        if settled.rollout.max_num_seqs == "auto":
            count = work.max_num_seqs if settled.rollout.engine == "vllm" else work.at_a_time
            settled = replace(settled, rollout=replace(settled.rollout, max_num_seqs=count))
        if settled.memory.reshard_after_forward == "auto" and planned_dims(settled).world_size > 1:
            keeping = replace(settled, memory=replace(settled.memory, reshard_after_forward=False))
            # The engine before the ranks: to build it anew takes longer than to gather the weights.
            of_engine = [engine_keeps(spec, each, limit, prompt_tokens) for each in (settled, keeping)]
            fits = predict_within(spec, keeping, limit, prompt_tokens).peak <= limit and len({*of_engine}) == 1
            settled = replace(settled, memory=replace(settled.memory, reshard_after_forward=not fits))
        return Choice(settled, predict_within(spec, settled, limit, prompt_tokens), found.seconds)

    candidates, tried = list(_candidates(spec, config, host)), list[Choice]()
    free = [candidate for candidate in candidates if candidate.memory == candidates[0].memory]
    enough = NEGLIGIBLE * min(seconds(settle(spec, candidate, 2**62, prompt_tokens)) for candidate in free)
    for candidate in candidates:
        tried.append(found := evaluated(candidate))
        if found.memory.peak <= limit and found.seconds <= enough:  # no GPU would be faster
            return completed(found)
    leanest, candidate = min(zip(tried, candidates, strict=True), key=lambda pair: pair[0].memory.peak)
    if fitting := [one for one in tried if one.memory.peak <= limit]:
        enough = NEGLIGIBLE * min(one.seconds for one in fitting)
        best = completed(next(one for one in fitting if one.seconds <= enough))
    else:
        best = completed(leanest)
    if config.rollout.engine != "vllm" or config.rollout.max_num_seqs != "auto":
        return best
    # vLLM reserves memory for the logits of each, so with fewer the rest may fit better.
    count = workload_of(best.config, prompt_tokens).max_num_seqs
    while (count := count // 2) >= LEAST_SEQUENCES:
        rollout = replace(config.rollout, max_num_seqs=count)
        if evaluated(replace(candidate, rollout=rollout)).memory.peak <= limit:
            fewer = choose(spec, replace(config, rollout=rollout), limit, gpu, prompt_tokens, host=host)
            best = fewer if best.memory.peak > limit or NEGLIGIBLE * fewer.seconds < best.seconds else best
    return best


def _candidates(spec: ModelSpec, config: TrainConfig, host: int | None) -> Iterator[TrainConfig]:
    """What the open settings may be, in order of preference; what the rollout engine decides stays open."""
    memory, optimizer = config.memory, config.optimizer
    offloads: Sequence[Offload] = ("none", "idle", "always") if memory.cpu_offload == "auto" else [memory.cpu_offload]
    recomputed = (False, True) if memory.activation_checkpointing == "auto" else (memory.activation_checkpointing,)
    logits = (False, True) if memory.recompute_logits == "auto" else (memory.recompute_logits,)
    sizes: Sequence[int] = [optimizer.token_budget]
    if optimizer.micro_batch_tokens == "auto":
        powers = [1 << power for power in range(LEAST_TOKENS.bit_length() - 1, MOST_TOKENS.bit_length())]
        sizes = sorted(powers, key=lambda size: abs(log2(size / MICRO_BATCH_TOKENS)))
    for offload, checkpointing, again, size in product(offloads, recomputed, logits, sizes):
        if memory.recompute_logits == "auto" and not again and offload != "none":
            continue  # nothing is offloaded to keep them
        candidate = replace(
            config,
            memory=replace(memory, activation_checkpointing=checkpointing, recompute_logits=again, cpu_offload=offload),
            optimizer=replace(optimizer, micro_batch_tokens=size),
        )
        if offload == memory.cpu_offload or host is None or host_bytes(spec, candidate) <= host:
            yield candidate
