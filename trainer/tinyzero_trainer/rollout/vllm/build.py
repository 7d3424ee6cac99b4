"""Builds the rollout engine `vllm`: what is refused, its arguments and its environment. vLLM is not imported."""

import atexit
import copy
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from tinyzero_sdk.settings import format_value
from tinyzero_trainer.config import TrainConfig, VllmConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed import cuda_allocator as allocator
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.spec import spec_from_config
from tinyzero_trainer.rollout.build import Architecture
from tinyzero_trainer.rollout.sizes import GB
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.cost_model import memory, settle
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.kind import MAX_SEQUENCES
from tinyzero_trainer.rollout.vllm.log import LEVEL, EngineLog
from tinyzero_trainer.rollout.vllm.parent_watchdog import TRAINER
from tinyzero_trainer.rollout.vllm.sync_check import SyncCheck
from tinyzero_trainer.rollout.vllm.weight_transfer import BUCKET_BYTES
from tinyzero_trainer.rollout.weight_source import WeightSource, buckets
from tinyzero_trainer.utils.vllm_version import implementations, require_vllm, runs

GRAPHS_UP_TO = 512  # batch size up to which vLLM captures CUDA graphs by default
MAX_SEQUENCES_ON_CPU = 512
CPU_BATCHED_TOKENS = 4096
GIB = 2**30


def refuse(config: TrainConfig, device: torch.device, architecture: Architecture | None) -> None:
    """Refuse what vLLM does not support on this device, and a model that it does not run."""
    vllm = config.vllm
    if device.type == "cuda" and device.index:
        raise VllmError(
            f"vLLM takes the first GPU that it sees, not run.device={config.run.device}; set "
            f"CUDA_VISIBLE_DEVICES={device.index} and run.device=cuda"
        )
    if device.type == "cpu":
        unset = VllmConfig()
        for name in ("sleep_mode", "gpu_memory_gb", "cuda_graphs"):
            value = getattr(vllm, name)
            if value != getattr(unset, name) and not (name == "sleep_mode" and value is False):
                raise VllmError(f"vllm.{name}={format_value(value)} has no effect on the CPU; leave it out")
    elif 0 < (here := torch.cuda.device_count()) < vllm.tensor_parallel:  # 0: they are on other machines
        raise VllmError(f"vllm.tensor_parallel={vllm.tensor_parallel}, but there are {here} GPUs")
    expands = any(allocator.expands(os.environ.get(name)) for name in allocator.VARIABLES)
    if vllm.sleep_mode is True and not vllm.separate_process and expands:
        raise VllmError(
            "vllm.sleep_mode=true in the trainer's process does not go with expandable segments; set "
            f"vllm.separate_process=true, or unset {' and '.join(allocator.VARIABLES)}"
        )
    if architecture is not None:
        refuse_architecture(config, architecture()[1])


def build(
    config: TrainConfig, language_model: LanguageModel, report: Callable[[str], None], source: WeightSource, number: int
) -> VllmEngine:
    """`build_engine` for `rollout.engine=vllm`."""
    device = device_of(language_model.model)
    config, dtype = settled(config, language_model, device), compute_dtype(config.model.dtype, device)
    vllm = config.vllm
    folder, run = Path(tempfile.mkdtemp(prefix="tinyzero-vllm-")), Path(config.run.output)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model_config = copy.deepcopy(language_model.model.config)
    # vLLM chooses its own implementation by the name of the class.
    model_config.architectures = [type(language_model.model).__name__]
    model_config.save_pretrained(folder / "model")
    logs = run if config.run.output and run.is_dir() else folder
    log = EngineLog(logs / (f"vllm_{number}.log" if number else "vllm.log"))
    client = VllmClient(
        engine_arguments(config, language_model, str(folder / "model"), device),
        environment(config, language_model, device),
        language_model.eos_ids,
        separate_process=vllm.separate_process,
        log=log,
    )
    limit = BUCKET_BYTES if device.type == "cuda" else sys.maxsize  # a CPU's worker cannot load some of them at a time
    return VllmEngine(
        client,
        lambda: buckets(source(), dtype, limit),
        timeout=vllm.timeout if vllm.separate_process else None,
        sleep_mode=vllm.sleep_mode is True,
        log_reason=log.reason,
        check=SyncCheck(language_model, dtype) if vllm.verify_weights else None,
    )


def refuse_architecture(config: TrainConfig, kind: type[PreTrainedModel]) -> None:
    """Raise a VllmError if vLLM cannot run models of this class, as far as its source shows."""
    name, known = kind.__name__, implementations()
    if not runs(kind):
        raise VllmError(
            f"vLLM {require_vllm()} does not run {name}, the model's architecture; take rollout.engine=torch"
        )
    if known and known.get(name) in (None, "transformers") and not config.vllm.separate_process:
        raise VllmError(
            f"vLLM runs {name}, the model's architecture, through transformers' own classes, which it changes for all "
            "of its process; leave out vllm.separate_process=false"
        )


def settled(config: TrainConfig, language_model: LanguageModel, device: torch.device) -> TrainConfig:
    """The configuration with values for `vllm.*` that are left to vLLM, by what this GPU has free."""
    if device.type == "cpu":
        return replace(config, vllm=replace(config.vllm, sleep_mode=False))
    model = language_model.model.config
    spec = spec_from_config(language_model.name, model.to_dict(), language_model.parameters)
    typed = with_settings(config, {"model.dtype": _dtype(config, device)})
    work, (free, total) = workload_of(typed), torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by the update only

    def held(candidate: TrainConfig) -> tuple[int, int]:
        engine = memory(spec, candidate, work)
        update, generation = sum(engine.asleep.values()), sum(engine.awake.values())
        return total - free + max(update, generation - reusable), total - free - reusable + generation

    return replace(config, vllm=settle(spec, typed, work, usable(total), held).vllm)


def _dtype(config: TrainConfig, device: torch.device) -> str:
    return str(compute_dtype(config.model.dtype, device)).removeprefix("torch.")


def longest_sequence(config: TrainConfig, language_model: LanguageModel) -> int:
    return min(language_model.context, config.data.max_prompt_tokens + config.rollout.max_completion_tokens)


def sequences_at_a_time(config: TrainConfig, device: torch.device) -> int:
    """How many vLLM may generate at a time; it takes fewer by itself if its cache is too small."""
    if config.rollout.max_num_seqs != "auto":
        return config.rollout.max_num_seqs
    wanted = max(config.data.prompts_per_step * config.rollout.group_size, config.eval.num_problems)
    return min(wanted, MAX_SEQUENCES if device.type == "cuda" else MAX_SEQUENCES_ON_CPU)


def engine_arguments(
    config: TrainConfig, language_model: LanguageModel, directory: str, device: torch.device
) -> dict[str, Any]:
    """vLLM's arguments for a `settled` configuration and a model whose description is in `directory`."""
    # Our log-probabilities are those before top-p and top-k, with the temperature applied. vLLM's processed ones have
    # all three applied, its raw ones none: the latter are ours at temperature 1, and config/ refuses the other cases.
    restricted = config.rollout.top_p < 1 or config.rollout.top_k
    vllm, longest = config.vllm, longest_sequence(config, language_model)
    arguments: dict[str, Any] = {
        "model": directory,
        "skip_tokenizer_init": True,  # tokens in, tokens out
        "generation_config": "vllm",  # only our sampling settings
        "load_format": "dummy",
        "use_tqdm_on_load": False,
        "dtype": _dtype(config, device),
        "seed": 0,
        "max_model_len": longest,
        "max_num_seqs": sequences_at_a_time(config, device),
        "tensor_parallel_size": vllm.tensor_parallel,
        # By default, in a Ray actor it would request GPUs from Ray, which has assigned all of them to the ranks.
        "distributed_executor_backend": "mp" if vllm.tensor_parallel > 1 else "uni",
        "enable_prefix_caching": True,  # a prompt's completions share its cache
        "logprobs_mode": "raw_logprobs" if restricted else "processed_logprobs",
        "disable_log_stats": True,
        "worker_extension_cls": "tinyzero_trainer.rollout.vllm.worker_extension.WeightReceiver",
        "enforce_eager": device.type == "cpu" or not vllm.cuda_graphs,
    }
    if device.type == "cpu":
        # A chunked prompt rewinds the random generator of its completion, which is impossible on a CPU.
        batched_tokens = max(CPU_BATCHED_TOKENS, longest)
        return arguments | {"enable_chunked_prefill": False, "max_num_batched_tokens": batched_tokens}
    assert vllm.gpu_memory_gb != "auto"
    total = torch.cuda.get_device_properties(device).total_memory
    arguments |= {
        "kv_cache_dtype": config.rollout.kv_cache_dtype or "auto",
        "enable_sleep_mode": vllm.sleep_mode is True,
        "gpu_memory_utilization": min(0.98, vllm.gpu_memory_gb * GB / total),
    }
    if vllm.cuda_graphs and arguments["max_num_seqs"] > GRAPHS_UP_TO:
        arguments["max_cudagraph_capture_size"] = arguments["max_num_seqs"]
    return arguments


def environment(config: TrainConfig, language_model: LanguageModel, device: torch.device) -> Mapping[str, str | None]:
    """Variables for vLLM's start; None = unset. vLLM's own stay as the user has set them."""
    wanted = {LEVEL: "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    if find_spec("flashinfer") is None:
        wanted["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if device.type == "cpu":
        # Whole GiB for the KV cache, in float32: for all sequences at a time, but at most 4.
        spec = spec_from_config(language_model.name, language_model.model.config.to_dict(), language_model.parameters)
        tokens = sequences_at_a_time(config, device) * longest_sequence(config, language_model)
        wanted["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, min(4, math.ceil(4 * tokens * spec.cache_numbers / GIB))))
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the trainer time-shares the cores with it
    variables: dict[str, str | None] = {name: value for name, value in wanted.items() if name not in os.environ}
    variables |= {
        TRAINER: str(os.getpid()),
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(config.vllm.separate_process)),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit the trainer's CUDA
    }
    for name in allocator.VARIABLES:
        if allocator.expands(os.environ.get(name)):
            variables[name] = allocator.without_expansion(os.environ[name]) or None
    return variables
