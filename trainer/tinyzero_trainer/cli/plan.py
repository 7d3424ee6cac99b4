"""`tinyzero plan`: a run's GPU memory and speed, and settings that fit. plan_report.py prints them."""

from typing import Annotated

import typer

from tinyzero_sdk.console import print_json
from tinyzero_trainer.cli import options, start


def plan(
    overrides: options.Overrides = None,
    task: options.TaskOptions = None,
    model: options.ModelOption = None,
    recipe: options.RecipeOption = None,
    config: options.ConfigOption = None,
    gpus: options.GpusOption = None,
    address: options.AddressOption = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="GPU model, such as 'RTX 4090'.", show_default="this machine's"),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory",
            metavar="SIZE",
            help="Its memory: 24GB as sold (10^9 bytes), or 22.5GiB as nvidia-smi shows it.",
            show_default="all of the GPU",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option("--prompt-tokens", metavar="N", min=1, help="Tokens of a prompt.", show_default="256")
    ] = None,
    sft: Annotated[bool, typer.Option("--sft", help="Plan a run of `tinyzero sft`, with its options.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict a run's GPU memory and speed, and propose settings that fit a GPU.

    Takes the options of `tinyzero train` and loads no weights. The exit code is 1 if no settings are found that fit.
    """
    from tinyzero_sdk.errors import SettingsError
    from tinyzero_sdk.settings import get
    from tinyzero_trainer.advisor.engine_choice import resolve_engine
    from tinyzero_trainer.advisor.limits import refuse_cpu, refuse_fp8, refuse_impossible
    from tinyzero_trainer.advisor.plan import Change
    from tinyzero_trainer.advisor.target_gpu import choose_target, gpus_for
    from tinyzero_trainer.cli.plan_report import as_json, plan_for, show
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import compose, gather
    from tinyzero_trainer.config.sft import SftConfig, compose_sft
    from tinyzero_trainer.config.tasks import load_tasks
    from tinyzero_trainer.models.hub import find_spec
    from tinyzero_trainer.models.new_model import default_spec, new_spec
    from tinyzero_trainer.sft.default_model import SETTINGS

    task, overrides = options.with_named(task, overrides)
    named = {**options.flag_settings(task, gpus, address), "model.path": model, "run.recipe": recipe}
    if sft and recipe is not None:
        raise SettingsError(f"--recipe {recipe} is for reinforcement learning, and --sft plans none; leave out one")
    settings = start.with_checkpoints(gather(SftConfig if sft else TrainConfig, named, overrides, config))
    owned = get(settings, "model.path") is None
    if sft:
        examples = compose_sft(settings, needs_examples=False)
        resolved, own_spec = examples.workers_config, new_spec("a new decoder", examples.new_model)
    else:
        resolved = compose(settings, SETTINGS if owned else None, needs_task=False).config
        own_spec = default_spec(resolved.default_model)
    load_tasks(resolved.task_specs)  # for what is wrong with their names and options
    refuse_cpu(resolved)
    target = choose_target(gpu, gpu_memory, resolved.run.device)
    spec = own_spec if owned else find_spec(resolved.model.path)
    elsewhere = bool(gpu or gpu_memory)
    resolved, reason = resolve_engine(resolved, spec, target.name, prompt_tokens, elsewhere=elsewhere)
    chosen = (Change("rollout.engine", resolved.rollout.engine, "auto", reason),) if reason else ()
    refuse_impossible(spec, resolved, prompt_tokens, gpus_for(gpu, gpu_memory))
    if gpu or not (gpu_memory or resolved.ray.address):  # not a GPU of which little is known
        refuse_fp8(resolved, target)
    report = plan_for(spec, resolved, target, prompt_tokens, sft=sft, chosen=chosen)
    if json:
        print_json(as_json(report))
    else:
        show(report)
    raise typer.Exit(int(not report.plan.fits))
