"""Builds the rollout engine `vllm` from the configuration and the policy's model."""

import atexit
import copy
import shutil
import tempfile
from pathlib import Path

from transformers import PreTrainedModel

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.vllm.engine import VllmEngine
from tinyzero_trainer.rollout.vllm.engine_args import engine_arguments, environment, settled
from tinyzero_trainer.rollout.vllm.log import EngineLog
from tinyzero_trainer.rollout.vllm.sync_check import make_check
from tinyzero_trainer.rollout.weight_sync import WeightSource, plain_class


def build_vllm(
    config: TrainConfig,
    language_model: LanguageModel,
    source: WeightSource,
    number: int = 0,
) -> VllmEngine:
    """Start vLLM with the weights that the model has now.

    Args:
        config: the output of vLLM's process goes to a file in the run directory, if that exists.
        language_model: the policy's.
        source: yields its weights.
        number: which of the run's engines it is; each has a log of its own.

    Raises:
        EngineDiedError: it does not start.
    """
    device = device_of(language_model.model)
    vllm = settled(config, language_model, device)
    dtype = compute_dtype(config.model.dtype, device)
    folder = Path(tempfile.mkdtemp(prefix="tinyzero-vllm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_config(language_model.model, folder / "model")
    run = Path(config.run.output)
    log = EngineLog(
        (run if config.run.output and run.is_dir() else folder) / (f"vllm_{number}.log" if number else "vllm.log")
    )
    arguments = engine_arguments(
        config,
        vllm,
        language_model,
        directory=str(folder / "model"),
        device=device,
        dtype=str(dtype).removeprefix("torch."),
    )
    variables = environment(config, vllm, language_model, device)
    return VllmEngine(
        VllmClient(arguments, variables, separate_process=vllm.separate_process, log=log),
        source,
        eos_ids=language_model.eos_ids,
        timeout=vllm.timeout if vllm.separate_process else None,
        sleep_mode=bool(vllm.sleep_mode),
        log_reason=log.reason,
        check=make_check(language_model, dtype) if vllm.verify_weights else None,
    )


def write_config(model: PreTrainedModel, directory: Path) -> None:
    """Write a model's config.json for vLLM, which chooses its own implementation by the class that it names."""
    config = copy.deepcopy(model.config)
    config.architectures = [plain_class(model).__name__]
    config.save_pretrained(directory)
