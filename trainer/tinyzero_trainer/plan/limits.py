"""What a run would be refused for once its model or its GPUs are there, said before. No torch.

What divides unevenly over several GPUs is refused in config/parallel.py.
"""

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of
from tinyzero_trainer.config.spread import device_of, refuse_uneven, spread_of
from tinyzero_trainer.estimate.workload import workload_on
from tinyzero_trainer.models.hub import context_of
from tinyzero_trainer.models.spec import ModelSpec, context_error


def refuse_or_note(shape: ModelSpec, config: TrainConfig, prompt_tokens: int | None, here: int) -> list[str]:
    """Refuse a plan of what cannot be run on any card; what it is to be warned of is returned.

    Args:
        shape: the model's.
        config: of the run.
        prompt_tokens: see `work_of`.
        here: GPUs that one process has.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    refuse_one_card(config, here)
    refuse_uneven(config, shape.heads)
    refuse_beyond_context(shape, config, prompt_tokens)
    note = lora_note(shape, config)
    return [] if note is None else [note]


def refuse_cards(config: TrainConfig, nodes: int | None) -> None:
    """Refuse a run that has no card to plan for, and machines that its cards cannot be in.

    Args:
        config: of the run.
        nodes: machines that the user names, or None.

    Raises:
        ParallelError, SettingsError: says what to change.
    """
    cards, takes = spread_of(config).cards, config.vllm.tensor_parallel
    if device_of(config) == "cpu":
        what, instead = "run.device=cpu", "leave it out"
        if config.run.executor == "ray":
            what, instead = "a run on Ray with ray.gpus=0", "give --gpus N"
        raise SettingsError(f"{what} uses no GPU, and plans are of GPUs; {instead}")
    if nodes is None or nodes == 1:
        return
    if cards == 1:
        raise SettingsError(
            f"--nodes {nodes} is of several GPUs, and one is planned for; give --gpus N, or leave it out"
        )
    if nodes > cards:
        raise SettingsError(f"--nodes {nodes} is more than --gpus {cards}, and each node has one; give fewer nodes")
    most = -(-cards // nodes)
    if takes > most:
        raise SettingsError(
            f"vllm.tensor_parallel={takes} takes {takes} GPUs of one node, and --gpus {cards} in --nodes {nodes} are "
            f"{'at most ' * (cards % nodes > 0)}{most} in each; give --nodes {(cards - 1) // (takes - 1)}, or a "
            "smaller vllm.tensor_parallel"
        )


def refuse_beyond_context(shape: ModelSpec, config: TrainConfig, prompt_tokens: int | None = None) -> None:
    """Refuse a plan of sequences that the model has no room for, as far as that is known.

    Raises:
        SettingsError: a prompt, as long as the plan takes it to be, and the longest completion do not fit.
    """
    work = workload_on(config, prompt_tokens)
    if shape.context is not None and work.sequence > shape.context:
        refused = context_error(shape.name, shape.context, work.prompt, work.completion)
        shorter = work.completion < shape.context and prompt_tokens is None
        raise SettingsError(refused + (", or give --prompt-tokens if yours are shorter" if shorter else ""))


def refuse_no_prompt(config: TrainConfig) -> None:
    """Refuse a run whose completions leave no room for any prompt, before its model is loaded.

    Raises:
        SettingsError: rollout.max_completion_tokens and one token more exceed the context that the model's
        config.json names.
    """
    path, most = config.model.path, config.rollout.max_completion_tokens
    context = context_of(path)
    if context is not None and 1 + most > context:
        name = TINY_MODEL if path is None or directory_of(path) is None else path
        raise SettingsError(context_error(name, context, 1, most))


def refuse_one_card(config: TrainConfig, here: int) -> None:
    """Refuse vLLM on several GPUs where one process has fewer.

    Args:
        config: of the run.
        here: GPUs that the process sees.

    Raises:
        SettingsError: says how many it takes.
    """
    takes = config.vllm.tensor_parallel
    if config.rollout.engine == "vllm" and config.run.executor != "ray" and takes > here:
        there = "one is planned for" if here <= 1 else f"there are {here} here"
        raise SettingsError(
            f"vllm.tensor_parallel={takes} takes {takes} GPUs, and {there}; give --gpus {takes}, or leave it out"
        )


def lora_note(shape: ModelSpec, config: TrainConfig) -> str | None:
    """What to say of an adapter that is wider than any matrix it adapts; None = it is not."""
    targets, rank = config.lora.target_modules, config.lora.rank
    widths = [min(sizes) for name, sizes in shape.matrices.items() if not targets or name in targets]
    most = max(widths, default=rank)
    if rank <= most:
        return None
    return f"lora.rank={rank} is above {most}, the most that a matrix of {shape.name} can have: give less"
