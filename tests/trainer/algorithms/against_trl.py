"""Losses, gradients and advantages of TRL's GRPOTrainer and of this trainer on one batch; printed as JSON.

Run in an environment with TRL by `test_against_trl.py`. TRL's side is its own code from the tokens on: it pads, asks
its reference model, compares the rewards and computes the loss. Ours is given the advantages that TRL made.
"""

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.trainer.samples import ragged_samples
from tinyzero_trainer.algorithms.advantages import ESTIMATORS
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import LossInputs, find_policy_loss, token_weights
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.config.sft import TinyShape
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.sft.tiny_model import build_model, build_tokenizer
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import completion_lengths, micro_batches
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

PROMPTS, SAMPLES, MAX_TOKENS, KL = 4, 6, 32, 0.04
OWN = "a loss of one's own"
PAGE = Path(__file__).parents[3] / "docs/algorithms.md"

# Ours, and the same in TRL's words. Its epsilon_high is the bound itself with cispo, and cispo has no lower one.
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (
        {"loss_aggregation": "seq-mean-token-mean"},
        {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2},
    ),
    "dr_grpo": (
        {"advantage_estimator": "dr_grpo", "loss_aggregation": "seq-mean-token-sum-norm"},
        {"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.2, "epsilon_high": 0.2},
    ),
    "dapo": (
        {"clip_ratio_high": 0.28},
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    ),
    "dual clip": (
        {"clip_ratio_high": 0.28, "dual_clip_c": 1.5},
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "delta": 1.5},
    ),
    "gspo": (
        {
            "policy_loss": "gspo",
            "loss_aggregation": "seq-mean-token-mean",
            "clip_ratio_low": 0.01,
            "clip_ratio_high": 0.02,
        },
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01, "epsilon_high": 0.02},
    ),
    "cispo": (
        {"policy_loss": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 0.3},
        {"loss_type": "cispo", "epsilon_high": 1.3},
    ),
    OWN: (
        {"policy_loss": "./soft_gate.py:soft_gate", "loss_aggregation": "seq-mean-token-mean"},
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
    ),
}


def main(folder: Path) -> None:
    [own] = re.findall(r"^```python\n(# soft_gate.py\n.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    Path("soft_gate.py").write_text(own, encoding="utf-8")
    tokenizer = build_tokenizer()
    shape = TinyShape(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=256)
    start = from_parts("start", build_model(shape, tokenizer, seed=0), tokenizer)
    save_model(folder / "start", start)
    samples = ragged_samples(start, PROMPTS, SAMPLES)
    generator = torch.Generator().manual_seed(1)
    rewards = torch.rand(len(samples), generator=generator).round(decimals=2)
    rewards[:SAMPLES] = rewards[SAMPLES : SAMPLES + 3].repeat(2)  # not all different
    weights = {name: value + 0.05 * torch.randn(value.shape, generator=generator) for name, value in named(start.model)}
    lengths = completion_lengths(samples)
    noise = 0.3 * torch.randn(int(lengths.sum()), generator=generator)
    noise += jagged.repeat_to_tokens(0.3 * (rewards - rewards.mean()), lengths)  # else the losses come to nearly 0
    results = [
        compare(name, folder / "start", samples, rewards, weights, noise, kl=kl, temperature=temperature)
        for name in ALGORITHMS
        for kl, temperature in ((0.0, 1.0), (KL, 0.8))
    ]
    print(json.dumps(results))


def compare(
    name: str,
    start: Path,
    samples: list[Rollout],
    rewards: torch.Tensor,
    weights: dict[str, torch.Tensor],
    noise: torch.Tensor,
    *,
    kl: float,
    temperature: float,
) -> dict[str, Any]:
    """What both make of the batch, as relative differences, with what shows that the comparison is not an easy one."""
    settings, in_trl = ALGORITHMS[name]
    trainer = make_trainer(start, samples, rewards, kl=kl, temperature=temperature, **in_trl)
    trainer.model.load_state_dict(weights, strict=False)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions([{"prompt": str(row)} for row in range(len(samples))])
    present = inputs["completion_mask"].bool()
    with torch.no_grad():
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        now, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, tokens, mask, present.shape[1])
    old = now[present] + noise
    inputs["old_per_token_logps"] = torch.zeros_like(now).masked_scatter(present, old)
    theirs = trainer.compute_loss(trainer.model, inputs)
    theirs.backward()
    lengths, advantages = completion_lengths(samples), inputs["advantages"]
    experience = TrainingBatch.of(
        samples, SAMPLES, old_logprobs=old, advantages=jagged.repeat_to_tokens(advantages, lengths)
    )
    algorithm = AlgorithmConfig(**settings, kl_coefficient=kl)
    loss, clipped, gradient = ours(start, weights, experience, algorithm, kl=kl, temperature=temperature)
    estimated = ESTIMATORS[algorithm.advantage_estimator](TrainingBatch(rewards, lengths, SAMPLES))[
        jagged.last_tokens(lengths)
    ]
    expected = torch.cat([parameter.grad.flatten() for _, parameter in named(trainer.model)])
    return {
        "algorithm": name,
        "kl": kl,
        "temperature": temperature,
        "loss": loss,
        "trl_loss": theirs.item(),
        "loss_error": abs(loss - theirs.item()) / abs(theirs.item()),
        "gradient_error": ((gradient - expected).norm() / expected.norm()).item(),
        "gradient_norm": expected.norm().item(),
        "clipped": clipped,
        "scaled": in_trl.get("scale_rewards") != "none",
        "std": rewards.view(-1, SAMPLES).std(dim=1).repeat_interleave(SAMPLES).tolist(),
        "advantages": estimated.tolist(),
        "trl_advantages": advantages.tolist(),
    }


def make_trainer(start: Path, samples: list[Rollout], rewards: torch.Tensor, *, kl: float, **settings: Any) -> Any:
    """TRL's trainer, whose rollouts and rewards are given."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [sample.prompt.token_ids for sample in samples],
            "completion_ids": [sample.generation.token_ids for sample in samples],
            "logprobs": [sample.generation.logprobs for sample in samples],
        }

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return rewards.tolist()  # type: ignore[no-any-return]

    tokenizer = build_tokenizer()
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        processing_class=tokenizer,
        reward_funcs=[reward],
        rollout_func=rollouts,
        train_dataset=Dataset.from_dict({"prompt": ["0"]}),
        args=GRPOConfig(
            output_dir=str(start.parent / "run"),
            per_device_train_batch_size=len(samples),
            steps_per_generation=1,
            num_generations=SAMPLES,
            max_completion_length=MAX_TOKENS,
            beta=kl,
            use_bias_correction_kl=False,  # the estimator itself, as everybody else has it
            report_to=[],
            use_cpu=True,
            bf16=False,
            **settings,
        ),
    )


def ours(
    start: Path,
    weights: dict[str, torch.Tensor],
    experience: TrainingBatch,
    algorithm: AlgorithmConfig,
    *,
    kl: float,
    temperature: float,
) -> tuple[float, float, torch.Tensor]:
    """The loss and the clipped share from the pure functions, and the gradient of a whole update in micro-batches."""
    beginning = AutoModelForCausalLM.from_pretrained(start).requires_grad_(False)
    model = from_parts("ours", copy.deepcopy(beginning).requires_grad_(True), build_tokenizer())
    model.model.load_state_dict(weights, strict=False)
    reference = PolicyModel(beginning) if kl else None
    [batch] = micro_batches(experience.rollouts, token_budget=10**6, pad_id=model.pad_id, device=torch.device("cpu"))
    part = experience.select(batch.indices)
    found = PolicyModel(model.model)(batch, temperature=temperature, reference=reference)
    given = LossInputs(
        part.old_logprobs,
        part.advantages,
        batch.lengths,
        algorithm.clip_ratio_low,
        algorithm.clip_ratio_high,
        algorithm.dual_clip_c,
    )
    surrogate = find_policy_loss(algorithm.policy_loss)(found.logprobs, given)
    each = surrogate.loss if found.divergence is None else surrogate.loss + kl * found.divergence
    weight = token_weights(part.lengths, algorithm.loss_aggregation, max_tokens=MAX_TOKENS)
    policy = Policy(
        model,
        algorithm=algorithm,
        optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=100),
        max_tokens=MAX_TOKENS,
        reference=reference,
    )
    policy.update(experience, StepSettings(1e-9, temperature, kl))
    gradient = torch.cat([parameter.grad.flatten() for _, parameter in named(model.model)])
    return (
        (jagged.repeat_to_tokens(weight, part.lengths) * each).sum().item(),
        surrogate.clipped.float().mean().item(),
        gradient,
    )


def named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters with gradient, in an order that does not depend on wrappers."""
    return sorted(model.named_parameters())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
