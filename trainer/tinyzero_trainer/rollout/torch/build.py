"""Builds the rollout engine `torch`: with CUDA graphs where the model has them and there is a GPU."""

from collections.abc import Callable
from dataclasses import replace

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.hardware.gpu import lacks_fp8
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.build import Architecture
from tinyzero_trainer.rollout.engine import RolloutEngine
from tinyzero_trainer.rollout.torch.cost_model import FEW_SEQUENCES
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import Fp8Weights
from tinyzero_trainer.rollout.torch.cuda_graph.kv_capacity import FreeMemory
from tinyzero_trainer.rollout.torch.decoder import FusedDecoder
from tinyzero_trainer.rollout.torch.torch_engine import TorchEngine
from tinyzero_trainer.rollout.weight_source import WeightSource
from tinyzero_trainer.utils.bounds import unless_auto


def refuse(config: TrainConfig, device: torch.device, architecture: Architecture | None) -> None:
    """Refuse fp8 on a GPU that lacks it, and products in fp8 for models that they do not fit."""
    for setting in config.rollout.in_fp8:
        capability = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
        if problem := lacks_fp8(f"{setting} with rollout.engine=torch", capability):
            raise TinyZeroError(problem)
    if config.rollout.quantization and architecture and (misfit := Fp8Weights.misfit(architecture()[0])):
        raise TinyZeroError(f"rollout.quantization=fp8 does not fit this model: {misfit}; leave it out")


def build(
    config: TrainConfig, language_model: LanguageModel, report: Callable[[str], None], source: WeightSource, number: int
) -> RolloutEngine:
    """`build_engine` for `rollout.engine=torch`."""
    model = language_model.model
    device = device_of(model)
    if device.type == "cuda" and FusedDecoder.fits(model):
        ahead = config.rollout.max_async_level > 0  # what is sampled over several updates leaves them their memory
        return GraphEngine(
            language_model,
            source,
            dtype=compute_dtype(config.model.dtype, device),
            device=device,
            fp8_cache=config.rollout.kv_cache_dtype == "fp8",
            fp8_products=config.rollout.quantization == "fp8",
            max_num_seqs=unless_auto(config.rollout.max_num_seqs),
            keep_memory=ahead or config.memory.offload is None,
            memory=(lambda: replace(FreeMemory.of(device), reusable=0)) if ahead else None,
            report=report,
        )
    if device.type == "cuda":
        name = type(model).__name__
        if settings := " and ".join(config.rollout.in_fp8):
            raise TinyZeroError(f"{settings} needs CUDA graphs; rollout.engine=torch has none for {name}; leave it out")
        report(
            f"rollout.engine=torch has no CUDA graphs for {name} as this model is set up, so completions are generated "
            "slowly; rollout.engine=vllm is faster"
        )
    return TorchEngine(language_model, max_num_seqs=unless_auto(config.rollout.max_num_seqs) or FEW_SEQUENCES)
