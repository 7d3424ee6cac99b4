"""What the test_shard*.py show on the CPU, on a GPU: only what differs there, memory above all."""

import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import changed
from tests.trainer.distributed.sharded import NOW, Case, make_policy, shared_batch
from tinyzero_trainer.config import CriticConfig, NewModelConfig, OptimizerConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.fsdp import FsdpOptions, on_device, process_group
from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.training.varlen_attention import use_kernel

pytestmark = pytest.mark.gpu

MIB = 2**20
SHAPE = NewModelConfig(hidden_size=512, layers=8, head_size=64, mlp_size=2048, context=512)

Make = Callable[..., Policy]


@pytest.fixture(scope="module")
def exact() -> Iterator[FsdpOptions]:
    """Float32 on the GPU, without TF32."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with process_group(torch.device("cuda:0")):
        yield FsdpOptions(torch.device("cuda:0"), torch.float32, compile=False)
    torch.backends.cuda.matmul.allow_tf32 = allowed


@pytest.fixture(scope="module")
def half(exact: FsdpOptions) -> FsdpOptions:
    return replace(exact, dtype=torch.bfloat16)


@pytest.fixture
def language_model() -> LanguageModel:
    """On the CPU; about 25 M parameters, most of them in layers."""
    tokenizer = build_tokenizer()
    return from_parts("medium", build_model(SHAPE, tokenizer, seed=0), tokenizer)


def on_gpu(language_model: LanguageModel, options: FsdpOptions | None) -> LanguageModel:
    device = torch.device("cuda:0") if options is None else options.loading_device
    return replace(language_model, model=copy.deepcopy(language_model.model).to(device))


def make(language_model: LanguageModel, options: FsdpOptions | None, case: Case | None = None) -> Policy:
    return make_policy(on_gpu(language_model, options), case or Case(), options)


def update(
    policy: Policy, language_model: LanguageModel, rate: float = 1e-2
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Metrics of an update, and the weights after it."""
    now = replace(NOW, learning_rate=rate)
    metrics = policy.update(shared_batch(language_model), now)
    return metrics, {name: value.float().cpu() for name, value in named_weights(policy.language_model.model)}


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


LOOSE_RATE = 1e-3
"""Of what is compared in half precision: a step of 1e-2 on every weight makes another model of each one's noise, so
that the gradients of the second mini-batch lie 20% apart."""


def assert_alike(found: tuple[Any, Any], expected: tuple[Any, Any], *, loose: bool = False) -> None:
    """Metrics, and weights some steps of Adam later, which turns noise of small gradients into steps."""
    rel, step = (0.05, LOOSE_RATE) if loose else (1e-3, 1e-2)
    for name in ("actor/grad_norm", "actor/entropy"):
        assert found[0][name] == pytest.approx(expected[0][name], rel=rel), name
    for name, value in expected[1].items():
        share = ((found[1][name] - value).abs() > 0.4 * step).float().mean().item()
        assert share < (0.5 if loose else 0.02), (name, share)


CASES = {"all weights": Case(), "LoRA": Case(lora=True), "KL": Case(kl="k3"), "exact KL": Case(kl="exact")}


@pytest.mark.parametrize("case", CASES)
def test_float32_is_that_of_the_plain_model(case: str, exact: FsdpOptions, language_model: LanguageModel) -> None:
    expected = update(make(language_model, None, CASES[case]), language_model)
    assert_alike(update(make(language_model, exact, CASES[case]), language_model), expected)


@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_near(
    case: str, exact: FsdpOptions, half: FsdpOptions, language_model: LanguageModel
) -> None:
    expected = update(make(language_model, exact, CASES[case]), language_model, LOOSE_RATE)
    policy = make(language_model, half, CASES[case])
    assert_alike(update(policy, language_model, LOOSE_RATE), expected, loose=True)
    assert {parameter.dtype for parameter in policy.language_model.model.parameters()} == {torch.float32}


SAVINGS: dict[str, dict[str, Any]] = {
    "checkpointed activations": {"activation_checkpointing": True},
    "idle": {"offload": "idle"},
    "always": {"offload": "always"},
    "compiled": {"compile": True},
    "compiled, checkpointed": {"compile": True, "activation_checkpointing": True},
    "all but always": {"compile": True, "activation_checkpointing": True, "offload": "idle"},
}


@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
@pytest.mark.parametrize("precision", ["exact", "half"])
@pytest.mark.parametrize("saving", SAVINGS)
def test_nothing_that_saves_memory_or_time_changes_the_update(
    saving: str, precision: str, language_model: LanguageModel, request: pytest.FixtureRequest
) -> None:
    options: FsdpOptions = request.getfixturevalue(precision)
    rate = LOOSE_RATE if precision == "half" else 1e-2
    expected = update(make(language_model, options), language_model, rate)
    found = update(make(language_model, replace(options, **SAVINGS[saving])), language_model, rate)
    assert_alike(found, expected, loose=precision == "half")


@pytest.mark.filterwarnings("ignore")  # that this is a prototype
@pytest.mark.parametrize("case", ["all weights", "KL", "exact KL"])
def test_no_micro_batch_makes_the_host_wait(case: str, half: FsdpOptions, language_model: LanguageModel) -> None:
    use_kernel(language_model.model, half.dtype, half.device)
    policy, experience = make(language_model, half, CASES[case]), shared_batch(language_model)
    policy.warm_up(NOW)
    for batch in policy._micro_batches(experience.rollouts):
        weight, part = torch.ones(len(batch.targets), device=half.device), experience.select(batch.indices)
        torch.cuda.set_sync_debug_mode("error")
        try:
            (weight * policy._token_losses(NOW, batch, part, weight, MetricAccumulator())).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_the_policy_starts_at_no_distance_from_its_reference(
    estimator: str, half: FsdpOptions, language_model: LanguageModel
) -> None:
    policy = make(language_model, half, Case(kl=estimator))
    policy._settings = replace(policy._settings, num_mini_batches=1)
    assert update(policy, language_model)[0]["actor/kl_loss"] == 0.0


def test_idle_roles_leave_the_gpu(half: FsdpOptions, language_model: LanguageModel) -> None:
    options, before = replace(half, offload="idle"), allocated()
    policy = make(language_model, options, Case(kl="k3"))
    critic = Critic(
        on_gpu(language_model, options),
        settings=CriticConfig(),
        optimizer=OptimizerConfig(micro_batch_tokens=80),
        options=options,
    )
    weights = 4 * policy.language_model.parameters
    assert allocated() - before < weights / 20
    experience = shared_batch(language_model)
    policy.logprobs(experience.rollouts, 1.0)
    critic.values(experience.rollouts)
    policy.update(experience, NOW)
    critic.update(experience)
    assert allocated() - before < weights / 20
    with on_device(policy.language_model.model):
        assert allocated() - before > 0.95 * weights


def test_always_offloaded_weights_are_never_on_the_gpu_together(
    half: FsdpOptions, language_model: LanguageModel
) -> None:
    before = allocated()
    policy = make(language_model, replace(half, offload="always"))
    weights = 4 * policy.language_model.parameters
    assert {parameter.device.type for parameter in policy.language_model.model.parameters()} == {"cpu"}
    torch.cuda.reset_peak_memory_stats()
    update(policy, language_model)
    assert torch.cuda.max_memory_allocated() - before < weights
    assert allocated() - before < weights / 10


def test_checkpointed_activations_take_less(half: FsdpOptions, language_model: LanguageModel) -> None:
    peaks = []
    for checkpointed in (False, True):
        policy = make(language_model, replace(half, activation_checkpointing=checkpointed))
        policy.micro_batch_tokens = 16384
        policy.warm_up(NOW)
        before = allocated()
        torch.cuda.reset_peak_memory_stats()
        policy.warm_up(NOW)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    print(f"peak of a micro-batch of 16,384 tokens: {peaks[0] / MIB:.0f} MiB, checkpointed {peaks[1] / MIB:.0f} MiB")
    assert peaks[1] < 0.6 * peaks[0]


def test_after_warming_up_the_allocator_asks_for_little_more(half: FsdpOptions, language_model: LanguageModel) -> None:
    policy = make(language_model, half)
    policy.warm_up(NOW)
    reserved = torch.cuda.memory_reserved()
    update(policy, language_model)
    moments = 2 * 4 * policy.language_model.parameters
    assert torch.cuda.memory_reserved() - reserved < 1.5 * moments + 64 * MIB


def test_moments_are_stepped_where_the_weights_are(half: FsdpOptions, language_model: LanguageModel) -> None:
    for offload, where in ((None, "cuda"), ("always", "cpu")):
        policy = make(language_model, replace(half, offload=offload))
        policy.update(shared_batch(language_model), NOW)
        assert {moment.device.type for moment in policy._optimizer._moments()} == {where}
        assert {local_shard(parameter).device.type for parameter in policy.language_model.model.parameters()} == {where}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("advantage", ["grpo", "gae"])
@pytest.mark.parametrize("offload", [None, "idle", "always"])
def test_a_run_on_a_gpu_goes_through_and_is_resumed(
    offload: str | None, advantage: str, warm_model: Path, toy_task: str, tmp_path: Path
) -> None:
    values: dict[str, Any] = {
        "run": {"task": toy_task, "output": str(tmp_path / "run"), "steps": 2, "device": "cuda"},
        "task": {"limit": 5},
        "model": {"path": str(warm_model)},
        "memory": {"activation_checkpointing": offload is not None} | ({"cpu_offload": offload} if offload else {}),
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
        "rollout": {"group_size": 4, "max_completion_tokens": 8, "max_num_seqs": 16},
        "optimizer": {"num_mini_batches": 2},
        "algorithm": {"advantage_estimator": advantage, "kl_coefficient": 0.05},
        "eval": {"num_problems": 4, "every": 0},
        "checkpoint": {"every": 1},
    }
    train(changed(values, {}))
    train(changed(values, {"run__steps": 3}), resume=True)
    assert (tmp_path / "run" / "checkpoints" / "step_3").exists()
