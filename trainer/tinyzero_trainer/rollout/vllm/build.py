"""Builds the rollout engine `vllm` from the configuration and the policy's model."""

import atexit
import copy
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.engine_args import engine_arguments, environment, settled
from tinyzero_trainer.rollout.vllm.log import EngineLog
from tinyzero_trainer.rollout.vllm.sync_check import check_weights
from tinyzero_trainer.rollout.weight_sync import WeightSource


def build_vllm(config: TrainConfig, language_model: LanguageModel, source: WeightSource, number: int = 0) -> VllmEngine:
    """Start vLLM with the model's current weights."""
    device = device_of(language_model.model)
    vllm, dtype = settled(config, language_model, device), compute_dtype(config.model.dtype, device)
    folder, run = Path(tempfile.mkdtemp(prefix="tinyzero-vllm-")), Path(config.run.output)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model_config = copy.deepcopy(language_model.model.config)
    # vLLM chooses its own implementation by the name of the class.
    model_config.architectures = [type(language_model.model).__name__]
    model_config.save_pretrained(folder / "model")
    log = EngineLog(
        (run if config.run.output and run.is_dir() else folder) / (f"vllm_{number}.log" if number else "vllm.log")
    )
    client = VllmClient(
        engine_arguments(
            config,
            vllm,
            language_model,
            directory=str(folder / "model"),
            device=device,
            dtype=str(dtype).removeprefix("torch."),
        ),
        environment(config, vllm, language_model, device),
        separate_process=vllm.separate_process,
        log=log,
    )
    return VllmEngine(
        client,
        source,
        eos_ids=language_model.eos_ids,
        timeout=vllm.timeout if vllm.separate_process else None,
        sleep_mode=bool(vllm.sleep_mode),
        log_reason=log.reason,
        check=partial(check_weights, language_model, dtype) if vllm.verify_weights else None,
    )
