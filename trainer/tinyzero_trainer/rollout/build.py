"""Chooses and builds the rollout engine of a run.

A new engine implements `RolloutEngine` (engine.py), is built here, and has its name in `RolloutConfig.engine`
(config/rollout.py). What it cannot do is refused in config/unused.py, and what it takes of a GPU is in advisor/.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.advisor.constants import CONTEXT
from tinyzero_trainer.advisor.engine_memory import FEW_SEQUENCES
from tinyzero_trainer.advisor.fit import engine_keeps, usable
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.hardware.gpu import lacks_fp8
from tinyzero_trainer.models.hub import architecture
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.spec import spec_from_config
from tinyzero_trainer.rollout.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.cuda_graph.fp8_products import Fp8Weights
from tinyzero_trainer.rollout.cuda_graph.kv_capacity import FreeMemory
from tinyzero_trainer.rollout.decoder import FusedDecoder
from tinyzero_trainer.rollout.engine import RolloutEngine
from tinyzero_trainer.rollout.torch_engine import TorchEngine
from tinyzero_trainer.rollout.weight_source import WeightSource, named_weights
from tinyzero_trainer.utils.bounds import given
from tinyzero_trainer.utils.vllm_version import require_vllm


def require_engine(config: TrainConfig, device: torch.device, *, here: bool = True) -> None:
    """Check, before a model is loaded, that the engine is installed (if it runs here) and supports the settings.

    Raises:
        VllmMissingError: vLLM is not installed, or too old.
        VllmError: a setting is not possible on this device.
        TinyZeroError: the same of the engine `torch`.
    """
    assert config.rollout.engine != "auto", "advisor/engine_choice.py chooses one before"
    if config.rollout.engine == "vllm":
        from tinyzero_trainer.rollout.vllm.engine_args import refuse_impossible

        if here:
            require_vllm()
        refuse_impossible(config, device)
    for setting in config.rollout.in_fp8:
        if device.type == "cpu":
            raise TinyZeroError(f"{setting} has no effect on the CPU; leave it out")
        found = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
        if config.rollout.engine == "torch" and (problem := lacks_fp8(f"{setting} with rollout.engine=torch", found)):
            raise TinyZeroError(problem)


def require_architecture(config: TrainConfig, model: str | None) -> None:
    """The same for the engine and the architecture of a `model.path`, which is read from its config.json.

    Raises:
        VllmError: vLLM does not run it.
        TinyZeroError: rollout.quantization does not fit it.
    """
    if config.rollout.engine != "vllm" and not config.rollout.quantization:
        return
    with suppress(OSError, ValueError):  # loading the model says what is wrong with its files
        sizes, network = architecture(model)
        if config.rollout.engine == "vllm":
            from tinyzero_trainer.rollout.vllm.engine_args import refuse_architecture

            refuse_architecture(config, network)
        else:
            _refuse_misfit(config, sizes)


def _refuse_misfit(config: TrainConfig, sizes: Any) -> None:
    """`sizes` is the model's configuration, of transformers."""
    if config.rollout.quantization and (misfit := Fp8Weights.misfit(sizes)):
        raise TinyZeroError(f"rollout.quantization=fp8 does not fit this model: {misfit}; leave it out")


def build_engine(
    config: TrainConfig,
    language_model: LanguageModel,
    report: Callable[[str], None] = lambda _: None,
    *,
    source: WeightSource | None = None,
    number: int = 0,
) -> RolloutEngine:
    """The engine that `rollout.engine` names, with the model's current weights.

    Args:
        language_model: the policy's.
        report: receives messages for the user.
        source: yields the policy's weights; None = `named_weights`.
        number: index of the engine in the run.

    Raises:
        VllmMissingError: see `require_engine`.
        VllmError: see there; or vLLM does not start.
    """
    model = language_model.model
    device = device_of(model)
    require_engine(config, device)
    source = source or partial(named_weights, model)
    if config.rollout.engine == "vllm":
        from tinyzero_trainer.rollout.vllm.build import build_vllm
        from tinyzero_trainer.rollout.vllm.engine_args import refuse_architecture

        refuse_architecture(config, type(model))
        return build_vllm(config, language_model, source, number)
    if device.type == "cuda":
        if FusedDecoder.fits(model):
            _refuse_misfit(config, model.config)
            ahead = config.rollout.max_async_level > 0  # what is sampled over several updates leaves them their memory
            return GraphEngine(
                language_model,
                source,
                dtype=compute_dtype(config.model.dtype, device),
                device=device,
                fp8_cache=config.rollout.kv_cache_dtype == "fp8",
                fp8_products=config.rollout.quantization == "fp8",
                max_num_seqs=given(config.rollout.max_num_seqs),
                keep_memory=ahead or _keeps_memory(config, language_model, device),
                memory=(lambda: replace(FreeMemory.of(device), reusable=0)) if ahead else None,
                report=report,
            )
        if settings := config.rollout.in_fp8:
            advice = "leave it out" + ("" if config.rollout.quantization else ", or use rollout.engine=vllm")
            raise TinyZeroError(
                f"{' and '.join(settings)} with rollout.engine=torch needs CUDA graphs, which {type(model).__name__} "
                f"has not as this model is set up; {advice}"
            )
        report(
            f"rollout.engine=torch has no CUDA graphs for {type(model).__name__} as this model is set up, so "
            "completions are generated slowly; rollout.engine=vllm is faster"
        )
    return TorchEngine(language_model, max_num_seqs=given(config.rollout.max_num_seqs) or FEW_SEQUENCES)


def _keeps_memory(config: TrainConfig, language_model: LanguageModel, device: torch.device) -> bool:
    """What the plan says, so that a run takes what was planned; where too little is free, the engine sees by itself."""
    model = language_model.model
    spec = spec_from_config(language_model.name, model.config.to_dict(), model.num_parameters())
    free, _ = torch.cuda.mem_get_info(device)
    limit = usable(free + torch.cuda.memory_reserved(device) + CONTEXT)
    return engine_keeps(spec, config, limit, gpu=planned_dims(config).generating)
