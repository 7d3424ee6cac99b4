"""Seconds of each phase of a step, from a card's data sheet and a few measured shares of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_trainer.cards import Card
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.plan import constants
from tinyzero_trainer.plan.rollout import sequences_in_vllm
from tinyzero_trainer.plan.shape import ModelShape
from tinyzero_trainer.plan.work import Work, number_bytes, work_of


@dataclass(frozen=True, slots=True)
class Speed:
    """A step's time."""

    seconds: Mapping[str, float]
    """Of each phase, by its name in `timing_s/*`."""

    tokens: int
    """Of the step, prompts included."""

    generated: int
    """Of them, those that the model generates."""

    @property
    def step(self) -> float:
        """Seconds of the whole."""
        return sum(self.seconds.values())

    @property
    def throughput(self) -> float:
        """Tokens a second, prompts included, as `perf/throughput` counts them."""
        return self.tokens / self.step

    @property
    def rollout(self) -> float:
        """Tokens generated a second while generating."""
        return self.generated / self.seconds["gen"]


def predict_speed(shape: ModelShape, config: TrainConfig, card: Card, prompt_tokens: int | None = None) -> Speed:
    """Time of a step on a card, with all completions at full length.

    Args:
        shape: the model's.
        config: of the run.
        card: a kind of GPU.
        prompt_tokens: see `work_of`.
    """
    work, algorithm = work_of(config, prompt_tokens), config.algorithm
    forward, whole = _passes(shape, config, card, work)
    seconds = {"gen": _generation(shape, config, card, work, work.completions)}
    seconds["reward"] = work.completions / constants.SCORING_RATE
    if config.old_logprobs_source == "policy":
        seconds["old_log_prob"] = forward
    if algorithm.kl_in_reward:
        seconds["ref"] = forward
    if algorithm.advantage == "remax":
        seconds["gen_greedy"] = _generation(shape, config, card, work, config.data.prompts_per_step)
    if algorithm.needs_critic:
        seconds |= {"values": forward, "update_critic": whole}
    in_loss = algorithm.kl_coefficient > 0 and not algorithm.kl_in_reward
    seconds["update_actor"] = whole + (work.epochs * forward if in_loss else 0)
    sleeps = constants.VLLM_WAKE if config.rollout.engine == "vllm" and config.vllm.sleep else 0.0
    seconds["update_weights"] = sleeps + 10 * shape.parameters / (card.bandwidth * 1e9)
    return Speed(seconds, work.tokens, work.completions * work.completion)


def _passes(shape: ModelShape, config: TrainConfig, card: Card, work: Work) -> tuple[float, float]:
    """Seconds of a pass over the batch without gradient, and of a critic's or the policy's whole update."""
    size = shape.parameters
    share = constants.UPDATE_SHARE * size / (size + constants.HALF_SHARE_AT)
    unit = size * work.tokens / (card.flops * share)
    update = (8 if config.memory.checkpoint_activations else 6) * unit * work.epochs
    forward, trained = 2 * unit, 0 if config.lora.rank else size
    if config.memory.offload == "idle":  # weights and moments there and back
        update += 2 * 12 * trained / constants.PCIE
        forward += 4 * size / constants.PCIE
    if config.memory.offload == "always":
        travels = 12 * size * work.micro_batches / constants.PCIE  # weights in both passes, and gradients
        update += work.epochs * travels + 28 * trained * work.epochs * work.mini_batches / constants.HOST_STEP
        forward += work.micro_batches * 4 * size / constants.PCIE
    return forward, update


def _generation(shape: ModelShape, config: TrainConfig, card: Card, work: Work, completions: int) -> float:
    """Seconds to generate so many completions of the batch's prompts, as many at a time as the engine takes."""
    at_a_time = min(work.trained_at_a_time, completions)
    if config.rollout.engine == "vllm":
        at_a_time = min(at_a_time, sequences_in_vllm(shape, config, work))
    rounds = completions / at_a_time
    number, cache = number_bytes(config), number_bytes(config) * shape.cache_numbers
    length, token = work.prompt + work.completion / 2, 2 * shape.parameters / card.flops
    if config.rollout.engine == "vllm":
        touched = number * shape.parameters + at_a_time * (length * cache + 16 * shape.vocabulary)
        read = touched / (card.bandwidth * 1e9 * constants.VLLM_BANDWIDTH_SHARE)
        host = constants.VLLM_STEP + at_a_time * constants.VLLM_SEQUENCE
        return rounds * work.completion * (host + max(read, at_a_time * token / constants.UPDATE_SHARE))
    length += constants.TORCH_LEAST_TOKENS
    # Logits are written once and read twice.
    touched = number * shape.parameters + at_a_time * (length * cache + 3 * number * shape.vocabulary)
    read = touched / (card.bandwidth * 1e9 * constants.TORCH_BANDWIDTH_SHARE)
    host = constants.TORCH_STEP + shape.layers * constants.TORCH_LAYER
    # Kernels follow each other, so that what computes and what reads add up; prompts are read once for their samples.
    step = host + read + at_a_time * token / constants.TORCH_SHARE
    prompts = config.data.prompts_per_step * work.prompt * token / constants.TORCH_SHARE
    return rounds * work.completion * step + prompts
