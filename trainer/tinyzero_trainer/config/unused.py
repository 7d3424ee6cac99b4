"""Which settings have no effect under the others, each with the reason.

compose.py rejects such a setting where the user or the recipe gives it, and drops it where it is a default. What is
impossible, rather than without effect, is rejected where the configuration is built.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from tinyzero_sdk.settings import merge
from tinyzero_trainer.algorithms.kinds import POLICY_LOSSES, Estimator, Loss, estimator_of
from tinyzero_trainer.config.train_config import TrainConfig

_ADAPTIVE = (
    "min_tokens warmup_steps every step_tokens slack_tokens target_success_rate tolerance max_truncated_fraction "
    "patience ema_decay full_length_prob"
)


def _single_update(config: Any) -> bool:
    """Whether the policy is updated once a batch: then nothing has moved from what is old."""
    return config.optimizer.num_mini_batches == config.optimizer.update_epochs == 1


def _ratio_of_one(config: Any) -> bool:
    """Whether, besides, the loss has no old log-probabilities of the engine's."""
    correction = config.rollout_correction
    corrects = correction.is_level is not None or correction.rejection_bounds is not None
    return _single_update(config) and (config.rollout.return_logprobs != "always" or corrects)


def _estimator(config: Any) -> Estimator:
    return estimator_of(config.algorithm.advantage_estimator)


def _loss(config: Any) -> Loss:
    return POLICY_LOSSES.get(config.algorithm.policy_loss, Loss())


_NOT_MOVED = "with one update a batch nothing has moved yet; set optimizer.num_mini_batches or update_epochs above 1"
_NOT_RAY = "run.executor={run.executor!r} has no such setting; give --gpus N (0 = on the CPU)"

RULES: tuple[tuple[str, str, Callable[[Any], object], str], ...] = (
    ("curriculum", "buckets", lambda c: c.curriculum.buckets == 1,
     "there is nothing to choose between; set at least 2, or 0 for none"),
    ("curriculum", "target_pass_rate ema_decay min_probability", lambda c: not c.curriculum.buckets,
     "curriculum.buckets=0 leaves the curriculum out"),
    ("rollout", "temperature_end", lambda c: c.rollout.temperature_end == c.rollout.temperature,
     "it is rollout.temperature itself"),
    ("vllm", "max_restarts timeout", lambda c: not c.vllm.separate_process,
     "vllm.separate_process=false leaves the trainer no way to end an engine that hangs or has died"),
    ("lora", "alpha rslora target_modules", lambda c: not c.lora.rank, "lora.rank=0 trains all weights"),
    ("lora", "rslora", lambda c: c.lora.rank == 1, "the square root of lora.rank=1 is 1"),
    ("rollout_correction", "is_threshold", lambda c: c.rollout_correction.is_level is None,
     "rollout_correction.is_level=none weights nothing"),
    ("rollout_correction", "is_threshold", lambda c: c.rollout_correction.rejection_bounds is not None
     and c.rollout_correction.rejection_bounds[1] <= c.rollout_correction.is_threshold,
     "rollout_correction.rejection_bounds leaves out all that it would cut"),
    ("length_control", "max_tokens", lambda c: c.length_control.mode != "fixed",
     "it is not used with length_control.mode={length_control.mode!r}"),
    ("length_control", _ADAPTIVE, lambda c: c.length_control.mode != "adaptive",
     "it is not used with length_control.mode={length_control.mode!r}"),
    ("length_control", "mode", lambda c: c.length_control.mode == "fixed"
     and c.length_control.max_tokens >= c.rollout.max_completion_tokens,
     "length_control.max_tokens={length_control.max_tokens} is no less than "
     "rollout.max_completion_tokens={rollout.max_completion_tokens}"),
    ("length_control", "mode", lambda c: c.length_control.mode == "adaptive"
     and c.length_control.warmup_steps >= c.run.steps,
     "length_control.warmup_steps={length_control.warmup_steps} takes all of run.steps={run.steps}; lower it"),
    ("length_control", "mode", lambda c: c.length_control.mode == "adaptive"
     and c.length_control.min_tokens >= c.rollout.max_completion_tokens,
     "length_control.min_tokens={length_control.min_tokens} is no less than "
     "rollout.max_completion_tokens={rollout.max_completion_tokens}"),
    ("algorithm", "clip_ratio_low clip_ratio_high dual_clip_c", lambda c: not _loss(c).settings,
     "algorithm.policy_loss='reinforce' clips nothing"),
    ("algorithm", "dual_clip_c", lambda c: "algorithm.dual_clip_c" not in _loss(c).settings,
     "algorithm.policy_loss='cispo' bounds the ratio on both sides already"),
    ("algorithm", "gamma", lambda c: "algorithm.gamma" not in _estimator(c).settings,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} discounts nothing"),
    ("algorithm", "gae_lambda", lambda c: "algorithm.gae_lambda" not in _estimator(c).settings,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} has no critic"),
    ("algorithm", "max_accepted", lambda c: "algorithm.max_accepted" not in _estimator(c).settings,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} trains on wrong completions too; take raft"),
    ("algorithm", "kl_placement", lambda c: not _estimator(c).uses_rewards,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} uses no rewards; leave the KL in the loss"),
    ("algorithm", "kl_estimator kl_placement kl_target kl_horizon kl_coefficient_end",
     lambda c: not c.algorithm.kl_coefficient, "algorithm.kl_coefficient=0 leaves the KL out"),
    ("algorithm", "kl_coefficient_end", lambda c: c.algorithm.kl_target is not None,
     "with algorithm.kl_target the coefficient adapts"),
    ("algorithm", "kl_horizon", lambda c: c.algorithm.kl_target is None,
     "without algorithm.kl_target the coefficient is fixed"),
    ("algorithm", "kl_estimator", lambda c: c.algorithm.kl_placement == "reward"
     and (c.algorithm.kl_estimator == "exact" or c.algorithm.kl_estimator.endswith("+")),
     "with algorithm.kl_placement='reward' only the value counts, and it is that of a sampled token; take k1, abs, k2 "
     "or k3"),
    ("algorithm", "clip_ratio_low clip_ratio_high dual_clip_c", _ratio_of_one, _NOT_MOVED),
    ("optimizer", "min_lr_ratio", lambda c: c.optimizer.lr_schedule == "constant",
     "optimizer.lr_schedule='constant' stays at the peak"),
    ("optimizer", "min_lr_ratio", lambda c: c.optimizer.min_lr_ratio == 1,
     "with 1 the rate stays at the peak, whatever optimizer.lr_schedule"),
    ("optimizer", "lr_schedule", lambda c: c.optimizer.warmup_steps >= c.run.steps,
     "optimizer.warmup_steps={optimizer.warmup_steps} takes all of run.steps={run.steps}"),
    ("audit", "completions window max_false_positive_rate action timeout", lambda c: not c.audit.every,
     "audit.every=0 judges nothing"),
    ("eval", "num_problems_during", lambda c: not c.eval.every,
     "eval.every=0 evaluates before and after training only"),
    ("log", "project", lambda c: not {"wandb", "trackio"} & {*c.log.trackers},
     "only the trackers wandb and trackio, neither of which is in log.trackers, have projects"),
    ("log", "rollouts_count", lambda c: not c.log.rollouts_every, "log.rollouts_every=0 writes none"),
    ("critic", "*", lambda c: "critic" not in _estimator(c).needs,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} has no critic; take gae"),
    ("critic", "value_clip_range", _single_update, _NOT_MOVED),
    ("rollout_correction", "*", lambda c: c.rollout.return_logprobs != "always",
     "rollout.return_logprobs={rollout.return_logprobs!r} leaves steps without the engine's to compare; set always"),
    ("ray", "*", lambda c: c.run.executor != "ray", _NOT_RAY),
    ("parallel", "*", lambda c: c.run.executor != "ray", _NOT_RAY),
    ("rollout", "num_engines chunks_per_engine", lambda c: c.run.executor != "ray", _NOT_RAY),
    ("vllm", "*", lambda c: c.rollout.engine == "torch",
     "rollout.engine={rollout.engine!r} has no such setting; give rollout.engine=vllm"),
    ("data", "test_fraction", lambda c: c.data.test_path is not None, "data.test_path has the held-out problems"),
    ("data", "max_refill_rounds", lambda c: c.rollout.group_size == 1,
     "the rewards of rollout.group_size=1 completion are always all equal"),
    ("data", "max_refill_rounds", lambda c: not _estimator(c).uses_rewards,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} needs no rewards that differ"),
    ("default_model", "*", lambda c: c.model.path is not None,
     "model.path={model.path!r} names a model, so none is made"),
    ("rollout", "max_async_level", lambda c: c.rollout.max_async_level and c.run.steps == 1,
     "run.steps=1 has no next batch"),
    ("vllm", "sleep_mode", lambda c: c.rollout.max_async_level,
     "with rollout.max_async_level={rollout.max_async_level} engines never sleep"),
    ("model", "teacher", lambda c: "teacher" not in _estimator(c).needs,
     "algorithm.advantage_estimator={algorithm.advantage_estimator!r} has no teacher; take on_policy_distillation"),
    ("model", "compile", lambda c: c.parallel.sequence_parallel > 1,
     "parallel.sequence_parallel={parallel.sequence_parallel} exchanges heads within layers, so none is compiled"),
    ("memory", "reshard_after_forward", lambda c: c.run.executor != "ray", _NOT_RAY),
    ("model", "float8_modules", lambda c: c.model.float8 is None, "model.float8=none leaves all layers as they are"),
    ("memory", "cpu_offload", lambda c: c.run.device == "cpu" and c.memory.cpu_offload in ("idle", "always"),
     "run.device='cpu' has no GPU whose memory it would save"),
)  # fmt: skip
"""(group, its keys or `*`, condition, reason with settings in braces); of two that hold the first is reported."""


def unused_settings(config: TrainConfig) -> Iterator[tuple[str, Any, str]]:
    """(full name, value, reason) of each setting that has no effect and yet differs from its default."""
    defaults = default_settings()
    for group, name, reason in _unused(config):
        if (value := getattr(getattr(config, group), name)) != defaults[group][name]:
            yield f"{group}.{name}", value, reason


def unused_keys(values: Mapping[str, Any]) -> set[str]:
    """The settings that have no effect, or cannot stand, going by `values` on top of the defaults."""
    defaults = default_settings()
    groups = {name: group for name, group in merge(defaults, values).items() if name in defaults}
    try:
        merged = SimpleNamespace(**{name: SimpleNamespace(**group) for name, group in groups.items()})
        unused = {f"{group}.{name}" for group, name, _ in _unused(merged)}
        too_many = merged.optimizer.num_mini_batches > merged.data.prompts_per_step
    except (TypeError, AttributeError, LookupError):
        return set()  # a value is of a wrong type, which `build` rejects
    return unused | {"optimizer.num_mini_batches"} if too_many else unused


def default_settings() -> dict[str, dict[str, Any]]:
    """The trainer's defaults, by group; the table of tasks is left out."""
    return {name: vars(group()) for name, group in get_type_hints(TrainConfig).items() if name != "tasks"}


def _unused(config: Any) -> Iterator[tuple[str, str, str]]:
    for group, names, applies, reason in RULES:
        if applies(config):
            for name in vars(getattr(config, group)) if names == "*" else names.split():
                yield group, name, reason.format_map(vars(config))
