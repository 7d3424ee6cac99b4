"""Sharded models compute what plain ones do, to the bit, however memory is saved; test_ranks.py has several ranks."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.trainer.distributed.sharded import (
    CASES,
    EXPECTED,
    NOW,
    OPTIMIZER,
    PLAIN,
    SAVING,
    Case,
    bits,
    learn,
    make_policy,
    shared_batch,
)
from tests.trainer.distributed.sharded import group as group
from tests.trainer.samples import ragged_samples, with_dropout
from tinyzero_trainer.config import CriticConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.fsdp import _OwnGradients, layers_of, on_device
from tinyzero_trainer.distributed.offload import CpuOffload
from tinyzero_trainer.models import fused_logprobs
from tinyzero_trainer.models.loading import LanguageModel, save_model
from tinyzero_trainer.rollout.torch.decoder import Decoder, FusedDecoder, TransformersDecoder
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training import logprobs as forward
from tinyzero_trainer.training.build import _build_policy
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.policy import Policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "saving"),
    [(case, saving) for case in CASES for saving in (SAVING if case == "exact KL" else ("as it is", "all of it"))],
)
def test_a_sharded_policy_learns_the_same_bits(
    case: str, saving: str, toy_model: LanguageModel, tmp_path: Path
) -> None:
    experience, policy = shared_batch(toy_model), make_policy(toy_model, CASES[case], SAVING[saving])
    policy.warm_up(NOW)  # leaves no trace
    assert all(parameter.grad is None for parameter in policy.language_model.model.parameters())
    if case not in EXPECTED:
        EXPECTED[case] = learn(make_policy(toy_model, CASES[case], None), experience, tmp_path)
    assert learn(policy, experience, tmp_path) == EXPECTED[case]


def blocks(policy: Policy) -> set[int]:
    """Addresses of the memory that holds the gradients."""
    found = [parameter.grad for parameter in policy.language_model.model.parameters()]
    return {local_shard(one).untyped_storage().data_ptr() for one in found if one is not None}


def test_gradients_that_add_up_are_in_one_block(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[set[int]]()
    policy = make_policy(toy_model, Case(), PLAIN)
    gather = policy._optimizer.gather_gradients
    monkeypatch.setattr(policy._optimizer, "gather_gradients", lambda loss: seen.append(blocks(policy)) or gather(loss))
    policy.update(shared_batch(toy_model), NOW)
    assert [len(found) for found in seen] == [1] * len(seen)
    assert seen
    assert not blocks(policy)


@pytest.mark.parametrize("case", ["all weights", "exact KL", "LoRA, KL to itself"])
def test_logits_that_are_kept_teach_the_same(
    case: str, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {4: 7 * toy_model.model.config.vocab_size}  # chunks: a single one is always kept
    monkeypatch.setattr(fused_logprobs, "HEAD_ELEMENTS", several)
    monkeypatch.setattr(forward, "fuses_exact", lambda _: True)
    computed, shown = list[int](), list[Any]()
    logits = fused_logprobs._logits

    def counted(*arguments: Any, **options: Any) -> Any:
        computed.append(1)
        return logits(*arguments, **options)

    monkeypatch.setattr(fused_logprobs, "_logits", counted)
    for again in (True, False):
        policy = make_policy(toy_model, CASES[case], replace(PLAIN, recompute_logits=again))
        before = len(computed)
        metrics = policy.update(shared_batch(toy_model), NOW)
        weights = [bits(value) for _, value in named_weights(policy.language_model.model)]
        shown.append((metrics, weights, len(computed) - before))
    (again, kept) = shown
    assert again[:2] == kept[:2]
    assert kept[2] < again[2]


def test_a_weight_that_nothing_uses_is_not_decayed(toy_model: LanguageModel) -> None:
    model = copy.deepcopy(toy_model.model)
    model.spare = nn.Linear(3, 5)
    spare = model.spare.weight.detach().clone()
    policy = make_policy(replace(toy_model, model=model), Case(), PLAIN)
    policy.update(shared_batch(toy_model), NOW)
    weights = dict(policy.language_model.model.named_parameters())
    assert torch.equal(local_shard(weights["spare.weight"]), spare)


def test_what_one_rank_sends_is_what_it_receives(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[torch.Tensor]()
    allocate = _OwnGradients.allocate
    monkeypatch.setattr(
        _OwnGradients, "allocate", lambda *args, **options: given.append(allocate(*args, **options)) or given[-1]
    )
    make_policy(toy_model, Case(), PLAIN).update(shared_batch(toy_model), NOW)
    assert given
    assert all(sent is received for sent, received in zip(given[::2], given[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("saving", SAVING)
def test_a_sharded_critic_learns_the_same_bits(saving: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    shown = []
    for options in (None, SAVING[saving]):
        critic = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
        experience = shared_batch(toy_model)
        metrics = [critic.update(experience) for _ in range(2)]
        critic.save(tmp_path)
        files = [(tmp_path / name).read_bytes() for name in ("critic.safetensors", "critic_optimizer.safetensors")]
        values = critic.values(experience.rollouts)
        again = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
        again.load(tmp_path)
        assert torch.equal(again.values(experience.rollouts), values)
        shown.append((metrics, files, values.tolist(), again.update(experience)))
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("saving", "second"), [("as it is", [True, True]), ("checkpointed activations", [False, True])]
)
def test_a_layer_is_gathered_alone_and_kept_unless_memory_is_saved(
    saving: str, second: list[bool], toy_model: LanguageModel
) -> None:
    policy = make_policy(toy_model, Case(), SAVING[saving])
    model: Any = policy.language_model.model
    batch = next(iter(policy._micro_batches(ragged_samples(toy_model))))
    gathered = []

    def note(module: nn.Module, args: Any) -> None:
        gathered.append([not isinstance(layer.mlp.up_proj.weight, DTensor) for layer in model.model.layers])

    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(note)
    with on_device(model), torch.no_grad():
        policy.model(batch, temperature=1.0)
    assert gathered == [[True, False], second]
    assert all(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    )  # sharded again, without a backward pass


@pytest.mark.slow
def test_no_weight_stays_gathered(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="exact"), PLAIN), shared_batch(toy_model)
    assert policy._reference is not None
    for use in (
        lambda: policy.update(experience, NOW),
        lambda: policy.logprobs(experience.rollouts, 1.0),  # without a backward pass
        lambda: policy.reference_logprobs(experience.rollouts, 1.0),
    ):
        use()
        for model in (policy.language_model.model, policy._reference.body):
            assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_layers_are_found_by_name_or_as_the_largest_list(toy_model: LanguageModel) -> None:
    assert layers_of(toy_model.model) == list(toy_model.model.model.layers)
    assert len(layers_of(with_dropout(toy_model).model)) == 2
    unnamed = nn.Sequential(
        nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(9, 9), nn.Linear(9, 9)]), nn.Linear(99, 99)
    )
    assert layers_of(unnamed) == list(unnamed[1])
    assert layers_of(nn.Linear(3, 3)) == []


def allocated(tensors: Any) -> int:
    return sum(local_shard(tensor).untyped_storage().size() for tensor in tensors)


def test_idle_models_hold_no_device_memory(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="k3"), SAVING["offloaded while idle"]), shared_batch(toy_model)
    model, optimizer = policy.language_model.model, policy._optimizer
    assert policy._reference is not None
    policy.update(experience, NOW)
    policy.logprobs(experience.rollouts, 1.0)
    assert (
        allocated(model.parameters())
        == allocated(optimizer._moments())
        == allocated(policy._reference.body.parameters())
        == 0
    )
    assert all(parameter.grad is None for parameter in model.parameters())
    with on_device(model):
        assert allocated(model.parameters()) == 4 * sum(parameter.numel() for parameter in model.parameters())
        assert allocated(optimizer._moments()) == 0


def test_the_optimizers_moments_exist_from_the_start(toy_model: LanguageModel) -> None:
    """Otherwise an engine that takes all free memory would take theirs."""
    policy = make_policy(toy_model, Case(), PLAIN)
    assert allocated(policy._optimizer._moments()) == 2 * allocated(policy.language_model.model.parameters())


def test_a_tensor_returns_with_its_whole_storage() -> None:
    """FSDP2's shards are views of padded ones."""
    padded = torch.arange(6.0)
    shown = padded[:4]
    waiting = CpuOffload(lambda: [shown])
    assert padded.untyped_storage().size() == 0
    with waiting.on_device(changed=False):
        assert padded.untyped_storage().size() == 24
        assert shown.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_error_leaves_idle_weights_offloaded(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), SAVING["offloaded while idle"])
    model = policy.language_model.model
    before = {name: value.clone() for name, value in named_weights(model)}
    with pytest.raises(ZeroDivisionError), on_device(model, changed=True), on_device(model):
        raise ZeroDivisionError
    assert allocated(model.parameters()) == 0
    assert all(torch.equal(before[name], value) for name, value in named_weights(model))


def test_warming_up_runs_a_full_micro_batch_and_a_small_one(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyzero_trainer.training.policy.SMALL", 11)
    policy, sizes = make_policy(toy_model, Case(), PLAIN), []
    losses = policy._token_losses
    monkeypatch.setattr(
        policy,
        "_token_losses",
        lambda now, batch, *rest: sizes.append(batch.tokens.numel()) or losses(now, batch, *rest),
    )
    policy._split = partial(policy._split, layout="packed")
    policy.warm_up(NOW)
    assert sizes == [80, 11]


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_in_half_precision_the_policy_starts_at_no_distance_from_its_reference(
    resumed: bool, toy_model: LanguageModel, tmp_path: Path
) -> None:
    save_model(tmp_path / "start", toy_model)
    config = make_config(
        {
            "run": {"task": "countdown", "output": "out", "device": "cpu"},
            "model": {"path": str(tmp_path / "start"), "dtype": "bfloat16"},
            "algorithm": {"kl_coefficient": 0.1, "kl_estimator": "exact"},
        }
    )
    options = replace(PLAIN, dtype=torch.bfloat16)
    start = replace(toy_model, model=copy.deepcopy(toy_model.model))
    policy, experience = _build_policy(config, start, options, resumed=resumed), shared_batch(toy_model)
    samples = experience.rollouts
    assert torch.equal(policy.logprobs(samples, 0.8), policy.reference_logprobs(samples, 0.8))
    assert policy.update(experience, NOW)["actor/kl_loss"] == 0.0
    assert policy._reference is not None
    assert {parameter.dtype for parameter in policy._reference.body.parameters()} == {torch.bfloat16}
    for buffer, exact in zip(policy._reference.body.buffers(), toy_model.model.buffers(), strict=True):
        assert torch.equal(buffer, exact)


def test_gradients_of_micro_batches_in_half_precision_are_added_in_float32(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), replace(PLAIN, dtype=torch.bfloat16))
    model = policy.language_model.model
    for batch in policy._micro_batches(ragged_samples(toy_model)):
        policy.model(batch, temperature=1.0).logprobs.sum().backward()
    gradients = [local_shard(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert any(gradient.to(torch.bfloat16).float().ne(gradient).any() for gradient in gradients)


def test_the_value_head_computes_in_float32_in_half_precision_too(toy_model: LanguageModel) -> None:
    options = replace(PLAIN, dtype=torch.bfloat16)
    critic = Critic(toy_model, settings=CriticConfig(learning_rate=1e-2), optimizer=OPTIMIZER, options=options)
    seen = []
    critic.model.head.register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
    critic.update(shared_batch(toy_model))
    assert set(seen) == {(torch.float32, torch.float32)}
    assert critic.values(ragged_samples(toy_model)).dtype == torch.float32


def test_a_tied_head_is_among_the_weights(toy_model: LanguageModel) -> None:
    assert toy_model.model.config.tie_word_embeddings
    policy = make_policy(toy_model, Case(), PLAIN)
    weights = dict(named_weights(policy.language_model.model))
    assert not any(isinstance(weight, DTensor) for weight in weights.values())
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert weights.keys() == toy_model.model.state_dict().keys()


def generated(decoder: Decoder) -> list[Any]:
    tokens, mask = torch.tensor([[7, 8, 9], [0, 5, 6]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    with torch.inference_mode():
        found = [decoder.start(tokens, mask, 2)]
        found += [decoder.step(torch.tensor([3, 4, 5, 6]))]
        decoder.keep(torch.tensor([0, 3]))
        return [logits.tolist() for logits in [*found, decoder.step(torch.tensor([2, 1]))]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lora", "saving"), [*((False, saving) for saving in SAVING), (True, "as it is"), (True, "all of it")]
)
def test_engines_generate_with_the_weights_of_a_sharded_model(
    lora: bool, saving: str, toy_model: LanguageModel
) -> None:
    shown: list[list[Any]] = [[], []]
    for options, results in zip((None, SAVING[saving]), shown, strict=True):
        policy = make_policy(toy_model, Case(lora=lora), options)
        engines = [decoder(policy.language_model.model) for decoder in (FusedDecoder, TransformersDecoder)]
        results += [generated(engine) for engine in engines]
        policy.update(shared_batch(toy_model), NOW)
        for engine in engines:
            engine.load_weights()
            results.append(generated(engine))
    plain, sharded = shown
    assert plain[0] != plain[2]
    assert sharded[::2] == plain[::2]
    if lora:  # with transformers' decoder a plain model's adapter is not merged
        for ours, theirs in zip(sharded[1] + sharded[3], plain[1] + plain[3], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-5)
    else:
        assert sharded[1::2] == plain[1::2]
