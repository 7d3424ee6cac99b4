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
        groups[name] for name in ("run", "algorithm", "rollout", "window", "optimizer")
    )
    if algorithm["advantage"] != "gae":
        because = f"algorithm.advantage={algorithm['advantage']!r} has no critic; take gae"
        yield from ((f"critic.{name}", because) for name in groups["critic"])
    if rollout["logprobs"] != "always":
        because = f"rollout.logprobs={rollout['logprobs']!r} leaves steps without the engine's to compare; set always"
        yield from ((f"mismatch.{name}", because) for name in groups["mismatch"])
    if run["executor"] != "ray":
        because = f"run.executor={run['executor']!r} has no such setting; give --gpus N (0 = on the CPU)"
        yield from ((f"ray.{name}", because) for name in groups["ray"])
    if rollout["engine"] != "vllm":
        because = f"rollout.engine={rollout['engine']!r} has no such setting; give rollout.engine=vllm"
        yield from ((f"vllm.{name}", because) for name in groups["vllm"])
    if rollout["samples_per_prompt"] == 1:
        yield "data.dynamic_rounds", "the rewards of rollout.samples_per_prompt=1 completion are always all equal"
    if groups["model"]["path"] is not None:
        because = f"model.path={groups['model']['path']!r} names a model, so none is made"
        yield from ((f"own_model.{name}", because) for name in groups["own_model"])
    if rollout["lead"]:
        if run["steps"] == 1:
            yield "rollout.lead", "run.steps=1 has no next batch"
        yield "vllm.sleep", f"with rollout.lead={rollout['lead']} engines have no time to sleep"
    if groups["ray"]["sequence_parallel"] > 1:
        shared = groups["ray"]["sequence_parallel"]
        yield "model.compile", f"ray.sequence_parallel={shared} exchanges heads within layers, so none is compiled"
    if run["device"] == "cpu":
        yield "memory.offload", "run.device='cpu' has no GPU whose memory it would save"
    most = rollout["max_tokens"]
    if window["mode"] == "fixed" and window["tokens"] >= most:
        yield "window.mode", f"window.tokens={window['tokens']} is no less than rollout.max_tokens={most}"
    if window["mode"] == "adaptive" and window["warmup_steps"] >= run["steps"]:
        because = f"window.warmup_steps={window['warmup_steps']} takes all of run.steps={run['steps']}; lower it"
        yield "window.mode", because
    if window["mode"] == "adaptive" and window["least"] >= most:
        yield "window.mode", f"window.least={window['least']} is no less than rollout.max_tokens={most}"
    if optimizer["mini_batches"] == optimizer["epochs"] == 1:
        yield from _one_update(groups)
    if optimizer["warmup_steps"] >= run["steps"]:
        because = f"optimizer.warmup_steps={optimizer['warmup_steps']} takes all of run.steps={run['steps']}"
        yield "optimizer.schedule", because


def _one_update(groups: Mapping[str, Group]) -> Idle:
    """With one update a batch nothing has moved from what is old, unless that is the engine's."""
    because = "with one update a batch nothing has moved yet; set optimizer.mini_batches or epochs above 1"
    yield "critic.value_clip", because
    mismatch = groups["mismatch"]
    corrected = mismatch["weights"] is not None or mismatch["mask"] is not None
    if groups["rollout"]["logprobs"] != "always" or corrected:
        clips = {"reinforce": (), "cispo": ("clip_low", "clip_high")}
        names = clips.get(groups["algorithm"]["policy_loss"], ("clip_low", "clip_high", "dual_clip"))
        yield from ((f"algorithm.{name}", because) for name in names)


def _algorithm(values: Group) -> Idle:
    loss, advantage = values["policy_loss"], values["advantage"]
    if loss == "reinforce":
        yield from _each(
            "clip_low", "clip_high", "dual_clip", because="algorithm.policy_loss='reinforce' clips nothing"
        )
    if loss == "cispo":
        yield "dual_clip", "algorithm.policy_loss='cispo' bounds the ratio on both sides already"
    if advantage not in DISCOUNTS:
        yield "discount", f"algorithm.advantage={advantage!r} gives all tokens the same"
    if advantage != "gae":
        yield "trace_decay", f"algorithm.advantage={advantage!r} has no critic"
    if not values["kl_coefficient"]:
        names = ("kl_estimator", "kl_in", "kl_target", "kl_horizon", "final_kl_coefficient")
        yield from _each(*names, because="algorithm.kl_coefficient=0 leaves the KL out")
    elif values["kl_target"] is not None:
        yield "final_kl_coefficient", "with algorithm.kl_target the coefficient adapts"
    else:
        yield "kl_horizon", "without algorithm.kl_target the coefficient is fixed"
    estimator = values["kl_estimator"]
    if values["kl_in"] == "reward" and (estimator == "exact" or estimator.endswith("+")):
        yield (
            "kl_estimator",
            "with algorithm.kl_in='reward' only the value counts, and it is that of a sampled token; "
            "take k1, abs, k2 or k3",
        )


def _lora(values: Group) -> Idle:
    if not values["rank"]:
        yield from _each("alpha", "rslora", "targets", because="lora.rank=0 trains all weights")
    if values["rank"] == 1:
        yield "rslora", "the square root of lora.rank=1 is 1"


def _mismatch(values: Group) -> Idle:
    mask, cap = values["mask"], values["cap"]
    if values["weights"] is None:
        yield "cap", "mismatch.weights=none weights nothing"
    elif mask is not None and mask[1] <= cap:
        yield "cap", f"mismatch.mask={list(mask)} leaves out all that it would cut"


def _window(values: Group) -> Idle:
    mode = values["mode"]
    kept = {"full": ("mode",), "fixed": ("mode", "tokens")}.get(mode)
    names = (name for name in values if (name not in kept if kept else name == "tokens"))
    yield from _each(*names, because=f"it means nothing with window.mode={mode!r}")


def _optimizer(values: Group) -> Idle:
    if values["schedule"] == "constant":
        yield "final_rate_share", "optimizer.schedule='constant' stays at the peak"
    elif values["final_rate_share"] == 1:
        yield "final_rate_share", "with 1 the rate stays at the peak, whatever optimizer.schedule"


def _eval(values: Group) -> Idle:
    if not values["every"]:
        yield "during_size", "eval.every=0 evaluates before and after training only"


def _log(values: Group) -> Idle:
    if "wandb" not in values["trackers"]:
        yield "project", "only the tracker wandb, which is not in log.trackers, has projects"
    if not values["rollouts_every"]:
        yield "rollouts_count", "log.rollouts_every=0 writes none"


def _rollout(values: Group) -> Idle:
    if values["final_temperature"] == values["temperature"]:
        yield "final_temperature", "it is rollout.temperature itself"


def _vllm(values: Group) -> Idle:
    if not values["own_process"]:
        because = "vllm.own_process=false leaves the trainer no way to end an engine that hangs or has died"
        yield from _each("restarts", "time_limit", because=because)


def _curriculum(values: Group) -> Idle:
    if values["buckets"] == 1:
        yield "buckets", "there is nothing to choose between; set at least 2, or 0 for none"
    if not values["buckets"]:
        yield from _each("target", "decay", "floor", because="curriculum.buckets=0 leaves the curriculum out")


def _each(*names: str, because: str) -> Idle:
    return ((name, because) for name in names)


_RULES = {
    "curriculum": _curriculum,
    "rollout": _rollout,
    "vllm": _vllm,
    "lora": _lora,
    "mismatch": _mismatch,
    "window": _window,
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
