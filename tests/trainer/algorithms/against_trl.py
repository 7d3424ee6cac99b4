"""Losses, gradients and advantages of TRL's GRPOTrainer and of this trainer on one batch; printed as JSON.

Run in an environment with TRL by `test_against_trl.py`. TRL's side is its own code from the tokens on: it pads, asks
its reference model, compares the rewards and computes the loss. This trainer gets the advantages that TRL computed.
"""

import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.trainer.samples import build_policy, ragged_samples
from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import NewModelConfig, OptimizerConfig
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

PROMPTS, SAMPLES, MAX_TOKENS, TEMPERATURE, KL = 4, 6, 32, 0.8, 0.04
WEIGHTS = (1.0, 0.5)  # of the two parts of a reward
OWN = "a custom loss"
PAGE = Path(__file__).parents[3] / "docs/training/algorithms.md"

# This trainer's settings, and TRL's. With cispo its epsilon_high is the bound itself, and there is no lower one.
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
    "gdpo": (
        {"advantage_estimator": "gdpo"},
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.2, "multi_objective_aggregation": "normalize_then_sum"},
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
    shape = NewModelConfig(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=256)
    start = from_parts("start", build_model(shape, tokenizer, seed=0), tokenizer)
    save_model(folder / "start", start)
    samples = ragged_samples(start, PROMPTS, SAMPLES)
    generator = torch.Generator().manual_seed(1)
    parts = torch.rand((len(samples), len(WEIGHTS)), generator=generator).round(decimals=2)
    parts[:SAMPLES] = parts[SAMPLES : SAMPLES + 3].repeat(2, 1)  # not all different
    rewards = parts @ torch.tensor(WEIGHTS)
    weights = {name: value + 0.05 * torch.randn(value.shape, generator=generator) for name, value in named(start.model)}
    lengths = completion_lengths(samples)
    noise = 0.3 * torch.randn(int(lengths.sum()), generator=generator)
    noise += jagged.repeat_to_tokens(0.15 * (rewards - rewards.mean()), lengths)  # or the losses are nearly 0
    # The KL is added in one place for all; with `dapo` it is reported with the weights of the loss.
    cases = [*((name, 0.0) for name in ALGORITHMS), ("dapo", KL)]
    results = [compare(name, kl, folder / "start", samples, parts, weights, noise) for name, kl in cases]
    print(json.dumps(results))


def compare(
    name: str,
    kl: float,
    start: Path,
    samples: list[Rollout],
    parts: torch.Tensor,
    weights: dict[str, torch.Tensor],
    noise: torch.Tensor,
) -> dict[str, Any]:
    """Both sides' results for the batch, their relative differences, and what shows that these could be large."""
    settings, in_trl = ALGORITHMS[name]
    trainer = make_trainer(start, samples, parts, kl=kl, temperature=TEMPERATURE, **in_trl)
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
    initial = AutoModelForCausalLM.from_pretrained(start).requires_grad_(False)
    model = from_parts("ours", copy.deepcopy(initial).requires_grad_(True), build_tokenizer())
    model.model.load_state_dict(weights, strict=False)
    policy = build_policy(
        model,
        reference=initial if kl else None,
        optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=100),
        max_tokens=MAX_TOKENS,
        kl_coefficient=kl,
        **settings,
    )
    metrics = policy.update(experience, StepSettings(1e-9, TEMPERATURE, kl))
    loss = metrics["actor/pg_loss"] + kl * metrics.get("actor/kl_loss", 0.0)
    gradient, expected = (
        torch.cat([parameter.grad.flatten() for _, parameter in named(each)]) for each in (model.model, trainer.model)
    )
    part_weights = torch.tensor(WEIGHTS).expand_as(parts)
    rewards = (parts * part_weights).sum(dim=1)
    batch = TrainingBatch(rewards, lengths, SAMPLES, reward_parts=parts, part_weights=part_weights)
    estimated = find_estimator(policy._algorithm.advantage_estimator)(batch)[lengths.cumsum(0) - 1]
    return {
        "algorithm": name,
        "kl": kl,
        "loss": loss,
        "trl_loss": theirs.item(),
        "loss_error": abs(loss - theirs.item()) / abs(theirs.item()),
        "gradient_error": ((gradient - expected).norm() / expected.norm()).item(),
        "gradient_norm": expected.norm().item(),
        "clipped": metrics["actor/pg_clipfrac"],
        "scaled": in_trl.get("scale_rewards") != "none",
        "std": rewards.view(-1, SAMPLES).std(dim=1).repeat_interleave(SAMPLES).tolist(),
        "advantages": estimated.tolist(),
        "trl_advantages": advantages.tolist(),
    }


def make_trainer(start: Path, samples: list[Rollout], parts: torch.Tensor, *, kl: float, **settings: Any) -> Any:
    """TRL's trainer with these rollouts and rewards."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [sample.prompt.token_ids for sample in samples],
            "completion_ids": [sample.generation.token_ids for sample in samples],
            "logprobs": [sample.generation.logprobs for sample in samples],
        }

    def reward(column: torch.Tensor) -> Callable[..., list[float]]:
        return lambda completions, **columns: column.tolist()

    tokenizer = build_tokenizer()
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        processing_class=tokenizer,
        reward_funcs=[reward(column) for column in parts.T],
        rollout_func=rollouts,
        train_dataset=Dataset.from_dict({"prompt": ["0"]}),
        args=GRPOConfig(
            output_dir=str(start.parent / "run"),
            per_device_train_batch_size=len(samples),
            steps_per_generation=1,
            num_generations=SAMPLES,
            max_completion_length=MAX_TOKENS,
            beta=kl,
            reward_weights=list(WEIGHTS),
            use_bias_correction_kl=False,  # the estimator itself
            report_to=[],
            use_cpu=True,
            bf16=False,
            **settings,
        ),
    )


def named(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters with gradient, in an order that does not depend on wrappers."""
    return sorted(model.named_parameters())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
