"""What no GPU can run: refused in planning, before the model or the GPUs are there. No torch.

What divides unevenly over several GPUs is refused in config/parallel.py.
"""

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of
from tinyzero_trainer.config.parallel import device_of, planned_dims, refuse_uneven
from tinyzero_trainer.estimate.workload import workload_on
from tinyzero_trainer.models.hub import context_of
from tinyzero_trainer.models.spec import ModelSpec, context_error


def refuse_or_note(spec: ModelSpec, config: TrainConfig, prompt_tokens: int | None, here: int) -> list[str]:
    """Refuse what no GPU can run.

    Args:
        spec: the model.
        config: of the run.
        prompt_tokens: see `workload_of`.
        here: GPUs that one process has.

    Returns:
        Warnings.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    refuse_too_few_gpus(config, here)
    refuse_uneven(config, spec.heads)
    refuse_beyond_context(spec, config, prompt_tokens)
    note = lora_note(spec, config)
    return [] if note is None else [note]


def refuse_cpu(config: TrainConfig) -> None:
    """Refuse to plan a run that uses no GPU.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    planned_dims(config)
    if device_of(config) == "cpu":
        what, instead = "run.device=cpu", "leave it out"
        if config.run.executor == "ray":
            what, instead = "a run on Ray with ray.gpus=0", "give --gpus N"
        raise SettingsError(f"{what} uses no GPU, and a plan is for GPUs; {instead}")


def refuse_beyond_context(spec: ModelSpec, config: TrainConfig, prompt_tokens: int | None = None) -> None:
    """Refuse sequences that exceed the model's context, as far as that is known.

    Raises:
        SettingsError: a prompt of the planned length and the longest completion exceed it.
    """
    work = workload_on(config, prompt_tokens)
    if spec.context is not None and work.sequence > spec.context:
        refused = context_error(spec.name, spec.context, work.prompt, work.completion)
        shorter = work.completion < spec.context and prompt_tokens is None
        raise SettingsError(refused + (", or give --prompt-tokens if yours are shorter" if shorter else ""))


def refuse_no_prompt(config: TrainConfig) -> None:
    """Refuse a run whose completions leave no tokens for a prompt, before its model is loaded.

    Raises:
        SettingsError: rollout.max_completion_tokens and one token more exceed the context that the model's
        config.json names.
    """
    path, most = config.model.path, config.rollout.max_completion_tokens
    context = context_of(path)
    if context is not None and 1 + most > context:
        name = TINY_MODEL if path is None or directory_of(path) is None else path
        raise SettingsError(context_error(name, context, 1, most))


def refuse_too_few_gpus(config: TrainConfig, here: int) -> None:
    """Refuse vLLM on several GPUs where one process has fewer.

    Args:
        config: of the run.
        here: GPUs that the process sees.

    Raises:
        SettingsError: says how many it takes.
    """
    takes = config.vllm.tensor_parallel
    if config.rollout.engine == "vllm" and config.run.executor != "ray" and takes > here:
        there = "the plan is for one" if here <= 1 else f"this machine has {here}"
        raise SettingsError(
            f"vllm.tensor_parallel={takes} takes {takes} GPUs, and {there}; give --gpus {takes}, or leave it out"
        )


def lora_note(spec: ModelSpec, config: TrainConfig) -> str | None:
    """A warning of an adapter whose rank exceeds that of every matrix it adapts; None = it does not."""
    targets, rank = config.lora.target_modules, config.lora.rank
    widths = [min(sizes) for name, sizes in spec.matrices.items() if not targets or name in targets]
    most = max(widths, default=rank)
    if rank <= most:
        return None
    return f"lora.rank={rank} is above {most}, the highest rank of a matrix of {spec.name}; give less"
