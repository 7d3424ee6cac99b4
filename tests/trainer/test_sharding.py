"""Sharded models do what plain ones do: the same bits on the CPU, whatever is saved of memory."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.trainer.samples import ragged_samples, with_dropout
from tinyzero_trainer import forward
from tinyzero_trainer.batching import completion_lengths
from tinyzero_trainer.config import AlgorithmConfig, CriticConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.configure import make_config
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.forward import Reference, sampled_logprobs
from tinyzero_trainer.learners import _build_policy
from tinyzero_trainer.lora import Adapter
from tinyzero_trainer.models import LanguageModel, load_model, save_model
from tinyzero_trainer.optimizing import Optimizer
from tinyzero_trainer.policy import Policy
from tinyzero_trainer.rollout.decoder import Decoder, FusedDecoder, TransformersDecoder, build_decoder
from tinyzero_trainer.schedules import StepSettings
from tinyzero_trainer.sharding import Placement, call, layers_of, on_device, process_group, reshard, shard
from tinyzero_trainer.shards import local, whole
from tinyzero_trainer.weights import named_weights

CPU = torch.device("cpu")
PLAIN = Placement(CPU, torch.float32)
NOW = StepSettings(learning_rate=1e-2, temperature=0.8, kl_coefficient=0.3)
OPTIMIZER = OptimizerConfig(micro_batch_tokens=80, mini_batches=2, weight_decay=0.1)
SAVING = {
    "as it is": PLAIN,
    "checkpointed activations": replace(PLAIN, checkpoint_activations=True),
    "offloaded while idle": replace(PLAIN, offload="idle"),
    "offloaded always": replace(PLAIN, offload="always"),
    "all of it": replace(PLAIN, checkpoint_activations=True, offload="idle"),
}


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    with process_group(CPU):
        yield


@dataclass
class Case:
    """A policy with what its loss needs."""

    lora: bool = False
    kl: str | None = None


CASES = {
    "all weights": Case(),
    "LoRA": Case(lora=True),
    "KL": Case(kl="k3"),
    "exact KL": Case(kl="exact"),
    "LoRA, KL to itself": Case(lora=True, kl="k3"),
    "LoRA, exact KL to itself": Case(lora=True, kl="exact"),
}


def make_policy(language_model: LanguageModel, case: Case, placement: Placement | None) -> Policy:
    """From a copy of the model; sharded unless the placement is None."""
    model, reference = copy.deepcopy(language_model.model), None
    language_model = replace(language_model, model=model)
    if case.lora:
        adapter = Adapter(model, LoraConfig(rank=4), seed=0, start=None)
        language_model = replace(language_model, adapter=adapter)
    if case.kl and case.lora:
        reference = Reference(model)
    elif case.kl:
        start = copy.deepcopy(model).requires_grad_(False)
        if placement is not None:
            shard(start, placement)
        reference = Reference(start)
    if placement is not None:
        shard(model, placement)
    algorithm = AlgorithmConfig(
        kl_coefficient=0.3 if case.kl else 0.0, **({"kl_estimator": case.kl} if case.kl else {})
    )
    return Policy(language_model, algorithm=algorithm, optimizer=OPTIMIZER, max_tokens=40, reference=reference)


MADE_UP: dict[str, Experience] = {}


def made_up(language_model: LanguageModel) -> Experience:
    """The same for each model of a name."""
    if language_model.name not in MADE_UP:
        MADE_UP[language_model.name] = make_up(language_model)
    return MADE_UP[language_model.name]


def make_up(language_model: LanguageModel) -> Experience:
    samples = ragged_samples(language_model, groups=2)
    generator = torch.Generator().manual_seed(0)
    lengths = completion_lengths(samples)
    tokens = int(lengths.sum())
    old = torch.tensor([value for sample in samples for value in sample.rollout.logprobs or ()])
    values = torch.randn(tokens, generator=generator)
    return Experience(samples, lengths, old, values, values=0.1 * values, returns=values.sin())


def learn(policy: Policy, experience: Experience, tmp_path: Path) -> tuple[Any, ...]:
    """Everything that two updates and what lies between them show."""
    shown: list[Any] = []
    for _ in range(2):
        shown.append(bits(policy.logprobs(experience.samples, 0.8)))
        if policy._reference is not None:
            shown.append(bits(policy.reference_logprobs(experience.samples, 0.8)))
        shown.append(policy.update(experience, group_size=4, now=NOW))
    policy.save(tmp_path)
    moments = {name: bits(value) for name, value in load_file(tmp_path / "optimizer.safetensors").items()}
    weights = {name: bits(value) for name, value in named_weights(policy.language_model.model)}
    return (*shown, moments, weights)


def bits(tensor: Tensor) -> str:
    return sha256(tensor.numpy().tobytes()).hexdigest()


EXPECTED: dict[str, tuple[Any, ...]] = {}
"""What the plain policy of each case shows, once it was needed."""


def each(names: Any, *quick: str) -> list[Any]:
    """All names, those that are not in `quick` marked as slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


COMBINATIONS = {f"{case}, {saving}": (case, saving) for case in CASES for saving in SAVING}
QUICK = [f"{case}, as it is" for case in ("all weights", "exact KL", "LoRA, exact KL to itself")] + ["KL, all of it"]


@pytest.mark.parametrize("combination", each(COMBINATIONS, *QUICK))
def test_a_sharded_policy_learns_the_same_bits(combination: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    case, saving = COMBINATIONS[combination]
    experience = made_up(toy_model)
    if case not in EXPECTED:
        EXPECTED[case] = learn(make_policy(toy_model, CASES[case], None), experience, tmp_path)
    assert learn(make_policy(toy_model, CASES[case], SAVING[saving]), experience, tmp_path) == EXPECTED[case]


@pytest.mark.parametrize("saving", each(SAVING, "all of it"))
def test_a_sharded_critic_learns_the_same_bits(saving: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    shown = []
    for placement in (None, SAVING[saving]):
        critic = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, placement=placement)
        experience = made_up(toy_model)
        metrics = [critic.update(experience, group_size=4) for _ in range(2)]
        critic.save(tmp_path)
        files = [(tmp_path / name).read_bytes() for name in ("critic.safetensors", "critic_optimizer.safetensors")]
        values = critic.values(experience.samples)
        again = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, placement=placement)
        again.load(tmp_path)
        assert torch.equal(again.values(experience.samples), values)
        shown.append((metrics, files, values.tolist(), again.update(experience, group_size=4)))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("case", ["exact KL", "LoRA, exact KL to itself"])
def test_the_fused_exact_divergence_of_a_gpu_teaches_the_same(
    case: str, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for fused in (False, True):
        monkeypatch.setattr(forward, "fuses_exact", lambda states, fused=fused: fused)
        policy = make_policy(toy_model, CASES[case], PLAIN)
        shown.append([policy.update(made_up(toy_model), group_size=4, now=NOW) for _ in range(2)])
    for written_out, fused_too in zip(*shown, strict=True):
        assert fused_too == pytest.approx(written_out, rel=1e-3, abs=1e-5)
    assert shown[0] != shown[1]  # by two ways


def test_weights_that_were_gathered_without_a_gradient_are_gathered_anew_after_a_step(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(), PLAIN), made_up(toy_model)
    shards = [local(parameter) for parameter in policy.language_model.model.parameters()]
    before = policy.logprobs(experience.samples, 1.0)
    torch._foreach_mul_(shards, 1.5)
    after = policy.logprobs(experience.samples, 1.0)
    plain = replace(toy_model, model=copy.deepcopy(toy_model.model))
    with torch.no_grad():
        for parameter in plain.model.parameters():
            parameter.mul_(1.5)
    expected = Policy(plain, algorithm=AlgorithmConfig(), optimizer=OPTIMIZER, max_tokens=40, reference=None)
    assert torch.equal(after, expected.logprobs(experience.samples, 1.0))
    assert not torch.equal(after, before)


# ---- mixed precision -------------------------------------------------------------------------------------------------


def test_in_half_precision_the_weights_that_are_stepped_stay_whole(toy_model: LanguageModel) -> None:
    experience = made_up(toy_model)
    exact, half = (
        make_policy(toy_model, Case(kl="exact"), replace(PLAIN, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    seen: set[torch.dtype] = set()
    layer = layers_of(half.language_model.model)[0]
    layer.register_forward_pre_hook(lambda module, args: seen.update(p.dtype for p in module.parameters()))
    metrics = [policy.update(experience, group_size=4, now=NOW) for policy in (exact, half)]
    assert seen == {torch.bfloat16}
    assert metrics[1]["actor/grad_norm"] == pytest.approx(metrics[0]["actor/grad_norm"], rel=0.05)
    assert metrics[1]["actor/pg_loss"] == pytest.approx(metrics[0]["actor/pg_loss"], abs=0.02)
    for (name, weight), (_, other) in zip(
        named_weights(half.language_model.model), named_weights(exact.language_model.model), strict=True
    ):
        assert weight.dtype == torch.float32, name
        assert (weight - other).abs().max() < 0.1, name
        assert weight.to(torch.bfloat16).float().ne(weight).any() or weight.numel() < 8, name  # more than half's digits


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
    placement = replace(PLAIN, dtype=torch.bfloat16)
    start = replace(toy_model, model=copy.deepcopy(toy_model.model))
    policy, experience = _build_policy(config, start, placement, resumed=resumed), made_up(toy_model)
    samples = experience.samples
    assert torch.equal(policy.logprobs(samples, 0.8), policy.reference_logprobs(samples, 0.8))
    assert policy.update(experience, group_size=4, now=NOW)["actor/kl_loss"] == 0.0
    assert policy._reference is not None
    assert {parameter.dtype for parameter in policy._reference.model.parameters()} == {torch.bfloat16}
    for buffer, exact in zip(policy._reference.model.buffers(), toy_model.model.buffers(), strict=True):
        assert torch.equal(buffer, exact)


def test_gradients_of_micro_batches_in_half_precision_are_added_in_float32(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), replace(PLAIN, dtype=torch.bfloat16))
    model = policy.language_model.model
    for batch in policy._micro_batches(ragged_samples(toy_model)):
        call(model, lambda batch=batch: model.base_model(batch.tokens).last_hidden_state.float()).sum().backward()
    gradients = [local(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert any(gradient.to(torch.bfloat16).float().ne(gradient).any() for gradient in gradients)


def test_the_values_head_computes_in_float32_whatever_the_body_does(toy_model: LanguageModel) -> None:
    placement = replace(PLAIN, dtype=torch.bfloat16)
    critic = Critic(toy_model, settings=CriticConfig(learning_rate=1e-2), optimizer=OPTIMIZER, placement=placement)
    seen = []
    critic.model.head.register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
    critic.update(made_up(toy_model), group_size=4)
    assert set(seen) == {(torch.float32, torch.float32)}
    assert critic.values(ragged_samples(toy_model)).dtype == torch.float32


# ---- memory ----------------------------------------------------------------------------------------------------------


def held(tensors: Any) -> int:
    return sum(local(tensor).untyped_storage().size() for tensor in tensors)


def test_what_is_idle_holds_no_memory_of_the_device(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="k3"), SAVING["offloaded while idle"]), made_up(toy_model)
    model, optimizer = policy.language_model.model, policy._optimizer
    assert policy._reference is not None
    policy.update(experience, group_size=4, now=NOW)
    policy.logprobs(experience.samples, 1.0)
    assert held(model.parameters()) == held(optimizer._moments()) == held(policy._reference.model.parameters()) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    with on_device(model):
        assert held(model.parameters()) == 4 * sum(parameter.numel() for parameter in model.parameters())
        assert held(optimizer._moments()) == 0


def test_an_error_leaves_idle_weights_where_they_wait(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), SAVING["offloaded while idle"])
    model = policy.language_model.model
    before = {name: value.clone() for name, value in named_weights(model)}
    with pytest.raises(ZeroDivisionError), on_device(model, changed=True), on_device(model):
        raise ZeroDivisionError
    assert held(model.parameters()) == 0
    assert all(torch.equal(before[name], value) for name, value in named_weights(model))


@pytest.mark.parametrize("saving", each(["as it is", "offloaded while idle"], "as it is"))
def test_warming_up_leaves_no_trace(saving: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    policy = make_policy(toy_model, CASES["KL"], SAVING[saving])
    policy.warm_up(NOW)
    assert all(parameter.grad is None for parameter in policy.language_model.model.parameters())
    if "KL" not in EXPECTED:
        EXPECTED["KL"] = learn(make_policy(toy_model, CASES["KL"], None), made_up(toy_model), tmp_path)
    assert learn(policy, made_up(toy_model), tmp_path) == EXPECTED["KL"]


def test_warming_up_fills_a_micro_batch(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, sizes = make_policy(toy_model, Case(), PLAIN), []
    losses = policy._token_losses
    monkeypatch.setattr(
        policy, "_token_losses", lambda batch, *rest: sizes.append(batch.tokens.numel()) or losses(batch, *rest)
    )
    policy._layout = "packed"
    policy.warm_up(NOW)
    assert sizes == [80]


# ---- what others read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("saving", each(SAVING, "all of it"))
def test_a_checkpoint_is_that_of_the_plain_model(
    saving: str, lora: bool, toy_model: LanguageModel, tmp_path: Path
) -> None:
    for name, placement in (("plain", None), ("sharded", SAVING[saving])):
        policy = make_policy(toy_model, Case(lora=lora), placement)
        policy.update(made_up(toy_model), group_size=4, now=NOW)
        save_model(tmp_path / name, policy.language_model)
        policy.save(tmp_path / name)
    files = {path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "sharded") for path in (tmp_path / "sharded").rglob("*") if path.is_file()
    }
    for file in files:
        plain, sharded = ((tmp_path / name / file).read_bytes() for name in ("plain", "sharded"))
        if file.parent.name == "adapter" and file.suffix == ".safetensors":  # its header's entries are in any order
            plain, sharded = (plain[len(plain) // 2 :], sharded[len(sharded) // 2 :])
        assert plain == sharded, file
    load_model(str(tmp_path / "sharded"), CPU)


@pytest.mark.parametrize("saving", each(["as it is", "offloaded while idle"], "as it is"))
def test_moments_saved_sharded_or_plain_are_loaded_sharded_or_plain(
    saving: str, toy_model: LanguageModel, tmp_path: Path
) -> None:
    experience, ends = made_up(toy_model), []
    first = make_policy(toy_model, Case(), SAVING[saving])
    first.update(experience, group_size=4, now=NOW)
    first.save(tmp_path)
    save_model(tmp_path / "model", first.language_model)
    for placement in (None, SAVING[saving]):
        second = make_policy(load_model(str(tmp_path / "model"), CPU), Case(), placement)
        second.load(tmp_path)
        ends.append(
            (second.update(experience, group_size=4, now=NOW), dict(named_weights(second.language_model.model)))
        )
    ends.append((first.update(experience, group_size=4, now=NOW), dict(named_weights(first.language_model.model))))
    for metrics, weights in ends[1:]:
        assert metrics == ends[0][0]
        assert all(torch.equal(weights[name], value) for name, value in ends[0][1].items())


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


@pytest.mark.parametrize("saving", each(SAVING, "as it is"))
@pytest.mark.parametrize("decoder", [FusedDecoder, TransformersDecoder])
@pytest.mark.parametrize("lora", [False, True])
def test_an_engine_generates_with_the_weights_of_a_sharded_model(
    lora: bool, decoder: type[FusedDecoder] | type[TransformersDecoder], saving: str, toy_model: LanguageModel
) -> None:
    shown = []
    for placement in (None, SAVING[saving]):
        policy = make_policy(toy_model, Case(lora=lora), placement)
        engine = decoder(policy.language_model.model)
        before = generated(engine)
        policy.update(made_up(toy_model), group_size=4, now=NOW)
        engine.load_weights()
        shown.append((before, generated(engine)))
    assert shown[0][0] != shown[0][1]
    if lora and decoder is TransformersDecoder:  # which runs a plain model with the adapter beside, not merged
        for plain, sharded in zip(*shown, strict=True):
            assert [torch.tensor(each) for each in sharded] == [
                pytest.approx(torch.tensor(each), abs=1e-5) for each in plain
            ]
    else:
        assert shown[0] == shown[1]


def test_any_architecture_is_sharded_and_generates(toy_model: LanguageModel) -> None:
    other = with_dropout(toy_model)  # no decoder of our own
    policy, plain = make_policy(other, Case(), PLAIN), make_policy(other, Case(), None)
    experience = made_up(toy_model)
    decoders = [build_decoder(each.language_model.model) for each in (policy, plain)]
    assert generated(decoders[0]) == generated(decoders[1])
    metrics = [each.update(experience, group_size=4, now=NOW) for each in (policy, plain)]
    assert metrics[0] == metrics[1]
    decoders[0].load_weights()
    assert generated(decoders[0]) == generated(decoders[1])


def test_on_one_rank_the_engine_has_no_copy_of_what_it_need_not_fuse(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), PLAIN)
    model: Any = policy.language_model.model
    decoder = FusedDecoder(model)
    assert decoder._head.data_ptr() == local(model.lm_head.weight).data_ptr()
    twin: Any = TransformersDecoder(model)._model
    assert (
        twin.model.layers[0].mlp.up_proj.weight.data_ptr() == local(model.model.layers[0].mlp.up_proj.weight).data_ptr()
    )


# ---- how it is put together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saving", "second"), [("as it is", [True, True]), ("checkpointed activations", [False, True])]
)
def test_a_layer_is_gathered_by_itself_and_kept_where_nothing_is_to_be_saved(
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
    call(model, lambda: sampled_logprobs(model, batch, temperature=1.0))
    assert gathered == [[True, False], second]
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())  # given back: no backward pass comes


def test_nothing_stays_gathered_after_an_update(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="exact"), PLAIN), made_up(toy_model)
    assert policy._reference is not None
    for use in (
        lambda: policy.update(experience, group_size=4, now=NOW),
        lambda: policy.reference_logprobs(experience.samples, 1.0),
    ):
        use()
        for model in (policy.language_model.model, policy._reference.model):
            assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_layers_are_found_by_name_or_as_the_largest_list(toy_model: LanguageModel) -> None:
    assert layers_of(toy_model.model) == list(toy_model.model.model.layers)
    assert len(layers_of(with_dropout(toy_model).model)) == 2
    unnamed = nn.Sequential(
        nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(9, 9), nn.Linear(9, 9)]), nn.Linear(99, 99)
    )
    assert layers_of(unnamed) == list(unnamed[1])
    assert layers_of(nn.Linear(3, 3)) == []


def test_an_error_inside_reaches_the_caller(toy_model: LanguageModel) -> None:
    model = make_policy(toy_model, Case(), PLAIN).language_model.model
    with pytest.raises(ZeroDivisionError):
        call(model, lambda: 1 // 0)


def test_a_process_group_that_is_there_is_used_and_left() -> None:
    assert dist.is_initialized()
    with process_group(CPU):
        assert dist.get_world_size() == 1
    assert dist.is_initialized()


def test_the_norm_and_the_bound_are_those_of_the_plain_gradients(toy_model: LanguageModel) -> None:
    norms, weights = [], []
    for placement in (None, PLAIN):
        model: Any = copy.deepcopy(toy_model.model)
        if placement is not None:
            shard(model, placement)
        optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=0.01))
        call(model, lambda model=model: model.base_model(torch.arange(9)[None]).last_hidden_state.sum()).backward()
        norms.append(optimizer.step(1e-2).item())
        weights.append({name: value.clone() for name, value in named_weights(model)})
        reshard(model)
    assert norms[0] == norms[1] > 0.01
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
def test_compiled_layers_compute_the_same(toy_model: LanguageModel) -> None:
    experience, found = made_up(toy_model), []
    for placement in (PLAIN, replace(PLAIN, compile=True, checkpoint_activations=True)):
        policy = make_policy(toy_model, Case(), placement)
        metrics = policy.update(experience, group_size=4, now=NOW)
        found.append((metrics, {name: value.clone() for name, value in named_weights(policy.language_model.model)}))
    for metrics, weights in found[1:]:
        assert metrics == pytest.approx(found[0][0], rel=1e-3, abs=1e-5)
        assert weights.keys() == found[0][1].keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, found[0][1][name], rtol=0, atol=4e-3)  # Adam's steps are of 1e-2


def _one_of_two_ranks(rank: int, directory: str) -> None:
    """Half of a mini-batch's samples each; what comes of a step is written by the first."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{directory}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    language_model = load_model(f"{directory}/start", CPU)
    torch.save(_a_step(language_model, rank, 2), f"{directory}/rank{rank}.pt")
    dist.destroy_process_group()


def _a_step(language_model: LanguageModel, rank: int, ranks: int) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """The gradient's norm, the gradients, and the weights after it."""
    policy = make_policy(language_model, Case(), PLAIN)
    model, optimizer = policy.language_model.model, Optimizer(policy.language_model.model, OPTIMIZER)
    samples = ragged_samples(language_model)
    for batch in policy._micro_batches(samples[rank::ranks]):
        states = call(
            model, lambda batch=batch: model.base_model(batch.tokens).last_hidden_state.flatten(0, 1)[batch.predicts]
        )
        states.square().sum().backward()
    gradients = {name: whole(parameter.grad).clone() for name, parameter in model.named_parameters()}
    norm = optimizer.step(1e-2).item()
    return norm, gradients, {name: value.clone() for name, value in named_weights(model)}


@pytest.mark.slow
def test_two_ranks_take_the_step_of_one(toy_model: LanguageModel, tmp_path: Path) -> None:
    save_model(tmp_path / "start", toy_model)
    torch.multiprocessing.spawn(_one_of_two_ranks, (str(tmp_path),), nprocs=2)
    norm, gradients, weights = _a_step(toy_model, 0, 1)
    for rank in range(2):
        found_norm, found_gradients, found = torch.load(tmp_path / f"rank{rank}.pt")
        assert found_norm == pytest.approx(norm, rel=1e-6)
        for name, value in found_gradients.items():
            torch.testing.assert_close(value, gradients[name], rtol=0, atol=1e-6 * norm)
        for name, value in found.items():
            torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-3)  # Adam's steps are of 1e-2
