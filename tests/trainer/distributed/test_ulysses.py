"""Ranks of a sequence-parallel group: their shards make up the packed row, and they compute what one rank does."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, PreTrainedModel

from tests.trainer.conftest import random_model
from tests.trainer.distributed.sharded import CPU
from tests.trainer.processes import on_threads
from tests.trainer.samples import mixed_lengths
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup, SequenceParallelGroup
from tinyzero_trainer.distributed.parallel_dims import ParallelError
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.training.build import refuse_unsupported
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import completion_lengths, micro_batches
from tinyzero_trainer.training.varlen_attention import use_kernel
from tinyzero_trainer.utils import jagged


def measured(
    model: PreTrainedModel, ranks: DataParallelGroup, layout: str, reference: PolicyModel | None, estimator: str
) -> tuple[Tensor, list[Tensor]]:
    """[tokens, 3] statistics in the completions' order, and the gradients of a loss of them, on this rank alone."""
    made = mixed_lengths()
    made[1] = replace(made[1], prompt=made[0].prompt)
    lengths = completion_lengths(made)
    weights = torch.linspace(-1, 1, 3 * int(lengths.sum())).reshape(-1, 3)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found, total = torch.zeros(len(weights), 3), [torch.zeros_like(parameter) for parameter in parameters]
    laid = {"pad_id": 0, "device": CPU, "layout": layout, "share_prompts": layout == "packed", "ranks": ranks}
    for batch in micro_batches(made, token_budget=40, **laid):
        given = {"temperature": 0.7, "reference": reference, "estimator": estimator, "entropy_gradient": True}
        statistics = PolicyModel(model)(batch, **given)
        divergence = torch.zeros_like(statistics.entropy) if statistics.divergence is None else statistics.divergence
        columns = torch.stack([statistics.logprobs, statistics.entropy, divergence], dim=1)
        places = jagged.token_indices(lengths, batch.indices)
        found[places] = columns.detach()
        for sum_, gradient in zip(
            total, torch.autograd.grad((weights[places] * columns).sum(), parameters), strict=True
        ):
            sum_ += gradient
    return found, total


CASES = {
    "qwen2": ("qwen2", None),
    "qwen3, KL": ("qwen3", "k3"),
    "llama, exact KL": ("llama", "exact"),
    "sliding": ("sliding", None),
}
QUICK = [("qwen2", 4), ("llama, exact KL", 2)]


@pytest.mark.parametrize(
    ("case", "count"),
    [
        pytest.param(case, count, marks=() if (case, count) in QUICK else pytest.mark.slow)
        for case in CASES
        for count in (2, 4)
    ],
)
def test_ranks_that_share_a_row_compute_what_one_does(case: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four heads, of which two have keys and values of their own; sequences of two tokens and more."""
    kind, estimator = CASES[case]
    model = random_model(kind)
    models = [model, copy.deepcopy(model)]
    assert use_kernel(models[1], torch.float32, CPU, or_plain=True)
    references: list[PolicyModel | None] = [None, None]
    if estimator is not None:
        for index, other in enumerate(copy.deepcopy(models)):
            with torch.no_grad():
                torch._foreach_mul_(list(other.parameters()), 1.05)
            references[index] = PolicyModel(other)
    expected, gradients = measured(models[0], ALONE, "padded", references[0], estimator or "k3")

    def work(line: SequenceParallelGroup) -> tuple[Tensor, list[Tensor]]:
        return measured(models[1], DataParallelGroup(sequence_group=line), "packed", references[1], estimator or "k3")

    found = on_threads(count, work, monkeypatch)
    norm = float(torch.nn.utils.get_total_norm(gradients))
    for statistics, _ in found:
        assert torch.equal(statistics, found[0][0])  # to the bit, or the ranks would learn differently
        torch.testing.assert_close(statistics, expected, rtol=1e-5, atol=1e-5)
    assert all(own[0].any() for _, own in found)
    for added, gradient in zip(map(sum, zip(*(own for _, own in found), strict=True)), gradients, strict=True):
        torch.testing.assert_close(added, gradient, rtol=0, atol=1e-5 * norm)


@pytest.mark.parametrize(("heads", "count"), [(1, 2), (2, 4), (6, 4), (4, 2), (8, 2)])
def test_each_query_meets_its_own_key(heads: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, queries = 3 * count, 24
    keys = torch.arange(heads).repeat_interleave(tokens).reshape(heads, tokens, 1)
    asked = torch.arange(queries).repeat_interleave(tokens).reshape(queries, tokens, 1)

    def work(line: SequenceParallelGroup) -> tuple[Tensor, Tensor, Tensor]:
        own = slice(3 * line.rank, 3 * line.rank + 3)
        query, key = (ulysses.to_heads(states[:, own], line) for states in (asked, keys))
        return query, key, ulysses.to_tokens(query, line)

    for query, key, back in on_threads(count, work, monkeypatch):
        assert query.shape == (tokens, queries // count, 1)
        met = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        assert torch.equal(met, query // (queries // heads))
        assert torch.equal(back, torch.arange(queries).expand(3, queries)[..., None])


@pytest.mark.slow
def test_sequences_are_divided_only_where_the_architecture_allows_it(toy_model_path: Path, tmp_path: Path) -> None:
    """Before any weight is read: there are none."""

    def refuse(slices: int, path: Path) -> None:
        parallel = {"world_size": slices, "sequence_parallel": slices}
        run = {"task": "countdown", "executor": "ray", "output": str(tmp_path)}
        refuse_unsupported(make_config({"run": run, "parallel": parallel}), str(path))

    (toy_model_path / "model.safetensors").unlink()
    refuse(2, toy_model_path)
    with pytest.raises(ParallelError, match=r"=3 does not divide the model's 2 attention heads; give one of 1, 2$"):
        refuse(3, toy_model_path)
    Gemma2Config(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2, attn_logit_softcapping=50.0
    ).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"\(gemma2\) has its own attention, .*sequence_parallel=2 .*; leave that out$"
    ):
        refuse(2, tmp_path)
