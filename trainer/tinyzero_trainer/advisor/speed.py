"""Seconds of each phase of a step, from a GPU's data sheet and the measured fractions of it that are reached.

Several GPUs are of one model and in one node. Latencies, the exchanges of sequence and tensor parallelism, and whatever
of the gathering of weights no computation hides are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tinyzero_trainer.advisor import constants
from tinyzero_trainer.advisor.memory import mlp_in_float8, predictions_of, teacher_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.workload import Workload, number_bytes, workload_of
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.models.spec import ModelSpec

COLLECTING = ("gen", "reward", "gen_greedy")  # overlap with the update if engines with GPUs of their own sample on


@dataclass(frozen=True, slots=True)
class Speed:
    """A step's time."""

    seconds: Mapping[str, float]
    """Predicted seconds of each phase, by its name in `timing_s/*`."""

    tokens: int
    """Tokens of the step, prompts included."""

    generated: int
    overlaps: bool = False
    """Whether completions are sampled while the policy is trained."""

    @property
    def step(self) -> float:
        """Seconds of the whole step."""
        if not self.overlaps:
            return sum(self.seconds.values())
        sent = self.seconds["update_weights"]
        collected = sum(seconds for name, seconds in self.seconds.items() if name in COLLECTING)
        return max(collected, sum(self.seconds.values()) - collected - sent) + sent

    @property
    def throughput(self) -> float:
        """Tokens a second, prompts included, as `perf/throughput` counts them."""
        return self.tokens / self.step

    @property
    def rollout(self) -> float:
        """Tokens generated a second while generating."""
        return self.generated / self.seconds["gen"]


def predict_speed(spec: ModelSpec, config: TrainConfig, gpu: GpuSpec, prompt_tokens: int | None = None) -> Speed:
    """Time of a step on the GPUs that the configuration names, all of one model, with completions at full length."""
    dims, algorithm = planned_dims(config), config.algorithm
    work = workload_of(config, prompt_tokens)
    forward, whole = _passes(spec, config, work, gpu)
    prompts = -(-config.data.prompts_per_step // dims.num_engines)  # the most that one engine completes
    completions = prompts * config.rollout.group_size
    seconds = {"gen": _generation(spec, config, work, gpu, completions, prompts)}
    seconds["reward"] = work.completions / constants.SCORING_RATE
    if config.old_logprobs_source == "policy":
        seconds["old_log_prob"] = forward
    if algorithm.kl_in_reward:
        seconds["ref"] = forward
    if (teacher := teacher_of(config)) is not None:
        seconds["teacher"], _ = _passes(teacher, config, work, gpu)
    if algorithm.needs("greedy"):
        seconds["gen_greedy"] = _generation(spec, config, work, gpu, prompts, prompts)
    if algorithm.needs("critic"):
        seconds |= {"values": forward, "update_critic": whole}
    in_loss = algorithm.kl_coefficient > 0 and not algorithm.kl_in_reward
    if config.memory.recompute_logits is False:
        passes = 8 if config.memory.activation_checkpointing is True else 6
        logits = work.completions * work.completion / work.data_parallel / work.sequence_parallel  # of a pass
        whole /= 1 + 2 * spec.embedding * logits / work.tokens_of_a_gpu / (passes * spec.parameters)
    if mlp_in_float8(spec, config):
        whole *= constants.FLOAT8_UPDATE
    seconds["update_actor"] = whole + (work.epochs * forward if in_loss else 0)
    copied = 10 * spec.parameters / (gpu.bandwidth * 1e9)
    gathered = gather_seconds(constants.MASTER_BYTES * spec.parameters, dims.dp_shard, gpu)
    sent = 0.0 if dims.colocated else number_bytes(config) * spec.parameters / (gpu.link * 1e9)
    seconds["update_weights"] = predictions_of(config).wake_seconds(config) + copied + gathered + sent
    # An engine that shares a GPU with the update slows it down by about what it saves.
    overlaps = config.rollout.max_async_level > 0 and dims.dedicated_engines > 0
    return Speed(seconds, work.tokens, work.completions * work.completion, overlaps)


def gather_seconds(size: float, count: int, gpu: GpuSpec) -> float:
    """Seconds of an all-gather over `count` GPUs of `size` bytes in all, or of a reduce-scatter of them."""
    return size * (count - 1) / count / (gpu.link * 1e9)


def _passes(spec: ModelSpec, config: TrainConfig, work: Workload, gpu: GpuSpec) -> tuple[float, float]:
    """Seconds of a pass over the batch without gradient, and of the policy's or critic's whole update.

    Layers are gathered, and their gradients reduced, while others compute: the longer of the two counts.
    """
    dims, size = planned_dims(config), spec.parameters
    share = constants.UPDATE_SHARE * size / (size + constants.HALF_SHARE_AT)
    unit = size * work.tokens_of_a_gpu / (gpu.flops_in(number_bytes(config)) * share)
    of_update = (8 if config.memory.activation_checkpointing is True else 6) * unit
    # With few tokens in a micro-batch the host's kernel launches, layer after layer, take longest.
    launching = launching_seconds(spec, work)
    keeps = config.memory.reshard_after_forward is False
    passes = work.mini_batches if keeps else work.micro_batches  # that gather the weights, and reduce the gradients
    gathering = passes * gather_seconds(number_bytes(config) * size, dims.dp_shard, gpu)
    gradients = constants.MASTER_BYTES * (spec.adapter(config.lora.rank, config.lora.target_modules) or size)
    between = 2 * gather_seconds(gradients / dims.dp_shard, dims.dp_replicate, gpu)
    reducing = passes * (gather_seconds(gradients, dims.dp_shard, gpu) + between)
    forward = max(2 * unit, gathering, launching)
    backward = max(of_update - 2 * unit, (0 if keeps else gathering) + reducing)
    update = max(max(2 * unit, gathering) + backward, of_update / (2 * unit) * launching) * work.epochs
    shard, trained = size / dims.dp_shard, 0 if config.lora.rank else size / dims.dp_shard
    if config.memory.offload == "idle":  # weights and moments both ways
        update += 2 * 12 * trained / constants.PCIE
        forward += 4 * shard / constants.PCIE
    if config.memory.offload == "always":
        copied = 12 * shard * work.micro_batches / constants.PCIE  # weights in both passes, and gradients
        stepped = 28 * trained * dims.world_size  # the ranks share the machine's cores
        update += work.epochs * copied + stepped * work.epochs * work.mini_batches / constants.HOST_STEP
        forward += work.micro_batches * 4 * shard / constants.PCIE
    return forward, update


def launching_seconds(spec: ModelSpec, work: Workload) -> float:
    """Seconds in which the host launches a forward pass over the batch; it takes twice that for a backward pass."""
    return work.micro_batches * spec.layers * constants.PASS_LAYER


def _generation(
    spec: ModelSpec, config: TrainConfig, work: Workload, gpu: GpuSpec, completions: int, prompts: int
) -> float:
    """Seconds in which an engine generates its completions, in rounds of as many as it holds."""
    engine = predictions_of(config)
    at_a_time = min(engine.sequences_at_a_time(spec, config, work), completions)
    rounds = completions / at_a_time
    length = engine.tokens_read(spec, work.prompt, work.completion / 2, completions // prompts)
    gpus = config.vllm.tensor_parallel
    together = replace(gpu, bandwidth=gpus * gpu.bandwidth, tflops=gpus * gpu.tflops, float32=gpus * gpu.float32)
    step: float = engine.step_seconds(spec, config, together, at_a_time, length)
    reading: float = engine.prefill_seconds(spec, config, together, prompts * work.prompt)
    return rounds * work.completion * step + reading
