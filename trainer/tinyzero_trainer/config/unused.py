"""Which settings have no effect under the others, each with the reason. Pure functions of the settings' values.

config/ refuses such a setting where a user gives it; compose.py leaves it out where it only suits the model. A new
case is a line here. What is impossible, rather than without effect, is refused in config/ itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Group = Mapping[str, Any]
Idle = Iterator[tuple[str, str]]
"""Full names of settings without effect, each with the reason."""

COMPARES_SAMPLES = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline")
"""Advantages that compare the completions of a prompt with each other."""

DISCOUNTS = ("reinforce_pp", "remax", "gae")
"""Advantages that give each token the return from it on."""


def idle(groups: Mapping[str, Group]) -> Idle:
    """What has no effect; `groups` holds all settings of all groups, by their own names."""
    for group, rule in _RULES.items():
        for name, reason in rule(groups[group]):
            yield f"{group}.{name}", reason
    yield from _across(groups)


def _across(groups: Mapping[str, Group]) -> Idle:
    """What has no effect because of a setting in another group."""
    run, algorithm, rollout, window, optimizer = (
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
            f"with rollout.max_async_level={rollout['max_async_level']} engines have no time to sleep",
        )
    if groups["parallel"]["sequence_parallel"] > 1:
        shared = groups["parallel"]["sequence_parallel"]
        yield "model.compile", f"parallel.sequence_parallel={shared} exchanges heads within layers, so none is compiled"
    if run["device"] == "cpu":
        yield "memory.cpu_offload", "run.device='cpu' has no GPU whose memory it would save"
    most = rollout["max_completion_tokens"]
    if window["mode"] == "fixed" and window["max_tokens"] >= most:
        yield (
            "length_control.mode",
            f"length_control.max_tokens={window['max_tokens']} is no less than rollout.max_completion_tokens={most}",
        )
    if window["mode"] == "adaptive" and window["warmup_steps"] >= run["steps"]:
        because = (
            f"length_control.warmup_steps={window['warmup_steps']} takes all of run.steps={run['steps']}; lower it"
        )
        yield "length_control.mode", because
    if window["mode"] == "adaptive" and window["min_tokens"] >= most:
        yield (
            "length_control.mode",
            f"length_control.min_tokens={window['min_tokens']} is no less than rollout.max_completion_tokens={most}",
        )
    if optimizer["num_mini_batches"] == optimizer["update_epochs"] == 1:
        yield from _one_update(groups)
    if optimizer["warmup_steps"] >= run["steps"]:
        because = f"optimizer.warmup_steps={optimizer['warmup_steps']} takes all of run.steps={run['steps']}"
        yield "optimizer.lr_schedule", because


def _one_update(groups: Mapping[str, Group]) -> Idle:
    """With one update a batch nothing has moved from what is old, unless that is the engine's."""
    because = "with one update a batch nothing has moved yet; set optimizer.num_mini_batches or update_epochs above 1"
    yield "critic.value_clip_range", because
    mismatch = groups["rollout_correction"]
    corrected = mismatch["is_level"] is not None or mismatch["rejection_bounds"] is not None
    if groups["rollout"]["return_logprobs"] != "always" or corrected:
        clips = {"reinforce": (), "cispo": ("clip_ratio_low", "clip_ratio_high")}
        names = clips.get(groups["algorithm"]["policy_loss"], ("clip_ratio_low", "clip_ratio_high", "dual_clip_c"))
        yield from ((f"algorithm.{name}", because) for name in names)


def _algorithm(values: Group) -> Idle:
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


def _lora(values: Group) -> Idle:
    if not values["rank"]:
        yield from _each("alpha", "rslora", "target_modules", because="lora.rank=0 trains all weights")
    if values["rank"] == 1:
        yield "rslora", "the square root of lora.rank=1 is 1"


def _mismatch(values: Group) -> Idle:
    mask, cap = values["rejection_bounds"], values["is_threshold"]
    if values["is_level"] is None:
        yield "is_threshold", "rollout_correction.is_level=none weights nothing"
    elif mask is not None and mask[1] <= cap:
        yield "is_threshold", f"rollout_correction.rejection_bounds={list(mask)} leaves out all that it would cut"


def _window(values: Group) -> Idle:
    mode = values["mode"]
    kept = {"full": ("mode",), "fixed": ("mode", "max_tokens")}.get(mode)
    names = (name for name in values if (name not in kept if kept else name == "max_tokens"))
    yield from _each(*names, because=f"it means nothing with length_control.mode={mode!r}")


def _optimizer(values: Group) -> Idle:
    if values["lr_schedule"] == "constant":
        yield "min_lr_ratio", "optimizer.lr_schedule='constant' stays at the peak"
    elif values["min_lr_ratio"] == 1:
        yield "min_lr_ratio", "with 1 the rate stays at the peak, whatever optimizer.lr_schedule"


def _eval(values: Group) -> Idle:
    if not values["every"]:
        yield "num_problems_during", "eval.every=0 evaluates before and after training only"


def _log(values: Group) -> Idle:
    if "wandb" not in values["trackers"]:
        yield "project", "only the tracker wandb, which is not in log.trackers, has projects"
    if not values["rollouts_every"]:
        yield "rollouts_count", "log.rollouts_every=0 writes none"


def _rollout(values: Group) -> Idle:
    if values["temperature_end"] == values["temperature"]:
        yield "temperature_end", "it is rollout.temperature itself"


def _vllm(values: Group) -> Idle:
    if not values["separate_process"]:
        because = "vllm.separate_process=false leaves the trainer no way to end an engine that hangs or has died"
        yield from _each("max_restarts", "timeout", because=because)


def _curriculum(values: Group) -> Idle:
    if values["buckets"] == 1:
        yield "buckets", "there is nothing to choose between; set at least 2, or 0 for none"
    if not values["buckets"]:
        yield from _each(
            "target_pass_rate", "ema_decay", "min_probability", because="curriculum.buckets=0 leaves the curriculum out"
        )


def _each(*names: str, because: str) -> Idle:
    return ((name, because) for name in names)


_RULES = {
    "curriculum": _curriculum,
    "rollout": _rollout,
    "vllm": _vllm,
    "lora": _lora,
    "rollout_correction": _mismatch,
    "length_control": _window,
    "algorithm": _algorithm,
    "optimizer": _optimizer,
    "eval": _eval,
    "log": _log,
}


def refuse(found: Iterable[tuple[str, str]], groups: Mapping[str, Any]) -> None:
    """Refuse what has no effect and yet differs from its default.

    Args:
        found: from `idle`.
        groups: the settings objects by the names of their groups.

    Raises:
        ValueError: names the setting and the reason.
    """
    for key, reason in found:
        group, _, name = key.partition(".")
        value = getattr(groups[group], name)
        if value != type(groups[group]).__dataclass_fields__[name].default:
            raise ValueError(f"{key}={value!r} has no effect: {reason}")
