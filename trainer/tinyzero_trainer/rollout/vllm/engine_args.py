"""With which arguments and environment vLLM is started. Functions of the configuration; vLLM is not imported."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from tinyzero_sdk.settings import format_value
from tinyzero_trainer.config import TrainConfig, VllmConfig
from tinyzero_trainer.distributed import cuda_allocator as allocator
from tinyzero_trainer.distributed.fsdp import compute_dtype
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_memory import GB
from tinyzero_trainer.estimate.fit import settle, usable, with_settings
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.spec import spec_from_config
from tinyzero_trainer.rollout.vllm.log import LEVEL
from tinyzero_trainer.rollout.vllm.parent_watchdog import TRAINER

GRAPHS_UP_TO = 512
"""Sequences for which vLLM captures CUDA graphs by itself."""

MOST_SEQUENCES = {"cpu": 512, "cuda": constants.VLLM_SEQUENCES}
"""At a time, where rollout.max_num_seqs is not set."""

BATCHED_TOKENS = 4096
"""Of prompts that go through a CPU at once."""

GIB = 2**30


def refuse_impossible(config: TrainConfig, device: torch.device) -> None:
    """Refuse settings that vLLM cannot follow on a device.

    Raises:
        VllmError: names the setting and the reason.
    """
    vllm = config.vllm
    if device.type == "cuda" and device.index:
        raise VllmError(
            f"vLLM takes the first GPU that it sees, not run.device={config.run.device}; set "
            f"CUDA_VISIBLE_DEVICES={device.index} and run.device=cuda"
        )
    if device.type == "cpu":
        reasons = {
            "sleep_mode": "vLLM for the CPU has no sleep mode",
            "gpu_memory_gb": "there is no GPU",
            "cuda_graphs": "there are none without a GPU",
        }
        for name, reason in reasons.items():
            given = getattr(vllm, name)
            if given != getattr(VllmConfig(), name) and not (name == "sleep_mode" and given is False):
                raise VllmError(f"vllm.{name}={format_value(given)} means nothing on the CPU: {reason}; leave it out")
    elif 0 < (here := torch.cuda.device_count()) < vllm.tensor_parallel:  # none: they are on other machines
        raise VllmError(f"vllm.tensor_parallel={vllm.tensor_parallel}, but there are {here} GPUs")
    expands = any(allocator.expands(os.environ.get(name)) for name in allocator.VARIABLES)
    if vllm.sleep_mode and not vllm.separate_process and expands:
        raise VllmError(
            "vllm.sleep_mode=true in the trainer's process does not go with expandable segments; set "
            "vllm.separate_process=true, "
            f"or unset {' and '.join(allocator.VARIABLES)}"
        )


def settled(config: TrainConfig, language_model: LanguageModel, device: torch.device) -> VllmConfig:
    """`vllm.*` with what was left open decided: whether it sleeps, and on a GPU how much memory it has."""
    if device.type == "cpu":
        return replace(config.vllm, sleep_mode=False)
    total = torch.cuda.get_device_properties(device).total_memory
    model = language_model.model.config
    shape = spec_from_config(language_model.name, model.to_dict(), language_model.parameters)
    dtype = str(compute_dtype(config.model.dtype, device)).removeprefix("torch.")
    found = settle(shape, with_settings(config, {"model.dtype": dtype}), usable(total)).vllm
    assert found.gpu_memory_gb is not None
    if config.vllm.gpu_memory_gb is None:
        found = replace(found, gpu_memory_gb=min(found.gpu_memory_gb, constants.VLLM_SHARE * total / GB))
    return found


def longest_sequence(config: TrainConfig, language_model: LanguageModel) -> int:
    """Tokens of the longest sequence that may be asked for."""
    return min(language_model.context, config.data.max_prompt_tokens + config.rollout.max_completion_tokens)


def sequences_at_a_time(config: TrainConfig, device: torch.device) -> int:
    """How many vLLM may have under way; it takes fewer by itself where the cache has no room for more."""
    if config.rollout.max_num_seqs is not None:
        return config.rollout.max_num_seqs
    wanted = max(config.data.prompts_per_step * config.rollout.group_size, config.eval.num_problems)
    return min(wanted, MOST_SEQUENCES[device.type])


def engine_arguments(
    config: TrainConfig,
    vllm: VllmConfig,
    language_model: LanguageModel,
    *,
    directory: str,
    device: torch.device,
    dtype: str,
) -> dict[str, Any]:
    """Of vLLM's EngineArgs.

    Args:
        config: the run's.
        vllm: see `settled`.
        language_model: the policy's.
        directory: holds the model's config.json, and no weights.
        device: where vLLM runs.
        dtype: that it computes in.
    """
    longest = longest_sequence(config, language_model)
    arguments: dict[str, Any] = {
        "model": directory,
        "skip_tokenizer_init": True,  # it takes tokens and gives tokens
        "generation_config": "vllm",  # no sampling settings but ours
        "load_format": "dummy",
        "use_tqdm_on_load": False,
        "dtype": dtype,
        "seed": 0,
        "max_model_len": longest,
        "max_num_seqs": sequences_at_a_time(config, device),
        "tensor_parallel_size": vllm.tensor_parallel,
        # Left to itself, in an actor of Ray's it would ask Ray for GPUs, which are all given to the ranks.
        "distributed_executor_backend": "mp" if vllm.tensor_parallel > 1 else "uni",
        "enable_prefix_caching": True,  # a prompt's completions share its cache
        "logprobs_mode": logprobs_mode(config),
        "disable_log_stats": True,
        "worker_extension_cls": "tinyzero_trainer.rollout.vllm.worker_extension.WeightReceiver",
        "enforce_eager": device.type == "cpu" or not vllm.cuda_graphs,
    }
    if device.type == "cpu":
        # A prompt cut in two turns the random generator of its completion back, which those of a CPU cannot.
        whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(BATCHED_TOKENS, longest)}
        return arguments | whole
    assert vllm.gpu_memory_gb is not None
    total = torch.cuda.get_device_properties(device).total_memory
    arguments |= {
        "enable_sleep_mode": bool(vllm.sleep_mode),
        "gpu_memory_utilization": min(0.98, vllm.gpu_memory_gb * GB / total),
    }
    if vllm.cuda_graphs and arguments["max_num_seqs"] > GRAPHS_UP_TO:
        arguments["max_cudagraph_capture_size"] = arguments["max_num_seqs"]
    return arguments


def logprobs_mode(config: TrainConfig) -> str:
    """Which log-probabilities vLLM is to return, so that they are as `Rollout` has them.

    Its processed ones have the temperature applied, and top-p and top-k as well; its raw ones nothing at all. So where
    top-p or top-k restrict, the raw ones are ours at temperature 1, and at others config/ refuses to have any.
    """
    return "raw_logprobs" if config.rollout.top_p < 1 or config.rollout.top_k else "processed_logprobs"


def environment(
    config: TrainConfig, vllm: VllmConfig, language_model: LanguageModel, device: torch.device
) -> Mapping[str, str | None]:
    """Variables with which vLLM is started; None = it is not to see them. What the user has set of vLLM's own stays."""
    wanted = {LEVEL: "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if find_spec("flashinfer") is None:
        wanted["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if device.type == "cpu":
        wanted["VLLM_CPU_KVCACHE_SPACE"] = str(_cache_gib(config, language_model, device))
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the trainer takes turns with it on the same cores
    found: dict[str, str | None] = {name: value for name, value in wanted.items() if name not in os.environ}
    found[TRAINER] = str(os.getpid())
    found["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(vllm.separate_process))
    found["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would inherit the trainer's CUDA
    for name in allocator.VARIABLES:
        if allocator.expands(os.environ.get(name)):
            found[name] = allocator.without_expansion(os.environ[name]) or None
    return found


def _cache_gib(config: TrainConfig, language_model: LanguageModel, device: torch.device) -> int:
    """Whole GiB of host memory for the KV cache: for all sequences at a time, but at most 4."""
    shape = spec_from_config(language_model.name, language_model.model.config.to_dict(), language_model.parameters)
    longest = longest_sequence(config, language_model)
    need = sequences_at_a_time(config, device) * longest * shape.cache_numbers * 4  # in float32
    return max(1, min(4, math.ceil(need / GIB)))
