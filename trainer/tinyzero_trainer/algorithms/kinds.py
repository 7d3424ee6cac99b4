"""Which advantage estimators and policy losses there are, and what each needs. No torch in here.

The configuration is checked against these records, and a step adds the batch columns that they list. A function of your
own, which a setting names by its file or module, declares what it needs if `Estimator` or `Loss` decorates it.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from tinyzero_trainer.algorithms.user_functions import load_function

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound="Kind")

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]

Need = Literal["critic", "teacher", "greedy", "parts", "old_logprobs"]
"""Columns of a `TrainingBatch`: `values` of a critic, `teacher_logprobs`, `greedy_rewards`, `reward_parts` with their
weights, and `old_logprobs` before the update."""

CLIPPING = ("algorithm.clip_ratio_low", "algorithm.clip_ratio_high", "algorithm.dual_clip_c")


class Kind:
    """What is said of an estimator or a loss; as a decorator, of the user's function under it."""

    __slots__ = ()

    def __call__(self, function: F) -> F:
        setattr(function, type(self).__name__.lower(), self)
        return function

    def check(self, field: str, known: Collection[str]) -> None:
        """Raise a ValueError if a field is anything else than a set of known names."""
        given, kind = getattr(self, field), type(self).__name__
        if not isinstance(given, Set) or given - {*known}:  # a function, where the decorator has no parentheses
            example = f"a set such as @{kind}({field}={{{next(iter(known))!r}}})"
            raise ValueError(f"@{kind} got {field}={given!r:.60}, expected {example}; known: {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Estimator(Kind):
    """What an advantage estimator needs; decorate a function of your own with it to declare its needs.

    Example:
        >>> @Estimator(needs={"greedy"})
        ... def above_greedy(batch): ...
        >>> above_greedy.estimator.needs
        {'greedy'}
    """

    needs: Set[Need] = frozenset()
    settings: Set[str] = frozenset()  # the estimator-specific settings that it reads
    compares_samples: bool = False
    """The completions of a prompt are compared with each other, so there must be at least two."""

    uses_rewards: bool = True  # rewards count, and so may a KL penalty that is subtracted from them
    only_correct: bool = False  # completions that are not correct are masked

    def __post_init__(self) -> None:
        self.check("needs", get_args(Need))
        accepts = ("algorithm.max_accepted",) if self.only_correct else ()
        self.check("settings", ("algorithm.gamma", "algorithm.gae_lambda", *accepts))


ESTIMATORS: Mapping[str, Estimator] = {
    "grpo": Estimator(compares_samples=True),
    "dr_grpo": Estimator(compares_samples=True),
    "rloo": Estimator(compares_samples=True),
    "gdpo": Estimator(compares_samples=True, needs={"parts"}),
    "reinforce_pp": Estimator(settings={"algorithm.gamma"}),
    "reinforce_pp_baseline": Estimator(compares_samples=True),
    "remax": Estimator(settings={"algorithm.gamma"}, needs={"greedy"}),
    "gae": Estimator(settings={"algorithm.gamma", "algorithm.gae_lambda"}, needs={"critic"}),
    "raft": Estimator(settings={"algorithm.max_accepted"}, uses_rewards=False, only_correct=True),
    "on_policy_distillation": Estimator(uses_rewards=False, needs={"teacher", "old_logprobs"}),
}
"""Each is the function of its name in advantages.py."""


@dataclass(frozen=True, slots=True)
class Loss(Kind):
    """What a policy loss reads; decorate a function of your own with it to declare that."""

    settings: Set[str] = frozenset(CLIPPING)
    """The loss-specific settings that it reads."""

    staleness_objection: str = ""
    """Why its ratio does not correct for samples of older weights; empty if it does."""

    def __post_init__(self) -> None:
        self.check("settings", CLIPPING)


POLICY_LOSSES: Mapping[str, Loss] = {
    "ppo": Loss(),
    "gspo": Loss(staleness_objection="has bounds narrower than a step of staleness"),
    "cispo": Loss(settings={"algorithm.clip_ratio_low", "algorithm.clip_ratio_high"}),
    "reinforce": Loss(settings=frozenset(), staleness_objection="has no ratio"),
}
"""Each is the function of its name in losses.py."""


def estimator_of(name: str) -> Estimator:
    """The estimator of this name, or what a user's function declares itself to be; a SettingsError if there is none."""
    undeclared = Estimator(settings={"algorithm.gamma", "algorithm.gae_lambda"})  # it may read them
    return _kind_of("algorithm.advantage_estimator", name, ESTIMATORS, undeclared)


def loss_of(name: str) -> Loss:
    """The policy loss of this name, or what a user's function declares; a SettingsError if there is none."""
    return _kind_of("algorithm.policy_loss", name, POLICY_LOSSES, Loss())


def _kind_of(key: str, name: str, built_in: Mapping[str, K], undeclared: K) -> K:
    if name in built_in:
        return built_in[name]
    return getattr(load_function(key, name), type(undeclared).__name__.lower(), undeclared)
