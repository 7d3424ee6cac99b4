"""A plan with its speed, and its report for the terminal or as JSON."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import RenderableType

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.console import plural, stdout
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.advisor.advice import as_overrides, in_use_message, on_which_gpu, shortfall_message
from tinyzero_trainer.advisor.constants import GPUS_OF_A_NODE
from tinyzero_trainer.advisor.fit import predict_within
from tinyzero_trainer.advisor.memory import ROLES, Memory, host_bytes, predictions_of
from tinyzero_trainer.advisor.plan import Change, Plan, make_plan
from tinyzero_trainer.advisor.speed import Speed, predict_speed
from tinyzero_trainer.advisor.target_gpu import TargetGpu, on_gpu
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import GpuRole, describe_dims, planned_dims
from tinyzero_trainer.distributed.workload import Workload, workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PlanReport:
    """A plan, and what is predicted for the proposed configuration."""

    spec: ModelSpec
    target: TargetGpu
    plan: Plan
    work: Workload
    speed: Speed | None
    """None = the GPU's data sheet is not known, or the GPUs are in several nodes."""

    host: int
    """Bytes that memory.cpu_offload keeps in host memory; 0 = none."""

    memory: Mapping[GpuRole, Memory]
    """Predicted memory of each rank's GPU, and of each engine's."""

    sft: bool
    """Whether the step is one of supervised fine-tuning."""

    shortfall: str
    """Why vLLM would not start as requested; empty if it would."""


def plan_for(
    spec: ModelSpec,
    config: TrainConfig,
    target: TargetGpu,
    prompt_tokens: int | None = None,
    *,
    sft: bool = False,
    chosen: tuple[Change, ...] = (),
) -> PlanReport:
    """Plan a configuration for a GPU, or as many as it names; see `make_plan`.

    Supervised fine-tuning (`sft`) generates only to measure accuracy, which takes memory, and no time of a step.
    `chosen` are values that the run chooses before.
    """
    config = on_gpu(config, target)
    plan = make_plan(spec, config, target.free, prompt_tokens, gpu=target.spec, host=target.host)
    plan = replace(plan, chosen=(*chosen, *plan.chosen))
    dims, speed = planned_dims(plan.config), None
    if target.spec is not None and dims.gpus <= GPUS_OF_A_NODE:
        speed = predict_speed(spec, plan.config, target.spec, prompt_tokens)
        if sft:
            speed = replace(speed, seconds={"update_actor": speed.seconds["update_actor"]}, generated=0)
    memory = {role: predict_within(spec, plan.config, plan.limit, prompt_tokens, gpu=role) for role in dims.gpu_roles}
    work, host = workload_of(plan.config, prompt_tokens), host_bytes(spec, plan.config)
    return PlanReport(spec, target, plan, work, speed, host, memory, sft, shortfall_message(config, plan))


def as_json(report: PlanReport) -> dict[str, Any]:
    """What `--json` prints, in bytes and seconds."""
    plan, target, speed = report.plan, report.target, report.speed
    count = planned_dims(plan.config).count

    def described(memory: Memory) -> dict[str, Any]:
        phases = [
            {"phase": phase.name, "gpu": phase.gpu, "total": phase.total, "parts": list(map(asdict, phase.parts))}
            for phase in memory.phases
        ]
        return {"peak": memory.peak, "phases": phases}

    return {
        "model": asdict(report.spec),
        "gpu": {"name": target.name, "memory": target.memory, "in_use": target.in_use, "usable": plan.limit},
        "work": asdict(report.work),
        "requested": described(plan.requested),
        "proposed": described(plan.memory),
        "gpus": [{"gpu": role, "count": count(role), **described(memory)} for role, memory in report.memory.items()],
        "fits": plan.fits,
        "vllm_needs": plan.shortfall,
        "host_bytes": report.host,
        "chosen": list(map(asdict, plan.chosen)),
        "changes": list(map(asdict, plan.changes)),
        "overrides": as_overrides(plan.changes),
        "speed": None
        if speed is None
        else {
            "seconds": dict(speed.seconds),
            "step": speed.step,
            "tokens_per_s": speed.throughput,
            "generated_per_s": None if report.sft else speed.rollout,
        },
    }


def show(report: PlanReport) -> None:
    """Print it, and the settings to add to the command."""
    spec, work, plan, dims = report.spec, report.work, report.plan, planned_dims(report.plan.config)
    what = "example" if report.sft else "completion"
    _print(
        f"{spec.name}: {spec.parameters:,} parameters",
        f"{plural(work.completions, what)} a step, of {work.prompt:,} + {work.completion:,} tokens; "
        f"{work.micro_batch:,} tokens in a micro-batch",
        *filter(None, [describe_dims(plan.config)]),
    )
    for role, memory in report.memory.items():
        _print("", *([f"each of {plural(dims.count(role), f'{role} GPU')}:"] if len(report.memory) > 1 else []))
        stdout.print(_phases(report, memory))
    _print("", *_summary(report))
    if plan.chosen:
        _print("\nthe run will choose:")
        stdout.print(_changes(plan.chosen))
    if plan.changes:
        requested = report.shortfall or f"as requested it would take {plan.requested.peak / GIB:.1f} GiB"
        then = "proposed:" if plan.fits else "the least memory that was found is with:"
        _print(f"\n{requested}; {then}")
        stdout.print(_changes(plan.changes))
    if plan.fits and plan.changes:
        stdout.print("\nto add to the command:", style="dim")
        stdout.print(as_overrides(plan.changes), markup=False, soft_wrap=True)


def _summary(report: PlanReport) -> Iterator[str]:
    """Peak, speed and what else to know."""
    plan, target, speed = report.plan, report.target, report.speed
    worst = plan.memory.worst
    peak = f"peak {worst.total / GIB:.1f} GiB in {worst.name}{on_which_gpu(plan.config, worst)}"
    if plan.fits:
        yield f"{peak}, of {target.free / GIB:.1f} GiB; {(target.free - worst.total) / GIB:.1f} GiB stay free"
    else:
        yield (
            f"{peak}: too much for {target.free / GIB:.1f} GiB, of which {plan.limit / GIB:.1f} may be used; take a "
            "smaller model, a GPU with more memory, or more GPUs (--gpus N)"
        )
    if in_use := in_use_message(target):
        yield f"{target.name}: {in_use}"
    if report.host:
        short = ": too little" if target.host is not None and report.host > target.host else ""
        yield f"memory.cpu_offload keeps {report.host / GIB:.1f} GiB in host memory{short}"
    if speed is not None:
        while_generating = "" if report.sft else f" ({speed.rollout:,.0f} while generating)"
        yield f"about {_seconds(speed.step)} s a step, {speed.throughput:,.0f} tokens/s{while_generating}"
    if not report.sft and (note := predictions_of(plan.config).note(report.spec)):
        yield note


def _phases(report: PlanReport, memory: Memory) -> RenderableType:
    speed = report.speed
    roles = [role for role in ROLES if any(phase.of(role) for phase in memory.phases)]
    shown = table("GiB in phase", *roles, "all", *(["seconds"] if speed else []))
    for phase in memory.phases:
        cells = [f"{size / GIB:.1f}" for size in (*map(phase.of, roles), phase.total)]
        if speed is not None:
            cells.append(_seconds(speed.seconds[phase.name]) if phase.name in speed.seconds else "")
        shown.add_row(phase.name, *cells, style="bold" if phase is memory.worst else "")
    return shown


def _changes(changes: Iterable[Change]) -> RenderableType:
    shown = table("", "", numbers=False)
    shown.show_header = False
    for change in changes:
        before = "" if change.before in (None, "auto") else f"instead of {format_value(change.before)}"
        shown.add_row(f"{change.key}={format_value(change.value)}", "; ".join(filter(None, (before, change.trade_off))))
    return shown


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _print(*lines: str) -> None:
    stdout.print(*lines, sep="\n", markup=False)
