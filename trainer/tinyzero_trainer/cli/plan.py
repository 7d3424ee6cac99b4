"""`tinyzero plan`: what a run takes of a GPU, and the settings with which it fits. plan_report.py shows it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyzero_sdk.console import print_json, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tinyzero_trainer.cli.plan_report import Planned


GpusOption = Annotated[
    int | None, typer.Option("--gpus", metavar="N", min=0, help="As for train: several GPUs, all of one kind.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="As for train; nothing is asked of it.")
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", metavar="N", min=1, help="Their machines.", show_default="8 GPUs in each")
]


def plan(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, as `tinyzero train` takes them.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TASK[:WEIGHT]", help="As for train; what suits a model may depend on it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Directory or Hub name of a transformers causal LM; no weights are read.",
            show_default="the small one that train makes on a GPU",
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="NAME", help="A name out of `tinyzero recipes`, or a .toml file.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")] = None,
    gpus: GpusOption = None,
    address: AddressOption = None,
    nodes: NodesOption = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="Kind of GPU, such as 'RTX 4090'.", show_default="the one here"),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory",
            metavar="SIZE",
            help="Its memory, such as 24GB on the box (10^9 bytes), or 22.5GiB as nvidia-smi has it.",
            show_default="what the GPU has",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", metavar="N", min=1, help="Tokens of a prompt.", show_default="256"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict a run's GPU memory and speed, and propose settings that fit a card.

    Takes what `tinyzero train` takes, and loads nothing. Exit code 1 if no settings are found that fit.
    """
    from tinyzero_sdk.settings import get
    from tinyzero_trainer.cli.plan_report import plan_for, show
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import build_layers, gather, refuse_missing_directory
    from tinyzero_trainer.config.layers import put_together
    from tinyzero_trainer.config.parallel import flag_settings as ray_settings
    from tinyzero_trainer.config.tasks import flag_settings
    from tinyzero_trainer.models.hub import find_spec, shape_of_own
    from tinyzero_trainer.plan.limits import refuse_cards, refuse_or_note
    from tinyzero_trainer.plan.target_gpu import cards_for, choose_target
    from tinyzero_trainer.sft.default_model import SETTINGS as SUIT_OWN_MODEL

    flags: dict[str, Any] = {**flag_settings(task or ()), "model.path": model, "run.recipe": recipe}
    flags |= ray_settings(gpus, address)
    said = gather(TrainConfig, flags, words or (), config)
    owned = get(said, "model.path") is None
    resolved = build_layers(put_together(said, SUIT_OWN_MODEL if owned else None), said)
    refuse_missing_directory(resolved.model.path)
    refuse_cards(resolved, nodes)
    target = choose_target(gpu, gpu_memory, resolved.run.device)
    shape = shape_of_own(resolved.default_model) if owned else find_spec(resolved.model.path)
    for note in refuse_or_note(shape, resolved, prompt_tokens, cards_for(gpu, gpu_memory)):
        warn(note)
    planned = plan_for(shape, resolved, target, prompt_tokens, nodes)
    if json:
        print_json(as_json(planned))
    else:
        changed = {change.key for change in planned.plan.changes}
        kept = [word for word in words or () if word.partition("=")[0] not in changed]
        given = {"--model": model, "--recipe": recipe, "--config": config, "--gpus": gpus, "--address": address}
        show(planned, typed=_typed(task, given, kept))
    raise typer.Exit(int(not planned.plan.fits))


def as_json(planned: "Planned") -> dict[str, Any]:
    """What `--json` prints; bytes, and seconds."""
    from tinyzero_trainer.plan.advice import words

    found, speed, links = planned.plan, planned.speed, planned.links

    def phases(memory: Any) -> list[dict[str, Any]]:
        return [
            {"phase": one.name, "card": one.card, "total": one.total, "parts": list(map(asdict, one.parts))}
            for one in memory.phases
        ]

    return {
        "model": asdict(planned.shape),
        "card": {"name": planned.target.name, "memory": planned.target.memory, "taken": planned.target.taken}
        | {"usable": found.limit},
        "work": asdict(planned.work),
        "asked": {"peak": found.wanted.peak, "phases": phases(found.wanted)},
        "proposed": {"peak": found.memory.peak, "phases": phases(found.memory)},
        "cards": [
            {"card": one.kind, "count": one.count, "peak": one.memory.peak, "phases": phases(one.memory)}
            for one in planned.kinds
        ],
        "fits": found.fits,
        "vllm_needs": found.lacking,
        "host_bytes": planned.host,
        "changes": [{**asdict(change), "costs": change.costs} for change in found.changes],
        "words": words(found.changes),
        "smallest_gib": planned.smallest,
        "gpus_that_do": planned.more,
        "links": None if links is None else asdict(links),
        "speed": None
        if speed is None
        else {"seconds": dict(speed.seconds), "step": speed.step, "tokens_per_s": speed.throughput}
        | {"generated_per_s": speed.rollout, "tokens_per_s_and_card": speed.throughput / speed.cards},
    }


def _typed(task: list[str] | None, flags: "Mapping[str, object]", words: list[str]) -> str:
    """What the user typed, as `tinyzero train` takes it."""
    import shlex

    tasks = task or ([] if flags["--config"] else ["TASK"])
    pairs = ((flag, str(value)) for flag, value in flags.items() if value is not None and value != "")
    given = [*(("--task", one) for one in tasks), *pairs]
    return shlex.join([*(part for pair in given for part in pair), *words])
