"""How far rollouts in fp8 are from the policy: log-probabilities of a real model's completions, and the model's own.

    python benchmarks/mismatch.py MODEL [--task countdown] [--prompts 8] [--samples 2] [--new-tokens 160]

The model computes in float32, the engine `torch` in bfloat16 and in fp8 as it does on a GPU; without one its steps run
in plain torch, which takes minutes. `KL` is of the engine's distribution to the policy's, estimated from the sampled
tokens: the metric `rollout_corr/kl` of a run.
"""

from typing import Any

import torch
import typer

from benchmarks.common import print_machine, print_table
from tinyzero_sdk import load_task
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.cuda_graph.fp8_products import Fp8Weights
from tinyzero_trainer.rollout.weight_source import named_weights

ENGINES: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "rollout.kv_cache_dtype=fp8": {"fp8_cache": True},
    "rollout.quantization=fp8": {"fp8_products": True},
    "both": {"fp8_cache": True, "fp8_products": True},
}


def main(
    model: str,
    task: str = "countdown",
    prompts: int = 8,
    samples: int = 2,
    new_tokens: int = 160,
    device: str = "auto",
) -> None:
    """Measure, and print a table."""
    print_machine("torch", "transformers", "tinyzero-trainer")
    policy = load_model(model, choose_device(device))
    if misfit := Fp8Weights.misfit(policy.model.config):
        raise typer.BadParameter(f"rollout.quantization=fp8 does not fit this model: {misfit}")
    source = PromptSource(load_task(task), policy.tokenizer)
    asked = [list(prompt.token_ids) for prompt in source.held_out(prompts)]
    rows = {}
    for name, precision in ENGINES.items():
        rows[name] = cells(differences(policy, asked, samples, new_tokens, precision))
    print_table(f"{samples} × {prompts} completions of {task}, up to {new_tokens} tokens", rows)


def differences(
    policy: LanguageModel, prompts: list[list[int]], samples: int, new_tokens: int, precision: dict[str, Any]
) -> torch.Tensor:
    """[tokens] log-probabilities of the engine that sampled them, minus those of the policy."""
    model: Any = policy.model
    engine = GraphEngine(policy, lambda: named_weights(model), dtype=torch.bfloat16, device=model.device, **precision)
    found = []
    params = SamplingParams(new_tokens, logprobs=True)
    for prompt, group in zip(prompts, engine.generate(prompts, samples, params, seed=0), strict=True):
        for completion in group:
            tokens = torch.tensor([[*prompt, *completion.token_ids]], device=model.device)
            with torch.no_grad():
                logprobs = model(tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(dim=-1)
            own = logprobs.gather(1, tokens[0, len(prompt) :, None])[:, 0]
            found.append(torch.tensor(completion.logprobs) - own.cpu())
    return torch.cat(found)


def cells(difference: torch.Tensor) -> dict[str, str]:
    """A row of the table."""
    size = difference.abs()
    return {
        "mean distance": f"{size.mean():.3f}",
        "of 1 in 100 at least": f"{size.quantile(0.99):.2f}",
        "largest": f"{size.max():.2f}",
        "KL": f"{difference.mean():.4f}",
        "tokens": f"{len(difference):,}",
    }


if __name__ == "__main__":
    typer.run(main)
