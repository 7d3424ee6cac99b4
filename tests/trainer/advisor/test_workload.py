"""What a step has to do is what the code does."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import config_of, on
from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.vllm.build import sequences_at_a_time
from tinyzero_trainer.training import policy
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Generation, Prompt, Rollout


def test_a_step_has_no_more_than_its_tokens() -> None:
    work = workload_of(
        config_of("data.prompts_per_step=1", "rollout.group_size=2", "rollout.max_completion_tokens=8"), 8
    )
    assert (work.sequence, work.tokens, work.micro_batch, work.accumulates) == (16, 32, 32, False)
    assert workload_of(config_of("rollout.max_completion_tokens=20000"), 8).micro_batch == 20008


@given(
    st.integers(1, 60),
    st.integers(5, 60),
    st.integers(1, 20),
    st.integers(2, 9),
    st.integers(1, 4),
    st.integers(20, 700),
    st.booleans(),
)
@example(1, 5, 3, 2, 2, 24, False)  # of two mini-batches one has two groups
@settings(max_examples=50, deadline=None)
def test_rows_have_as_many_tokens_as_are_made(
    prompt: int, new: int, groups: int, size: int, parts: int, budget: int, shares: bool
) -> None:
    """Of completions of one length, with prompts that they share in bfloat16."""
    groups = max(groups, parts)
    prompts = [Prompt(Item(None), "", [number] * prompt) for number in range(groups)]
    score, generation = Score(0.0, False), Generation([0] * new, None, finished=False)
    rollouts = [Rollout(asked, generation, "", score) for asked in prompts for _ in range(size)]
    batch = TrainingBatch.of(rollouts, size, advantages=torch.zeros(len(rollouts) * new))
    split = partial(micro_batches, token_budget=budget, pad_id=0, device=torch.device("cpu"), layout="packed")
    updates = batch.mini_batches(parts, 1)
    made = [one for update in updates for one in split(update.rollouts, share_prompts=shares)]
    values = {
        "optimizer.micro_batch_tokens": budget,
        "optimizer.num_mini_batches": parts,
        "data.prompts_per_step": groups,
        "rollout.group_size": size,
        "rollout.max_completion_tokens": new,
        "model.dtype": "bfloat16" if shares else "float32",
    }
    work = workload_of(with_settings(TrainConfig(), values), prompt)
    assert work.micro_batches == len(made)
    assert work.tokens_of_a_gpu == sum(batch.tokens.numel() for batch in made)


@pytest.mark.parametrize("words", ["", "data.prompts_per_step=512", "rollout.max_num_seqs=5", "eval.num_problems=4000"])
def test_vllm_generates_as_many_sequences_at_a_time_as_are_planned(words: str) -> None:
    config = config_of("rollout.engine=vllm", *words.split())
    assert workload_of(config).at_a_time == sequences_at_a_time(config, torch.device("cuda"))


@pytest.mark.parametrize(("prompts", "filled"), [(2, 2 * 2 * (8 + 16)), (64, 512)])
def test_what_is_tried_out_is_no_more_than_a_step_has(
    prompts: int, filled: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_settings(
        TrainConfig(),
        {
            "data.prompts_per_step": prompts,
            "data.max_prompt_tokens": 8,
            "rollout.group_size": 2,
            "rollout.max_completion_tokens": 16,
            "optimizer.micro_batch_tokens": 512,
        },
    )
    asked: list[int] = []

    def count(budget: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(budget)
        raise InterruptedError

    monkeypatch.setattr(policy, "fill_budget", count)
    trained = SimpleNamespace(
        language_model=toy_model,
        model=PolicyModel(toy_model.model),
        _settings=config.optimizer,
        _max_tokens=16,
        _ranks=ALONE,
        _updating=lambda **_: nullcontext(),
        _optimizer=SimpleNamespace(start=lambda **_: None),
    )
    with pytest.raises(InterruptedError):
        policy.Policy.warm_up(trained, config.settings_at(1), workload_of(config).micro_batch)
    assert asked == [filled] == [workload_of(config).micro_batch]


@pytest.mark.parametrize(
    ("settings", "trained", "evaluated"),
    [
        ({}, 13 * 8, 125),
        ({"rollout__chunks_per_engine": 2}, 7 * 8, 63),
        ({"rollout__num_engines": 3}, 34 * 8, 334),
    ],
)
def test_engines_divide_the_batch_and_the_evaluation(settings: dict[str, int], trained: int, evaluated: int) -> None:
    work = workload_of(on(config_of("data.prompts_per_step=100", "eval.num_problems=1000"), 8, **settings))
    assert (work.trained_at_a_time, work.evaluated_at_a_time, work.max_num_seqs) == (trained, evaluated, 1000)


@pytest.mark.parametrize(
    ("ranks", "groups", "size", "prompt", "new", "parts"),
    [(8, 128, 8, 256, 1024, 4), (6, 128, 8, 256, 1024, 1), (8, 16, 16, 1024, 256, 1), (8, 64, 8, 2048, 256, 2)],
)
def test_the_fullest_rank_has_about_the_tokens_that_are_planned(
    ranks: int, groups: int, size: int, prompt: int, new: int, parts: int
) -> None:
    """Several ranks cut groups into pieces, each of which has the prompt."""
    score, generation = Score(0.0, False), Generation([0] * new, None, finished=False)
    asked = (Prompt(Item(None), "", [number] * prompt) for number in range(groups // parts))
    rollouts = [Rollout(one, generation, "", score) for one in asked for _ in range(size)]
    options: dict[str, Any] = {"token_budget": 16_384, "pad_id": 0, "device": torch.device("cpu"), "layout": "packed"}
    made = [
        [one.tokens.numel() for one in micro_batches(rollouts, **options, share_prompts=True, ranks=on_rank)]
        for on_rank in (DataParallelGroup(ranks, rank) for rank in range(ranks))
    ]
    words = (f"data.prompts_per_step={groups}", f"rollout.group_size={size}", f"rollout.max_completion_tokens={new}")
    words = (*words, f"optimizer.num_mini_batches={parts}", "optimizer.micro_batch_tokens=16384")
    work = workload_of(on(config_of(*words), ranks), prompt)
    assert work.micro_batches == parts * max(map(len, made))
    assert work.tokens_of_a_gpu == pytest.approx(parts * max(map(sum, made)), rel=0.05)
