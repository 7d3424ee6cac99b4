"""Scores of completions, each from the reward pool of its task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from tinyzero_sdk import Completion, Task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import SCORER_FAILURES
from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.rewards.reward_pool import RewardPool
from tinyzero_trainer.types import Generation, Prompt, Rollout


def counts(rollout: Rollout, tasks: Mapping[str, Task]) -> bool:
    """Whether a completion counts in accuracies and mean scores: all do but those whose asynchronous scorer failed.

    That a judge cannot be reached says nothing of a completion. One on which the task's own code fails counts as wrong
    and scores 0, as in scored files, though nothing is learnt from it.
    """
    return rollout.score.reason not in SCORER_FAILURES or not tasks[rollout.prompt.task].is_async


def counted(rollouts: Sequence[Rollout], tasks: Mapping[str, Task]) -> Sequence[Rollout]:
    """The rollouts that count; all if none does."""
    return [rollout for rollout in rollouts if counts(rollout, tasks)] or rollouts


def score(
    generated: Sequence[tuple[Prompt, Generation]],
    tokenizer: PreTrainedTokenizerBase,
    pools: Mapping[str, RewardPool],
    *,
    group_size: int,
    max_failure_rate: float = 1.0,
    on_failure: Callable[[str, str], None] = lambda task, message: None,
) -> list[Rollout]:
    """Score completions, in the order given; those of a problem are adjacent.

    A completion whose scorer failed is masked: nothing is known about it, and 0 may be more than a wrong answer gets.
    `on_failure` is told the task, and a message.

    Raises:
        BrokenTaskError: a task's scorer failed on more than `max_failure_rate`.
    """
    texts = decode_texts(tokenizer, [generation.token_ids for _, generation in generated])
    rollouts: dict[int, Rollout] = {}
    for name, pool in pools.items():
        indices = [index for index, (prompt, _) in enumerate(generated) if prompt.task == name]
        completions = [
            Completion(texts[index], len(generated[index][1].token_ids), generated[index][1].finished)
            for index in indices
        ]
        truths, groups = [generated[index][0].item.ground_truth for index in indices], len(indices) // group_size
        scores = pool.score(completions, truths, [group_size] * groups)
        if failed := sum(score.reason in SCORER_FAILURES for score in scores):
            late = sum(score.reason == "timeout" for score in scores)
            causes = [f"{late:,} took longer than reward.timeout"] if late else []
            causes += [pool.first_error.splitlines()[-1][:500]] if pool.first_error else []
            cause = f" ({'; '.join(causes) or 'its process ended'})"
            failure = f"the scorer of task {name!r} failed on {failed} of {len(scores)} completions{cause}"
            limit = f"reward.max_failure_rate={max_failure_rate:g}"
            if failed > max_failure_rate * len(scores):
                raise BrokenTaskError(f"{failure}; expected at most {limit}: fix the task, or raise reward.timeout")
            on_failure(name, f"{failure}, which are left out of training; the run stops above {limit}")
        for index, result in zip(indices, scores, strict=True):
            if result.reason in SCORER_FAILURES:
                result = replace(result, masked=True)
            rollouts[index] = Rollout(*generated[index], texts[index], result)
    return [rollouts[index] for index in range(len(generated))]
