"""The checks that need the real vLLM. Run as a script where it is, by `checks.Shared`; prints a line of JSON."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.trainer.architectures.checks import NO, YES, check_engine
from tests.trainer.architectures.tiny import ARCHITECTURES, tiny
from tests.trainer.configurations import changed
from tinyzero_trainer.errors import EngineError
from tinyzero_trainer.models.loading import save_model
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.vllm import build
from tinyzero_trainer.rollout.vllm.build import engine_arguments, refuse_architecture
from tinyzero_trainer.rollout.weight_source import named_weights

TOLERANCE = 1e-3
"""Of log-probabilities, in float32."""


def cells(name: str, directory: Path, device: str) -> dict[str, str]:
    """vLLM generates what transformers does from the saved model, and again after new weights were sent."""
    language_model = tiny(name, device)
    save_model(directory, language_model)
    values: dict[str, Any] = {
        "run": {"task": "countdown", "device": device, "output": str(directory)},
        "model": {"path": str(directory), "dtype": "float32"},
        "data": {"max_prompt_tokens": 64},
        "rollout": {"engine": "vllm", "max_completion_tokens": 48, "max_num_seqs": 64, "return_logprobs": "always"},
        "vllm": {"separate_process": False},
    }
    if device == "cuda":
        values["vllm"] |= {"gpu_memory_gb": 4.0, "sleep_mode": False, "cuda_graphs": False}
    shown = {"vllm_in_process": YES}
    try:
        refuse_architecture(changed(values, {}), type(language_model.model))
    except EngineError:
        shown["vllm_in_process"], values["vllm"]["separate_process"] = NO, True
    weights: list[Any] = []
    build.engine_arguments = lambda *given: {  # type: ignore[assignment]
        **engine_arguments(*given),
        "model": str(directory),
        "load_format": "safetensors",
    }
    engine = build_engine(changed(values, {}), language_model, source=lambda: iter(weights))
    try:
        shown["vllm_reads"] = check_engine(engine, language_model, TOLERANCE)
        with torch.no_grad():
            for parameter in language_model.model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        weights += [(key, value.clone()) for key, value in named_weights(language_model.model)]
        engine.load_weights()
        shown["vllm"] = check_engine(engine, language_model, TOLERANCE)
    finally:
        engine.close()
    return shown


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    device, *names = sys.argv[1:]
    found: dict[str, dict[str, str]] = {}
    for name in names or ARCHITECTURES:
        try:
            found[name] = cells(name, Path.cwd() / name, device)
        except Exception as error:  # the others are checked all the same
            found[name] = {key: f"{type(error).__name__}: {error}" for key in ("vllm", "vllm_reads", "vllm_in_process")}
    print(json.dumps(found))
