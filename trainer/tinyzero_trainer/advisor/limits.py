"""What no GPU can run: refused in planning, before the model or the GPUs are there. No torch.

What divides unevenly over several GPUs is refused in distributed/parallel_dims.py.
"""

from pathlib import Path

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of, is_path
from tinyzero_trainer.distributed.parallel_dims import device_of, planned_dims, refuse_uneven
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu import lacks_fp8
from tinyzero_trainer.models.hub import config_of, refuse_unreachable
from tinyzero_trainer.models.spec import ModelSpec, context_error, context_in, refuse_untrainable


def refuse_impossible(spec: ModelSpec, config: TrainConfig, prompt_tokens: int | None, visible: int) -> None:
    """Refuse what no GPU can run, where one process sees `visible` GPUs; for `prompt_tokens` see `workload_of`.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    takes = config.vllm.tensor_parallel
    if not config.run.kind.own_processes and takes > visible and takes > 1:
        available = "the plan is for one" if visible <= 1 else f"this machine has {visible}"
        raise SettingsError(
            f"vllm.tensor_parallel={takes} takes {takes} GPUs, and {available}; give --gpus {takes}, or leave it out"
        )
    refuse_uneven("parallel.sequence_parallel", config.parallel.sequence_parallel, spec.heads)
    refuse_uneven("vllm.tensor_parallel", takes, spec.heads)
    work = workload_of(config, prompt_tokens)
    if spec.context is not None and work.sequence > spec.context:
        refused = context_error(spec.name, spec.context, work.prompt, work.completion)
        shorter = work.completion < spec.context and prompt_tokens is None
        raise SettingsError(refused + (", or give --prompt-tokens if yours are shorter" if shorter else ""))


def refuse_fp8(config: TrainConfig, target: TargetGpu) -> None:
    """Refuse what computes in 8 bits for a GPU that cannot.

    Raises:
        SettingsError: names the setting.
    """
    settings = ["model.float8=rowwise"] if config.model.float8 else []
    engine = config.rollout.kind
    if engine.fp8_gpu_only:
        settings += [f"{setting} with rollout.engine={engine.name}" for setting in config.rollout.in_fp8]
    for setting in settings:
        if problem := lacks_fp8(setting, target.capability, f"the {target.spec.name}" if target.spec else target.name):
            raise SettingsError(problem)


def refuse_cpu(config: TrainConfig) -> None:
    """Refuse to plan a run that uses no GPU.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    planned_dims(config)
    if device_of(config) == "cpu":
        what, instead = "run.device=cpu", "leave it out"
        if config.run.kind.own_processes:
            what, instead = "a run on Ray with ray.gpus=0", "give --gpus N"
        raise SettingsError(f"{what} uses no GPU, and a plan is for GPUs; {instead}")


def refuse_model(config: TrainConfig, *, resume: bool) -> None:
    """Refuse what a model's config.json rules out, before PyTorch is loaded; `models.hub.architecture` refuses more.

    Raises:
        SettingsError: there is no such model, its weights are quantised, or it is an encoder; or completions of
            rollout.max_completion_tokens leave its context no token for a prompt.
    """
    most = config.rollout.max_completion_tokens
    for needed in config.models_to_resume if resume and config.ray.address is None else ():
        if is_path(needed) and not Path(needed).expanduser().is_dir():
            raise SettingsError(
                f"{needed} has been deleted, which this run must load to be resumed; restore it, or start a run in "
                "another --output"
            )
    for path in (config.model.path, *filter(None, [config.model.teacher])):
        # A resumed run may do without it, and a cluster may have it elsewhere.
        if not resume and config.ray.address is None:
            refuse_unreachable(path)
        name = TINY_MODEL if path is None or directory_of(path) is None else path
        content = config_of(path)
        refuse_untrainable(name, content)
        context = context_in(content)
        if config.task_specs and context is not None and 1 + most > context:
            raise SettingsError(context_error(name, context, 1, most))
