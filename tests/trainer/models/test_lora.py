"""LoRA: only the adapter moves, and engine, reference, export and resumed run are what the merged model's would be."""

import copy
import json
import math
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tests.trainer.conftest import random_model
from tests.trainer.runs import Configure, assert_same_weights, killed, lines, short_run
from tests.trainer.samples import ragged_samples, with_advantages, with_dropout
from tests.trainer.training.test_policy import NOW
from tinyzero_trainer.config import AlgorithmConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.executors import build as roles
from tinyzero_trainer.models.loading import LanguageModel, ModelError, load_model
from tinyzero_trainer.models.lora import Adapter, LoraError, merged_weights
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch.decoder import build_decoder
from tinyzero_trainer.rollout.weight_source import named_weights, sent_weights
from tinyzero_trainer.training.logprobs import PolicyModel, frozen
from tinyzero_trainer.training.micro_batches import MicroBatch, micro_batches
from tinyzero_trainer.training.policy import Policy

CPU = torch.device("cpu")
ADVANTAGES = [1.0, -1.0, 0.5, -0.5] * 3
PROMPTS = [[5, 17, 40], [300], [8, 9]]


def adapt(model: PreTrainedModel, *, moved: bool = True, seed: int = 0, **settings: Any) -> Adapter:
    """Attach an adapter; `moved` = as if it had been trained, since a new one changes nothing."""
    adapter = Adapter(model, LoraConfig(**{"rank": 4, **settings}), seed=seed, start=None)
    if moved:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in trained(model).values():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return adapter


def adapted(language_model: LanguageModel, **settings: Any) -> LanguageModel:
    """`language_model`, adapted in place."""
    return replace(language_model, adapter=adapt(language_model.model, **settings))


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def copied_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trained(model).items()}


def untrained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.clone() for name, parameter in model.named_parameters() if not parameter.requires_grad}


def make_policy(language_model: LanguageModel, *, reference: PolicyModel | None = None) -> Policy:
    kl = {"kl_coefficient": 0.1, "kl_estimator": "exact"} if reference is not None else {}
    return Policy(
        language_model,
        algorithm=AlgorithmConfig(**kl),
        optimizer=OptimizerConfig(num_mini_batches=3, micro_batch_tokens=100),
        max_tokens=32,
        reference=reference,
    )


def one_batch(language_model: LanguageModel) -> MicroBatch:
    samples = ragged_samples(language_model)
    [batch] = micro_batches(samples, token_budget=10**6, pad_id=language_model.pad_id, device=CPU)
    return batch


def gpt2() -> PreTrainedModel:
    """An architecture without a fused decoder, whose matrices are transposed."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()


@pytest.fixture(params=["qwen2", "qwen3", "llama", "gpt2"])
def architecture(request: pytest.FixtureRequest) -> PreTrainedModel:
    return gpt2() if request.param == "gpt2" else random_model(request.param)


def test_an_update_moves_the_adapter_and_leaves_every_other_bit(toy_model: LanguageModel, tmp_path: Path) -> None:
    samples = ragged_samples(toy_model)
    start = {name: tensor.clone() for name, tensor in toy_model.model.state_dict().items()}
    model = adapted(toy_model, moved=False)
    before = copied_weights(model.model)
    policy = make_policy(model)
    policy.update(with_advantages(samples, ADVANTAGES), NOW)
    after = trained(model.model)
    assert all(".lora_" in name for name in after)
    assert not any(torch.equal(before[name], after[name]) for name in after)
    plain = {name.replace(".base_layer", ""): tensor for name, tensor in model.model.state_dict().items()}
    assert all(torch.equal(plain[name], tensor) for name, tensor in start.items())
    policy.save(tmp_path)
    moments = load_file(tmp_path / "optimizer.safetensors")
    assert {name.partition("/")[2] for name in moments} == set(after)


def test_what_is_sent_is_the_adapter_alone_or_without_one_all_weights(toy_model: LanguageModel) -> None:
    plain = copy.deepcopy(toy_model.model)
    model = adapted(toy_model)
    sent = dict(sent_weights(model.model))
    assert sent.keys() == trained(model.model).keys()
    assert all(torch.equal(sent[name], tensor) for name, tensor in trained(model.model).items())
    assert [name for name, _ in sent_weights(plain)] == [name for name, _ in named_weights(plain)]


def test_a_new_adapter_changes_nothing_and_depends_on_the_seed_alone(toy_model: LanguageModel) -> None:
    twins = [copy.deepcopy(toy_model.model) for _ in range(3)]
    drawn = torch.get_rng_state()
    for twin, seed in zip(twins, (0, 0, 1), strict=True):
        adapt(twin, moved=False, seed=seed)
        torch.rand(3)  # whatever else draws in between
    torch.set_rng_state(drawn)
    tokens = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        assert torch.equal(twins[0](tokens).logits, toy_model.model.eval()(tokens).logits)
    first, same, other = (trained(twin) for twin in twins)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [({}, 2.0), ({"alpha": 4}, 1.0), ({"alpha": 12}, 3.0), ({"alpha": 4, "rslora": True}, 4 / math.sqrt(4))],
)
def test_the_update_is_scaled_by_alpha_over_the_rank(toy_model, settings, scale):
    start = toy_model.model.model.layers[1].mlp.up_proj.weight.clone()
    adapt(toy_model.model, **settings)
    layer = toy_model.model.model.layers[1].mlp.up_proj
    expected = start.double() + scale * layer.lora_B.default.weight.double() @ layer.lora_A.default.weight.double()
    merged = dict(merged_weights(toy_model.model))["model.layers.1.mlp.up_proj.weight"]
    torch.testing.assert_close(merged.double(), expected, atol=1e-6, rtol=1e-6)


def test_the_merged_state_is_that_of_a_plain_model_and_acts_as_the_adapted_one(architecture: PreTrainedModel) -> None:
    plain = copy.deepcopy(architecture)
    adapt(architecture)
    untouched = untrained(architecture)
    state, of_engine = dict(merged_weights(architecture)), dict(named_weights(architecture))
    assert all(torch.equal(untouched[name], tensor) for name, tensor in untrained(architecture).items())
    assert list(of_engine) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in of_engine.items())
    tokens = torch.tensor([[5, 17, 40, 96]])
    with torch.no_grad():
        start, expected = plain(tokens).logits, architecture(tokens).logits
        plain.load_state_dict(state, strict=True)
        torch.testing.assert_close(plain(tokens).logits, expected, atol=1e-4, rtol=1e-4)
    assert (start - expected).abs().max() > 0.1


def test_decoders_follow_the_adapter(architecture: PreTrainedModel) -> None:
    adapter = adapt(architecture, moved=False)
    decoder = build_decoder(architecture)
    tokens = torch.tensor([[5, 17, 40, 96], [0, 0, 3, 4]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    for _ in range(2):
        with torch.no_grad():
            for tensor in adapter._tensors().values():
                tensor.add_(0.1)
        decoder.load_weights()
        with torch.inference_mode():
            logits = decoder.start(tokens, mask, copies=1)
            for row, length in enumerate((4, 2)):
                expected = architecture(tokens[row : row + 1, 4 - length :]).logits[0, -1]
                torch.testing.assert_close(logits[row], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_reference_is_the_start_and_switching_to_it_leaves_no_trace(toy_model: LanguageModel) -> None:
    start = copy.deepcopy(toy_model.model)
    samples = ragged_samples(toy_model)
    model = adapted(toy_model)
    shared, copied = (make_policy(model, reference=PolicyModel(each)) for each in (model.model, start))
    assert torch.equal(shared.reference_logprobs(samples, 1.0), copied.reference_logprobs(samples, 1.0))
    assert (shared.logprobs(samples, 1.0) - shared.reference_logprobs(samples, 1.0)).abs().max() > 0.01
    assert sum(parameter.numel() for parameter in model.model.parameters()) == model.parameters
    trained_weights, results = copied_weights(model.model), []
    for policy in (shared, copied):
        metrics = policy.update(with_advantages(samples, ADVANTAGES), NOW)
        assert metrics["actor/kl_loss"] > 0.01
        results.append((metrics, copied_weights(model.model)))
        with torch.no_grad():
            for name, tensor in trained(model.model).items():
                tensor.copy_(trained_weights[name])
    (metrics, weights), (same_metrics, same_weights) = results
    assert metrics == same_metrics
    assert all(torch.equal(weights[name], same_weights[name]) for name in trained_weights)


def test_the_reference_knows_no_dropout_and_the_policy_keeps_its_own(toy_model: LanguageModel) -> None:
    model, batch = with_dropout(toy_model).model, one_batch(toy_model)
    expected = PolicyModel(copy.deepcopy(model)).states(batch)
    adapt(model)
    for _ in range(2):
        with frozen(model.train()):
            assert torch.equal(PolicyModel(model).states(batch), expected)
    assert all(module.training for module in model.modules())
    assert not torch.equal(model(batch.tokens).logits, model(batch.tokens).logits)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own call of transformers
def test_peft_loads_the_adapter_by_itself(toy_model: LanguageModel, toy_model_path: Path, tmp_path: Path) -> None:
    model = adapted(toy_model, rslora=True, target_modules=("q_proj", "up_proj"))
    model.adapter.save(tmp_path / "adapter")
    start = AutoModelForCausalLM.from_pretrained(toy_model_path, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(start, tmp_path / "adapter")
    tokens = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model.model.eval()(tokens).logits, atol=1e-6, rtol=1e-6)
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert settings["inference_mode"]
    assert settings["target_modules"] == ["q_proj", "up_proj"]


def test_an_adapter_is_neither_put_on_another_model_nor_taken_for_one(toy_model: LanguageModel, tmp_path: Path) -> None:
    other = copy.deepcopy(toy_model.model)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.001)
    adapt(toy_model.model).save(tmp_path / "adapter")
    with pytest.raises(LoraError, match="is not the model that the run started from"):
        adapt(other).load(tmp_path / "adapter")
    with pytest.raises(ModelError, match="is an adapter, not a model; give a model that has it merged"):
        load_model(str(tmp_path / "adapter"), CPU)


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "query"])
def test_only_linear_layers_of_the_body_are_adapted(toy_model: LanguageModel, name: str) -> None:
    reason = rf"lora\.target_modules names \['{name}'\], expected .* down_proj, gate_proj, k_proj"
    with pytest.raises(LoraError, match=reason):
        adapt(toy_model.model, target_modules=("q_proj", name))
    adapter = adapt(toy_model.model, target_modules=("q_proj",))
    assert {name.split(".")[-3] for name in adapter._tensors()} == {"q_proj"}


# ---- whole runs ------------------------------------------------------------------------------------------------------

STEPS = 3


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Configure:
    """Makes the configuration of a run of a few steps that train an adapter."""
    settings = {
        "run__task": toy_task,
        "run__steps": STEPS,
        "task__limit": 5,
        "lora__rank": 2,
        "optimizer": {"learning_rate": 1e-2, "num_mini_batches": 2},
        "algorithm__kl_coefficient": 0.05,
        "checkpoint__every": 1,
    }
    return lambda name, **changes: short_run(warm_model, tmp_path / name, **settings, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["grpo", "gae"])
def test_a_killed_run_resumes_to_the_same_bits(configure, advantage, monkeypatch):
    whole, cut = (configure(name, algorithm__advantage_estimator=advantage) for name in ("all", "cut"))
    train(whole)
    with killed(monkeypatch, TrainingStep, "take", STEPS):
        train(cut)
    train(cut, resume=True)
    assert lines(cut.run.output) == lines(whole.run.output)
    assert_same_weights(cut.run.output, whole.run.output, STEPS)
    checkpoint = Path(whole.run.output, f"checkpoints/step_{STEPS}")
    folders = {path.parent.name for path in checkpoint.rglob("*.safetensors")}
    assert folders == {checkpoint.name, "adapter", "training_state"}


@pytest.mark.slow
def test_a_run_says_how_much_it_trains(configure: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    output = train(configure("run")).output
    row = lines(output)[0]
    assert 0 < row["model/trained_parameters"] < row["model/parameters"] / 5
    assert f"training {row['model/trained_parameters']:,.0f} of {row['model/parameters']:,.0f} parameters" in (
        capsys.readouterr().err
    )
    exported = load_model(str(output / "checkpoints" / f"step_{STEPS}"), CPU)
    assert exported.parameters == row["model/parameters"] - row["model/trained_parameters"]


@pytest.mark.slow
def test_the_critic_has_its_own_weights_and_no_adapter(configure: Configure) -> None:
    config = configure("run", algorithm__advantage_estimator="gae")
    with roles.build_workers(config, display=Progress(), training=True) as built:
        names = {name for name, _ in built.critic.model.named_parameters()}
        assert not any("lora" in name for name in names)
        assert len(trained(built.critic.model)) > len(names) - 2  # all but a head that is not tied
        assert all("lora" in name for name in trained(built.language_model.model))


@pytest.mark.slow
def test_without_peft_one_line_says_what_to_install(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(LoraError, match=r"lora\.rank=2 needs peft.*pip install 'tinyzero-trainer\[lora\]'") as refused:
        train(configure("run"))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_an_evaluation_has_no_adapter(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # nor does it need peft
    with roles.build_workers(configure("run"), display=Progress(), training=False) as built:
        assert built.language_model.adapter is None
        assert len(built.engine.generate(PROMPTS, 2, SamplingParams(8), seed=0)) == len(PROMPTS)


def test_merged_weights_are_made_one_at_a_time_where_the_model_is(toy_model: LanguageModel) -> None:
    adapt(toy_model.model)
    own = {tensor.data_ptr() for tensor in toy_model.model.state_dict().values()}
    made: list[weakref.ref[torch.Tensor]] = []
    for _, tensor in named_weights(toy_model.model):
        if tensor.data_ptr() not in own:
            made.append(weakref.ref(tensor))
        assert sum(each() is not None for each in made) <= 1
    assert len(made) > 9
    elsewhere = toy_model.model.to("meta")  # from which nothing can come to the host
    assert all(tensor.is_meta for _, tensor in named_weights(elsewhere))
