"""Chooses the rollout engine for `rollout.engine=auto`: of those that can be used, the faster one by measurements.

`benchmarks/engines.py` writes the table, engine_speeds.toml.
"""

import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import hypot, log
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.advisor.target_gpu import present_gpu
from tinyzero_trainer.config import TrainConfig, VllmConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.parallel_dims import device_of
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models.hub import architecture, find_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.utils.vllm_version import VllmMissingError, require_vllm, runs

SPEEDS = Path(__file__).with_name("engine_speeds.toml")
FAR = 4.0
"""Factor in the number of parameters beyond which a measurement says nothing about a model."""

Sizes = tuple[int, int, int, int]
"""Parameters, completions generated at a time, and tokens of a prompt and of a completion."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Tokens per second of both engines for the same completions, in bfloat16 and without log-probabilities."""

    gpu: str
    """As the driver names it."""

    parameters: int
    completions: int
    """Generated at a time."""

    prompt_tokens: int
    completion_tokens: int
    date: str
    torch: int | None = None
    """Tokens/s of the engine `torch`; None = it could not be measured."""

    vllm: int | None = None
    torch_version: str = ""
    vllm_version: str = ""

    @property
    def sizes(self) -> Sizes:
        return self.parameters, self.completions, self.prompt_tokens, self.completion_tokens

    @property
    def about(self) -> str:
        """Sizes and GPU, as text."""
        million = self.parameters / 1e6
        model = f"{million:.2g}M" if million < 100 else f"{million / 1e3:.2g}B"
        tokens = f"{self.completions:,} × ({self.prompt_tokens:,} + {self.completion_tokens:,}) tokens"
        return f"{model}, {tokens} on {self.gpu}"

    @property
    def is_complete(self) -> bool:
        """Whether both engines were measured."""
        return self.torch is not None and self.vllm is not None


def read_speeds(file: Path = SPEEDS) -> list[EngineSpeed]:
    """The rows of a table of measurements."""
    return [EngineSpeed(**row) for row in tomllib.loads(file.read_text(encoding="utf-8"))["speeds"]]


def nearest(speeds: Iterable[EngineSpeed], sizes: Sizes, gpu: str | None = None) -> EngineSpeed | None:
    """The complete row with the nearest sizes, of this GPU if one has been measured on it, else of any.

    None if no model of about this size (`FAR`) has been measured.
    """
    complete = [row for row in speeds if row.is_complete and 1 / FAR <= row.parameters / sizes[0] <= FAR]
    of_gpu = [
        row
        for row in complete
        if gpu is not None and (find_gpu_spec(row.gpu) or row.gpu) == (find_gpu_spec(gpu) or gpu)
    ]

    def distance(row: EngineSpeed) -> float:
        return hypot(*(log(a / b) for a, b in zip(row.sizes, sizes, strict=True)))

    return min(of_gpu or complete, key=distance, default=None)


def resolve_engine(config: TrainConfig, *model_and_gpu: Any, elsewhere: bool = False) -> tuple[TrainConfig, str]:
    """The configuration with the engine of `choose_engine` for `rollout.engine=auto`, and why; "" if one is given."""
    if config.rollout.engine != "auto":
        return config, ""
    engine, reason = choose_engine(config, *model_and_gpu, elsewhere=elsewhere)
    return with_settings(config, {"rollout.engine": engine}), reason


def choose_engine(
    config: TrainConfig,
    spec: ModelSpec | None = None,
    gpu: str | None = None,
    prompt_tokens: int | None = None,
    *,
    elsewhere: bool = False,
) -> tuple[str, str]:
    """The engine for `rollout.engine=auto`, and the reason.

    Args:
        spec: of a model that does not exist yet; None = the configuration's.
        gpu: name of the GPU; None = this machine's.
        prompt_tokens: see `workload_of`.
        elsewhere: another machine is meant, where vLLM counts as installed.

    Raises:
        VllmMissingError, SettingsError: a setting of vLLM's is given, and vLLM is not installed or cannot be used.
    """
    elsewhere = elsewhere or config.ray.address is not None
    default, refusal = VllmConfig(), _refusal(config)
    for key, value in vars(config.vllm).items():
        if value != getattr(default, key):
            option = f"vllm.{key}={format_value(value)}"
            if refusal:
                raise SettingsError(f"{option} is for rollout.engine=vllm, but {refusal}")
            if not elsewhere:
                require_vllm()
            return "vllm", f"for {option}"
    uses_gpu = device_of(config) != "cpu"
    if uses_gpu and gpu is None:
        here = present_gpu(config.run.device)
        uses_gpu, gpu = here is not None or config.run.kind.own_processes, here.name if here else None
    if not uses_gpu:
        return "torch", "no GPU is used"
    try:
        if not elsewhere:
            require_vllm()
        spec = spec or find_spec(config.model.path)
    except TinyZeroError as error:  # loading the model says what is wrong with it
        refusal = str(error) if isinstance(error, VllmMissingError) else "the model's sizes are not known"
    if refusal or spec is None:
        return "torch", refusal.partition(";")[0]
    if not spec.graphs:
        with suppress(TinyZeroError, OSError, ValueError):  # loading the model says what is wrong with its files
            if runs(architecture(config.model.path)[1]):
                return "vllm", "the engine torch has no CUDA graphs for this architecture"
        return "torch", "vLLM does not run this architecture"
    work = workload_of(config, prompt_tokens)
    sizes = (spec.parameters, work.trained_at_a_time, work.prompt, work.completion)
    row = nearest(read_speeds(), sizes, gpu)
    if row is None or row.torch is None or row.vllm is None:
        return "torch", "no model of about this size has been measured"
    engine, slower = ("vllm", "torch") if row.vllm > row.torch else ("torch", "vllm")
    factor = max(row.vllm / row.torch, row.torch / row.vllm)
    return engine, f"{factor:#.3g} times as fast as {slower} at the nearest sizes measured: {row.about}"


def _refusal(config: TrainConfig) -> str:
    """Why vLLM cannot do what the configuration asks for, and what to do; empty if it can."""
    if config.run.device.partition(":")[2] not in ("", "0"):
        return f"vLLM takes the first GPU that it sees, not run.device={config.run.device}; set CUDA_VISIBLE_DEVICES"
    try:
        with_settings(config, {"rollout.engine": "vllm"})
    except ValueError as error:
        return str(error)
    return ""
