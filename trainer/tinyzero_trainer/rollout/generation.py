"""Completions of prompts from any rollout engine, until a stop is requested. Scoring is in rewards/score.py."""

from collections.abc import Callable, Sequence

from tinyzero_trainer.models.loading import LanguageModel, ModelError
from tinyzero_trainer.models.spec import context_error
from tinyzero_trainer.rollout.engine import RolloutEngine, SamplingParams
from tinyzero_trainer.types import Generation, Prompt
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import Stop, StopRequested


def generate(
    language_model: LanguageModel,
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    group_size: int,
    params: SamplingParams,
    *,
    seed: int,
    on_progress: Callable[[int], None] | None = None,
    stop: Stop | None = None,
    oom_advice: str = "",
) -> list[tuple[Prompt, Generation]]:
    """`group_size` completions of each prompt, each with its prompt, in the order of the prompts.

    Args:
        language_model: the policy's, whose context the prompts and completions must fit.
        stop: polled before and while generating.

    Raises:
        ModelError: the longest prompt and `params.max_tokens` exceed the model's context.
        OutOfMemoryError: memory ran out.
        StopRequested: `stop` was requested.
    """
    check_context(language_model, prompts, params.max_tokens)

    def report(finished: int) -> None:
        if on_progress is not None:
            on_progress(finished)
        if stop is not None and stop.requested:
            raise StopRequested

    if stop is not None and stop.requested:  # before: a model may take minutes to load
        raise StopRequested
    token_ids = [prompt.token_ids for prompt in prompts]
    with catch_out_of_memory("completions were generated", oom_advice):
        groups = engine.generate(token_ids, group_size, params, seed=seed, on_progress=report)
    return [(prompt, generation) for prompt, group in zip(prompts, groups, strict=True) for generation in group]


def check_context(language_model: LanguageModel, prompts: Sequence[Prompt], max_tokens: int) -> None:
    """Raise a ModelError if the longest prompt and `max_tokens` exceed the model's context."""
    longest, context = max(len(prompt.token_ids) for prompt in prompts), language_model.context
    if longest + max_tokens > context:
        raise ModelError(context_error(language_model.name, context, longest, max_tokens))
