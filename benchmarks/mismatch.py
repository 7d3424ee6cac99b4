"""How far rollouts and updates in fp8 are from float32: log-probabilities of a real model's completions, and gradients.

    python benchmarks/mismatch.py MODEL [--task countdown] [--prompts 8] [--samples 2] [--new-tokens 160]
    python benchmarks/mismatch.py MODEL --engine bfloat16

The model computes in float32, the engine `torch` in bfloat16 and in fp8 as it does on a GPU; without one its steps run
in plain torch, which takes minutes. `KL` is of the engine's distribution to the policy's, estimated from the sampled
tokens: the metric `rollout_corr/kl` of a run. The gradient is that of a sum of the completions' log-probabilities with
random advantages, over all weights; its distance is relative to its norm in float32. `model.float8_modules` names all
MLPs, the head or both, however small.
"""

import copy
from typing import Annotated, Any

import torch
import typer

from benchmarks.common import print_machine, print_table
from tests.trainer.rollout import reference_ops
from tinyzero_sdk import Item, Score, load_task
from tinyzero_trainer.config import ModelConfig
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.distributed.fsdp import cast_weights
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import Fp8Weights
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.float8 import use_float8
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Prompt, Rollout

MLPS, HEAD = ("gate_proj", "up_proj", "down_proj"), ("lm_head",)
UPDATES = {"bfloat16": (), "MLPs and head in float8": (*MLPS, *HEAD), "MLPs in float8": MLPS, "head in float8": HEAD}

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
    engine: Annotated[list[str] | None, typer.Option(help=", ".join(ENGINES))] = None,
    device: str = "auto",
) -> None:
    """Measure, and print a table."""
    print_machine("torch", "transformers", "tinyzero-trainer")
    policy = load_model(model, choose_device(device))
    if misfit := Fp8Weights.misfit(policy.model.config):
        raise typer.BadParameter(f"rollout.quantization=fp8 does not fit this model: {misfit}")
    source = PromptSource(load_task(task), policy.tokenizer)
    asked = [list(prompt.token_ids) for prompt in source.held_out(prompts)]
    rows = dict[str, dict[str, str]]()
    sampled: list[Rollout] = []
    for name in engine or ENGINES:
        completions, found = differences(policy, asked, samples, new_tokens, ENGINES[name])
        rows[name], sampled = cells(found), sampled or completions
    print_table(f"{samples} × {prompts} completions of {task}, up to {new_tokens} tokens", rows)
    print_table("the update, of the first of these", update_rows(policy, sampled))


def differences(
    policy: LanguageModel, prompts: list[list[int]], samples: int, new_tokens: int, precision: dict[str, Any]
) -> tuple[list[Rollout], torch.Tensor]:
    """Completions, and [tokens] log-probabilities of the engine that sampled them, minus those of the policy."""
    model: Any = policy.model
    precision = {**precision, "kernels": None if model.device.type == "cuda" else reference_ops}
    engine = GraphEngine(policy, lambda: named_weights(model), dtype=torch.bfloat16, device=model.device, **precision)
    rollouts, found = [], []
    params = SamplingParams(new_tokens, logprobs=True)
    for prompt, group in zip(prompts, engine.generate(prompts, samples, params, seed=0), strict=True):
        for completion in group:
            rollouts.append(Rollout(Prompt(Item(None), "", prompt), completion, "", Score(0.0, False)))
            tokens = torch.tensor([[*prompt, *completion.token_ids]], device=model.device)
            with torch.no_grad():
                logprobs = model(tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(dim=-1)
            own = logprobs.gather(1, tokens[0, len(prompt) :, None])[:, 0]
            found.append(torch.tensor(completion.logprobs) - own.cpu())
    return rollouts, torch.cat(found)


def update_rows(policy: LanguageModel, rollouts: list[Rollout]) -> dict[str, dict[str, str]]:
    """Rows of the second table: the same model in bfloat16, and with `model.float8=rowwise` as well."""
    exact, exact_gradient = update(policy.model, policy.pad_id, rollouts)
    rows = {}
    for name, modules in UPDATES.items():
        model = copy.deepcopy(policy.model)
        if modules:
            use_float8(model, ModelConfig(float8="rowwise", float8_modules=modules))
        cast_weights(model, torch.bfloat16)
        logprobs, gradient = update(model, policy.pad_id, rollouts)
        away = (gradient - exact_gradient).norm() / exact_gradient.norm()
        cosine = torch.nn.functional.cosine_similarity(gradient.double(), exact_gradient.double(), dim=0)
        rows[name] = cells(logprobs - exact) | {"gradient: distance": f"{away:.3f}", "cosine": f"{cosine:.4f}"}
        del rows[name]["KL"]
    return rows


def update(model: Any, pad_id: int, rollouts: list[Rollout]) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens] log-probabilities, and [weights] the gradient of their sum, with a random advantage for a completion."""
    (batch,) = micro_batches(rollouts, token_budget=2**20, pad_id=pad_id, device=model.device)
    advantages = torch.randn(len(rollouts), generator=torch.Generator().manual_seed(0))
    logprobs = PolicyModel.of(model)(batch, temperature=1.0).logprobs
    weights = advantages[batch.indices].to(model.device).repeat_interleave(batch.lengths)
    gradients = torch.autograd.grad((weights * logprobs).sum(), list(model.parameters()))
    return logprobs.detach().cpu(), torch.cat([one.flatten().float().cpu() for one in gradients])


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
