"""Layers in float8: what changes and what does not, and what is refused. The CPU has such products too, of any size."""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.configurations import changed
from tests.trainer.distributed.sharded import NOW, PLAIN, synthetic_batch
from tests.trainer.samples import build_policy, ragged_samples
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import ModelConfig, NewModelConfig, OptimizerConfig
from tinyzero_trainer.distributed.dtensor import full_tensor
from tinyzero_trainer.distributed.fsdp import FsdpOptions, on_device, process_group, shard
from tinyzero_trainer.models.float8 import Float8Linear, Float8Mlp
from tinyzero_trainer.models.fused_logprobs import token_statistics
from tinyzero_trainer.models.loading import LanguageModel, from_parts, load_model, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.float8 import Float8Error, require_float8, use_float8, without_float8
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.training.packing import keeps_packed_apart
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.varlen_attention import use_kernel
from tinyzero_trainer.types import Rollout

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PACKED = OptimizerConfig(micro_batch_tokens=101, packing="packed")


def converted(language_model: LanguageModel) -> LanguageModel:
    """A copy."""
    model = copy.deepcopy(language_model.model)
    use_float8(model, ModelConfig(float8="rowwise", float8_modules=ALL))
    return replace(language_model, model=model)


def gradient(language_model: LanguageModel, samples: Sequence[Rollout], device: torch.device = CPU) -> Tensor:
    """Of a random sum of log-probabilities, over packed rows of several lengths."""
    model, generator = PolicyModel.of(language_model.model), torch.Generator().manual_seed(0)
    with on_device(model):
        for batch in micro_batches(samples, token_budget=101, pad_id=0, device=device, layout="packed"):
            weights = torch.randn(len(batch.targets), generator=generator).to(device)
            (weights * model(batch, temperature=1.0).logprobs).sum().backward()
        gradients = [parameter.grad for parameter in language_model.model.parameters()]
        return torch.cat([full_tensor(one).flatten().float().cpu() for one in gradients if one is not None])


def assert_near(found: Tensor, exact: Tensor, error: float) -> None:
    assert 1e-3 < (found - exact).norm() / exact.norm() < error
    assert torch.cosine_similarity(found, exact, dim=0) > 0.98


def test_gradients_are_near_the_exact_ones(toy_model: LanguageModel) -> None:
    samples = ragged_samples(toy_model)
    assert_near(gradient(converted(toy_model), samples), gradient(toy_model, samples), error=0.1)


def test_names_and_weights_are_the_same_everywhere(toy_model: LanguageModel, tmp_path: Path) -> None:
    changed_model = converted(toy_model)
    kinds = Counter(type(module) for module in changed_model.model.model.layers.modules())
    layers = len(changed_model.model.model.layers)
    assert (kinds[Float8Mlp], kinds[Float8Linear], kinds[nn.Linear]) == (layers, 4 * layers, 3 * layers)
    assert type(changed_model.model.get_output_embeddings()) is nn.Linear
    weights = toy_model.model.state_dict()
    save_model(tmp_path / "saved", changed_model)
    saved = load_model(str(tmp_path / "saved"), CPU).model.state_dict()
    for found in (changed_model.model.state_dict(), dict(named_weights(changed_model.model)), saved):
        assert list(found) == list(weights)
        assert all(found[name].equal(value) for name, value in weights.items())


def one_layer(head: int = 1280) -> LanguageModel:
    """With a tied head for so many tokens."""
    shape, tokenizer = NewModelConfig(hidden_size=64, layers=1, head_size=32, mlp_size=128), build_tokenizer()
    model = build_model(shape, tokenizer, seed=0)
    model.resize_token_embeddings(head)
    return from_parts("one layer", model, tokenizer)


def kinds_of(model: nn.Module) -> dict[type, int]:
    return Counter(type(module) for module in model.modules() if isinstance(module, (Float8Linear, Float8Mlp)))


def test_large_layers_and_the_head_are_converted_and_only_mlps_of_the_usual_kind_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tinyzero_trainer.training.float8.FLOAT8_LARGE", 64 * 128)
    usual, gelu, biased, other, odd = (one_layer(1280 + 8 * (case == 4)).model for case in range(5))
    gelu.config.hidden_act, biased.config.mlp_bias, other.config.model_type = "gelu", True, "apertus"
    for model in (usual, gelu, biased, other, odd):
        use_float8(model, ModelConfig(float8="rowwise"))
    assert kinds_of(usual) == {Float8Mlp: 1, Float8Linear: 1}
    assert isinstance(usual.get_output_embeddings(), Float8Linear)
    for model in (gelu, biased, other):
        assert kinds_of(model) == {Float8Linear: 4}
    assert kinds_of(odd) == {Float8Mlp: 1}  # 1,288 tokens are no multiple of 16
    assert replace(one_layer(), model=usual).trained.endswith(" parameters, 2 modules in float8")


def test_a_head_whose_logits_are_capped_is_left_as_it_is() -> None:
    model = one_layer().model
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(
        Float8Error, match=r"names \['lm_head'\], expected the last parts of names .*: some of \['down_pr"
    ):
        use_float8(model, ModelConfig(float8="rowwise", float8_modules=("lm_head",)))


def test_the_head_computes_in_float8_with_and_without_a_reference() -> None:
    plain = one_layer()
    model = copy.deepcopy(plain.model)
    use_float8(model, ModelConfig(float8="rowwise", float8_modules=("lm_head",)))
    policy, reference, exact = (PolicyModel(one) for one in (model, copy.deepcopy(model), plain.model))
    batches = micro_batches(ragged_samples(plain), token_budget=1000, pad_id=0, device=CPU, layout="packed")
    (batch,) = batches
    states, targets = exact.states(batch).detach(), batch.targets
    with torch.no_grad():
        found = policy(batch, temperature=0.7).logprobs
        expected, _ = token_statistics(states, model.lm_head.weight, targets, temperature=0.7, float8=True)
        assert found.equal(expected)
        as_before = exact(batch, temperature=0.7).logprobs
        assert not found.equal(as_before)
        with without_float8(model), without_float8(model):
            assert policy(batch, temperature=0.7).logprobs.equal(as_before)
        assert policy(batch, temperature=0.7).logprobs.equal(found)
    for estimator in ("k3", "exact"):
        statistics = policy(batch, temperature=0.7, reference=reference, estimator=estimator)
        assert statistics.divergence is not None
        assert not statistics.divergence.any()


def test_packed_sequences_are_kept_apart(toy_model: LanguageModel) -> None:
    model = PolicyModel(converted(toy_model).model)
    assert keeps_packed_apart(model)
    exact, (batch, *_) = (
        PolicyModel(toy_model.model),
        micro_batches(ragged_samples(toy_model), token_budget=101, pad_id=0, device=CPU, layout="packed"),
    )
    with torch.no_grad():
        rounded = model(batch, temperature=1.0).logprobs
        with without_float8(model):
            assert model(batch, temperature=1.0).logprobs.equal(exact(batch, temperature=1.0).logprobs)
        assert model(batch, temperature=1.0).logprobs.equal(rounded)
    assert not rounded.equal(exact(batch, temperature=1.0).logprobs)


@pytest.mark.slow
def test_a_sharded_policy_learns_nearly_the_same_and_continues_from_what_it_saved(
    toy_model: LanguageModel, tmp_path: Path
) -> None:
    def updated(policy: Policy) -> Tensor:
        metrics = policy.update(synthetic_batch(toy_model), NOW)
        assert metrics["actor/grad_norm"] > 0
        weights = dict(named_weights(policy.language_model.model))
        return torch.cat([value.detach().flatten().clone() for value in weights.values()])

    def policy_of(language_model: LanguageModel) -> Policy:
        shard(PolicyModel(language_model.model), PLAIN)
        return build_policy(language_model, optimizer=PACKED)

    exact = toy_model.model.state_dict()
    before = torch.cat([value.flatten().clone() for value in exact.values()])
    with process_group(CPU):
        policy, plain = policy_of(converted(toy_model)), policy_of(copy.deepcopy(toy_model))
        found, expected = updated(policy) - before, updated(plain) - before
        assert torch.cosine_similarity(found, expected, dim=0) > 0.9  # Adam's first step is the gradients' signs
        policy.export(tmp_path / "model")
        (tmp_path / "optimizer").mkdir()
        policy.save(tmp_path / "optimizer")
        other = policy_of(converted(load_model(str(tmp_path / "model"), CPU)))
        other.load(tmp_path / "optimizer")
        assert updated(other).equal(updated(policy))


def test_what_cannot_compute_in_float8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Float8Error, match=r"^model\.float8=rowwise needs a GPU; leave it out$"):
        require_float8(CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(Float8Error, match=r"compute capability 8\.9 or more .* this one has 8\.0; leave it out"):
        require_float8(CUDA)


@pytest.mark.parametrize(
    "other",
    [{"lora__rank": 4}, {"parallel__sequence_parallel": 2, "run__executor": "ray"}, {"model__dtype": "float32"}],
)
def test_what_it_does_not_go_with_is_refused(other: dict[str, object]) -> None:
    values = {"run": {"task": "countdown"}, "model": {"float8": "rowwise"}}
    with pytest.raises(
        SettingsError, match=r"model\.float8=rowwise (does not go with|is for).*; leave one of them out"
    ):
        changed(values, other)
    with pytest.raises(SettingsError, match=r"model\.float8_modules.* has no effect: model\.float8=none"):
        changed({"run": {"task": "countdown"}}, {"model__float8_modules": ["down_proj"]})


def test_a_model_it_does_not_suit_is_refused(toy_model: LanguageModel) -> None:
    with pytest.raises(Float8Error, match="no linear layer of this model is large enough to be faster"):
        use_float8(toy_model.model, ModelConfig(float8="rowwise"))
    with pytest.raises(Float8Error, match=r"names \['lm_head', 'wo'\], expected the last parts of names"):
        use_float8(
            copy.deepcopy(toy_model.model),
            ModelConfig(float8="rowwise", float8_modules=("wo", "lm_head", "q_proj")),
        )


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_are_near_those_in_half_precision(checkpointing: bool, float8_gpu: torch.device) -> None:
    shape, tokenizer = NewModelConfig(hidden_size=512, layers=2, head_size=64, mlp_size=2048), build_tokenizer()
    start = from_parts("small", build_model(shape, tokenizer, seed=0), tokenizer)
    samples, device = ragged_samples(start), float8_gpu
    options = FsdpOptions(device, torch.bfloat16, compile=True, activation_checkpointing=checkpointing)
    gradients = []
    with process_group(device):
        for language_model in (converted(start), start):
            language_model.model.to(device)
            assert use_kernel(language_model.model, options.dtype, device)
            shard(PolicyModel(language_model.model), options)
            assert keeps_packed_apart(PolicyModel.of(language_model.model))
            gradients.append(gradient(language_model, samples, device))
    assert_near(*gradients, error=0.2)  # on the CPU, of this model, 0.14 and 0.11
