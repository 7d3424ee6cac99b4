"""Builds the rollout engine `vllm` from the configuration and the policy's model."""

import atexit
import copy
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.build import Architecture
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.engine_args import (
    engine_arguments,
    environment,
    refuse_architecture,
    refuse_impossible,
    settled,
)
from tinyzero_trainer.rollout.vllm.log import EngineLog
from tinyzero_trainer.rollout.vllm.sync_check import SyncCheck
from tinyzero_trainer.rollout.vllm.weight_transfer import BUCKET_BYTES
from tinyzero_trainer.rollout.weight_source import WeightSource, buckets


def refuse(config: TrainConfig, device: torch.device, architecture: Architecture | None) -> None:
    """See rollout/build.py; refuses what vLLM does not support on this device, and a model that it does not run."""
    refuse_impossible(config, device)
    if architecture is not None:
        refuse_architecture(config, architecture()[1])


def build(
    config: TrainConfig,
    language_model: LanguageModel,
    report: Callable[[str], None],
    source: WeightSource,
    number: int = 0,
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
