"""Which settings have no effect under the others, each with the reason.

compose.py asks once for each run: it refuses such a setting where the user or the recipe gives it, and drops it where
it is a default. A new case is a line here. What is impossible, rather than without effect, is refused where the
configuration is built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from tinyzero_trainer.config.train_config import TrainConfig

Group = Mapping[str, Any]
Unused = Iterator[tuple[str, str]]
"""Names of settings without effect, each with the reason."""

DISCOUNTS = ("reinforce_pp", "remax", "gae")
"""Advantages that give each token the return from it on."""


def unused_settings(config: TrainConfig) -> Iterator[tuple[str, Any, str]]:
    """(full name, value, reason) of each setting that has no effect and yet differs from its default."""
    groups = {name: vars(group) for name, group in vars(config).items() if is_dataclass(group)}
    defaults = default_settings()
    for key, reason in _unused(groups):
        group, _, name = key.partition(".")
        if groups[group][name] != defaults[group][name]:
            yield key, groups[group][name], reason


def unused_values(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have no effect, or cannot stand, going by `values` on top of the defaults, with the reasons."""
    groups = {
        name: {**group, **given} if isinstance(given := values.get(name, {}), Mapping) else group
        for name, group in default_settings().items()
    }
    try:
        unused = dict(_unused(groups))
        if groups["optimizer"]["num_mini_batches"] > groups["data"]["prompts_per_step"]:
            unused["optimizer.num_mini_batches"] = "it is more than data.prompts_per_step"
    except (TypeError, AttributeError, KeyError):
        return {}  # a value is of a wrong type, which `build` refuses
    return unused


def default_settings() -> dict[str, dict[str, Any]]:
    """The trainer's defaults, by group; what holds a table of its own is left out."""
    groups = {field.name: field.default_factory for field in fields(TrainConfig)}
    return {
        name: {field.name: field.default for field in fields(group)}  # type: ignore[arg-type]  # mypy does not narrow
        for name, group in groups.items()
        if isinstance(group, type) and is_dataclass(group)
    }


def _unused(groups: Mapping[str, Group]) -> Unused:
    for group, rule in _RULES.items():
        for name, reason in rule(groups[group]):
            yield f"{group}.{name}", reason
    yield from _across(groups)


def _across(groups: Mapping[str, Group]) -> Unused:
    """What has no effect because of a setting in another group."""
    run, algorithm, rollout, control, optimizer = (
        groups[name] for name in ("run", "algorithm", "rollout", "length_control", "optimizer")
    )
    if algorithm["advantage_estimator"] != "gae":
        because = f"algorithm.advantage_estimator={algorithm['advantage_estimator']!r} has no critic; take gae"
        yield from ((f"critic.{name}", because) for name in groups["critic"])
    if rollout["return_logprobs"] != "always":
        because = (
            f"rollout.return_logprobs={rollout['return_logprobs']!r} leaves steps without the engine's to compare; "
            "set always"
        )
        yield from ((f"rollout_correction.{name}", because) for name in groups["rollout_correction"])
    if run["executor"] != "ray":
        because = f"run.executor={run['executor']!r} has no such setting; give --gpus N (0 = on the CPU)"
        yield from ((f"{group}.{name}", because) for group in ("ray", "parallel") for name in groups[group])
        yield from ((f"rollout.{name}", because) for name in ("num_engines", "chunks_per_engine"))
    if rollout["engine"] != "vllm":
        because = f"rollout.engine={rollout['engine']!r} has no such setting; give rollout.engine=vllm"
        yield from ((f"vllm.{name}", because) for name in groups["vllm"])
    if rollout["group_size"] == 1:
        yield "data.max_refill_rounds", "the rewards of rollout.group_size=1 completion are always all equal"
    if groups["model"]["path"] is not None:
        because = f"model.path={groups['model']['path']!r} names a model, so none is made"
        yield from ((f"default_model.{name}", because) for name in groups["default_model"])
    if rollout["max_async_level"]:
        if run["steps"] == 1:
            yield "rollout.max_async_level", "run.steps=1 has no next batch"
        yield (
            "vllm.sleep_mode",
            f"with rollout.max_async_level={rollout['max_async_level']} engines never sleep",
        )
    if groups["parallel"]["sequence_parallel"] > 1:
        shared = groups["parallel"]["sequence_parallel"]
        yield "model.compile", f"parallel.sequence_parallel={shared} exchanges heads within layers, so none is compiled"
    if run["device"] == "cpu":
        yield "memory.cpu_offload", "run.device='cpu' has no GPU whose memory it would save"
    most = rollout["max_completion_tokens"]
    if control["mode"] == "fixed" and control["max_tokens"] >= most:
        yield (
            "length_control.mode",
            f"length_control.max_tokens={control['max_tokens']} is no less than rollout.max_completion_tokens={most}",
        )
    if control["mode"] == "adaptive" and control["warmup_steps"] >= run["steps"]:
        because = (
            f"length_control.warmup_steps={control['warmup_steps']} takes all of run.steps={run['steps']}; lower it"
        )
        yield "length_control.mode", because
    if control["mode"] == "adaptive" and control["min_tokens"] >= most:
        yield (
            "length_control.mode",
            f"length_control.min_tokens={control['min_tokens']} is no less than rollout.max_completion_tokens={most}",
        )
    if optimizer["num_mini_batches"] == optimizer["update_epochs"] == 1:
        yield from _one_update(groups)
    if optimizer["warmup_steps"] >= run["steps"]:
        because = f"optimizer.warmup_steps={optimizer['warmup_steps']} takes all of run.steps={run['steps']}"
        yield "optimizer.lr_schedule", because


def _one_update(groups: Mapping[str, Group]) -> Unused:
    """With one update a batch nothing has moved from what is old, unless that is the engine's."""
    because = "with one update a batch nothing has moved yet; set optimizer.num_mini_batches or update_epochs above 1"
    yield "critic.value_clip_range", because
    correction = groups["rollout_correction"]
    corrected = correction["is_level"] is not None or correction["rejection_bounds"] is not None
    if groups["rollout"]["return_logprobs"] != "always" or corrected:
        clips = {"reinforce": (), "cispo": ("clip_ratio_low", "clip_ratio_high")}
        names = clips.get(groups["algorithm"]["policy_loss"], ("clip_ratio_low", "clip_ratio_high", "dual_clip_c"))
        yield from ((f"algorithm.{name}", because) for name in names)


def _algorithm(values: Group) -> Unused:
    loss, advantage = values["policy_loss"], values["advantage_estimator"]
    if loss == "reinforce":
        yield from _each(
            "clip_ratio_low",
            "clip_ratio_high",
            "dual_clip_c",
            because="algorithm.policy_loss='reinforce' clips nothing",
        )
    if loss == "cispo":
        yield "dual_clip_c", "algorithm.policy_loss='cispo' bounds the ratio on both sides already"
    if advantage not in DISCOUNTS:
        yield "gamma", f"algorithm.advantage_estimator={advantage!r} gives all tokens the same"
    if advantage != "gae":
        yield "gae_lambda", f"algorithm.advantage_estimator={advantage!r} has no critic"
    if not values["kl_coefficient"]:
        names = ("kl_estimator", "kl_placement", "kl_target", "kl_horizon", "kl_coefficient_end")
        yield from _each(*names, because="algorithm.kl_coefficient=0 leaves the KL out")
    elif values["kl_target"] is not None:
        yield "kl_coefficient_end", "with algorithm.kl_target the coefficient adapts"
    else:
        yield "kl_horizon", "without algorithm.kl_target the coefficient is fixed"
    estimator = values["kl_estimator"]
    if values["kl_placement"] == "reward" and (estimator == "exact" or estimator.endswith("+")):
        yield (
            "kl_estimator",
            "with algorithm.kl_placement='reward' only the value counts, and it is that of a sampled token; "
            "take k1, abs, k2 or k3",
        )


def _lora(values: Group) -> Unused:
    if not values["rank"]:
        yield from _each("alpha", "rslora", "target_modules", because="lora.rank=0 trains all weights")
    if values["rank"] == 1:
        yield "rslora", "the square root of lora.rank=1 is 1"


def _rollout_correction(values: Group) -> Unused:
    mask, cap = values["rejection_bounds"], values["is_threshold"]
    if values["is_level"] is None:
        yield "is_threshold", "rollout_correction.is_level=none weights nothing"
    elif mask is not None and mask[1] <= cap:
        yield "is_threshold", f"rollout_correction.rejection_bounds={list(mask)} leaves out all that it would cut"


def _length_control(values: Group) -> Unused:
    mode = values["mode"]
    kept = {"full": ("mode",), "fixed": ("mode", "max_tokens")}.get(mode)
    names = (name for name in values if (name not in kept if kept else name == "max_tokens"))
    yield from _each(*names, because=f"it is not used with length_control.mode={mode!r}")


def _optimizer(values: Group) -> Unused:
    if values["lr_schedule"] == "constant":
        yield "min_lr_ratio", "optimizer.lr_schedule='constant' stays at the peak"
    elif values["min_lr_ratio"] == 1:
        yield "min_lr_ratio", "with 1 the rate stays at the peak, whatever optimizer.lr_schedule"


def _eval(values: Group) -> Unused:
    if not values["every"]:
        yield "num_problems_during", "eval.every=0 evaluates before and after training only"


def _log(values: Group) -> Unused:
    if "wandb" not in values["trackers"]:
        yield "project", "only the tracker wandb, which is not in log.trackers, has projects"
    if not values["rollouts_every"]:
        yield "rollouts_count", "log.rollouts_every=0 writes none"


def _rollout(values: Group) -> Unused:
    if values["temperature_end"] == values["temperature"]:
        yield "temperature_end", "it is rollout.temperature itself"


def _vllm(values: Group) -> Unused:
    if not values["separate_process"]:
        because = "vllm.separate_process=false leaves the trainer no way to end an engine that hangs or has died"
        yield from _each("max_restarts", "timeout", because=because)


def _curriculum(values: Group) -> Unused:
    if values["buckets"] == 1:
        yield "buckets", "there is nothing to choose between; set at least 2, or 0 for none"
    if not values["buckets"]:
        yield from _each(
            "target_pass_rate", "ema_decay", "min_probability", because="curriculum.buckets=0 leaves the curriculum out"
        )


def _each(*names: str, because: str) -> Unused:
    return ((name, because) for name in names)


_RULES = {
    "curriculum": _curriculum,
    "rollout": _rollout,
    "vllm": _vllm,
    "lora": _lora,
    "rollout_correction": _rollout_correction,
    "length_control": _length_control,
    "algorithm": _algorithm,
    "optimizer": _optimizer,
    "eval": _eval,
    "log": _log,
}
