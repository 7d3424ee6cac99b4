"""A plan with everything that is said of it, and how it looks."""

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinyzero_sdk.console import stdout
from tinyzero_sdk.settings import format_value
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.parallel import ParallelError
from tinyzero_trainer.config.spread import CardKind, described, spread_of
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.constants import GIB
from tinyzero_trainer.estimate.fit import predict_within, with_settings
from tinyzero_trainer.estimate.interconnect import Links, links_of
from tinyzero_trainer.estimate.memory import ROLES, Memory, host_bytes
from tinyzero_trainer.estimate.speed import Speed, predict_speed
from tinyzero_trainer.estimate.workload import Workload, workload_on
from tinyzero_trainer.hardware.gpu_specs import known_gpus
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.plan.advice import lacking_words, of_which, taken_words, words
from tinyzero_trainer.plan.candidates import SETTLED, Plan
from tinyzero_trainer.plan.search import can_fit, make_plan
from tinyzero_trainer.plan.target_gpu import TargetGpu, on_gpu

if TYPE_CHECKING:
    from rich.console import RenderableType


GPUS = (2, 4, 8, 16, 32, 64)
"""Numbers of cards that are tried where fewer are too few."""

CARDS = {"rank": "a rank's GPU", "engine": "an engine's GPU"}
"""What the kinds are called."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Of several cards, those that hold the same."""

    kind: CardKind
    """What is on them."""

    count: int
    """How many there are."""

    memory: Memory
    """Of each."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan for a model and a card."""

    shape: ModelSpec
    """The model's."""

    target: TargetGpu
    """The card."""

    plan: Plan
    """What was found."""

    work: Workload
    """Of a step, as proposed."""

    speed: Speed | None
    """As proposed; None = the kind of card is not known."""

    smallest: float | None
    """GiB of the smallest well-known card that would do, empty; None = the plan fits, or no card would do."""

    host: int
    """Bytes that memory.cpu_offload keeps in the machine's own memory, as proposed; 0 = none."""

    kinds: tuple[Kind, ...]
    """Of the cards, as proposed."""

    more: int | None = None
    """How many cards of the kind would do; None = the plan fits, or none of `GPUS` would do."""

    links: Links | None = None
    """Between several cards, as proposed; None = there is one, or its kind is not known."""

    lacking: str = ""
    """Why vLLM would not start as asked; empty if it would."""


def plan_for(
    shape: ModelSpec,
    config: TrainConfig,
    target: TargetGpu,
    prompt_tokens: int | None = None,
    nodes: int | None = None,
) -> Planned:
    """Plan a configuration for a card, or as many of the kind as it names; see `search.make_plan`."""
    config = on_gpu(config, target)
    found = make_plan(shape, config, target.room, prompt_tokens, card=target.card, host=target.host, nodes=nodes)
    smallest = more = None
    if not found.fits:
        sizes = sorted({card.memory for card in known_gpus() if card.memory * GIB > target.room})
        place = bisect_left(
            sizes,
            True,
            key=lambda size: can_fit(shape, config, int(size * GIB), prompt_tokens, host=target.host, nodes=nodes),
        )
        smallest = sizes[place] if place < len(sizes) else None
        more = _enough(shape, config, target, prompt_tokens)
    speed = links = None
    spread = spread_of(found.config)
    if target.card is not None:
        speed = predict_speed(shape, found.config, target.card, prompt_tokens, nodes)
        links = links_of(target.card, spread.cards, nodes) if spread.cards > 1 else None
    held = host_bytes(shape, found.config, nodes)
    kinds = tuple(
        Kind(kind, spread.count(kind), predict_within(shape, found.config, found.limit, prompt_tokens, card=kind))
        for kind in spread.kinds
    )
    work = workload_on(found.config, prompt_tokens)
    lacking = lacking_words(config, found)
    return Planned(shape, target, found, work, speed, smallest, held, kinds, more, links, lacking)


def _enough(shape: ModelSpec, config: TrainConfig, target: TargetGpu, prompt_tokens: int | None) -> int | None:
    """The least number of cards, of those that there may be, on which a run fits."""
    now = spread_of(config).cards

    def fits(count: int) -> bool:
        several = with_settings(config, {"run.executor": "ray", "ray.gpus": count, "parallel.world_size": None})
        with suppress(ParallelError):
            return can_fit(shape, several, target.room, prompt_tokens, host=target.host)
        return False

    counts = [count for count in GPUS if count > now]
    place = bisect_left(counts, True, key=fits)
    return counts[place] if place < len(counts) else None


def show(planned: Planned, *, typed: str) -> None:
    """Print it.

    Args:
        planned: what was found.
        typed: the words after `tinyzero train` that stand for what was asked.
    """
    shape, work, found = planned.shape, planned.work, planned.plan
    _line(f"{shape.name}: {shape.parameters:,} parameters")
    _line(
        f"{work.completions:,} completions a step, of {work.prompt:,} + {work.completion:,} tokens; "
        f"{work.micro_batch:,} tokens in a pass"
    )
    if who := described(found.config):
        _line(who)
    for kind in planned.kinds:
        _blank()
        if len(planned.kinds) > 1:
            _line(f"{CARDS[kind.kind]}, of which there {'is 1' if kind.count == 1 else f'are {kind.count}'}:")
        stdout.print(_phases(planned, kind.memory))
    _blank()
    _line(_peak(planned))
    if taken := taken_words(planned.target):
        _line(f"{planned.target.name}: {taken}")
    if not planned.target.bfloat16 and found.config.model.dtype == "float32":
        _line(f"computed in float32 (model.dtype), since {planned.target.name} has no bfloat16")
    if planned.host:
        has = planned.target.host
        short = "" if has is None else f" of its {has / GIB:.1f}" + (": too little" if planned.host > has else "")
        _line(f"memory.cpu_offload keeps {planned.host / GIB:.1f} GiB in the machine's own memory{short}")
    if planned.speed is not None:
        speed, name = planned.speed, planned.target.card.name if planned.target.card else ""
        where, each = f"on {_article(name)}", ""
        if speed.cards > 1:
            where, each = f"on {speed.cards} {name}", f", {speed.throughput / speed.cards:,.0f} of each"
        _line(
            f"{where} about {_seconds(speed.step)} s a step, {speed.throughput:,.0f} tokens/s{each} "
            f"({speed.rollout:,.0f} while generating)"
        )
        if speed.beside:
            _line("the next batch is generated beside the update (rollout.max_async_level)")
        if planned.links is not None:
            _line(_between(planned.links))
    if found.config.rollout.engine == "torch" and not shape.graphs:
        _line(_WITHOUT_GRAPHS)
    if found.changes:
        asked = f"as asked it would take {found.wanted.peak / GIB:.1f} GiB"
        then = "proposed:" if found.fits else "the least that was found is with:"
        if planned.lacking:
            asked = planned.lacking
        elif found.wanted.peak <= found.limit:
            asked, then = "what was asked fits", "what train finds out by itself:"
            if {change.key for change in found.changes} - set(SETTLED):
                then = "a shorter step has, since more sequences are generated at a time:"
        stdout.print(f"\n{asked}; {then}", markup=False)
        stdout.print(_changes(found))
    if found.fits and found.changes:
        stdout.print("\nto type:", style="dim")
        stdout.print(f"tinyzero train {typed} {words(found.changes)}", markup=False, soft_wrap=True)


_WITHOUT_GRAPHS = (
    "rollout.engine=torch has no CUDA graphs for this architecture, so that generating takes long; "
    "rollout.engine=vllm is the faster one for it"
)


def _peak(planned: Planned) -> str:
    found, size = planned.plan, planned.target.room
    worst = found.memory.worst
    peak = f"peak {worst.total / GIB:.1f} GiB in {worst.name}{of_which(found.config, worst)}"
    if found.fits:
        return f"{peak}, of {size / GIB:.1f} GiB; {(size - found.memory.peak) / GIB:.1f} GiB stay free"
    return (
        f"{peak}: too much for {size / GIB:.1f} GiB, of which {found.limit / GIB:.1f} may be used; {_way_out(planned)}"
    )


def _way_out(planned: Planned) -> str:
    """What would do, where nothing fits."""
    found, more = planned.plan, planned.more
    several = "" if more is None else f"{more} GPUs like it (--gpus {more})"
    if planned.smallest is None:
        none = "no single card" if spread_of(found.config).cards == 1 else "no kind of card"
        if several:
            return f"{none} would do, but {several} would, or a smaller model"
        return f"{none} would do; take a smaller model"
    larger = f"a card of {planned.smallest:g} GiB"
    if planned.smallest * GIB <= planned.target.memory:
        larger = "the same card, with nobody else on it,"
    if spread_of(found.config).cards > 1:
        larger = larger.replace("a card", "cards").replace("the same card", "the same cards")
        larger = larger.replace("nobody else on it", "nobody else on them")
    return f"{larger} would do, {f'or {several}, ' if several else ''}or a smaller model"


def _between(links: Links) -> str:
    """With which bandwidths was reckoned."""
    within = f"{links.kind} taken as {links.within / 1e9:.0f} of its {links.rated / 1e9:.0f} GB/s each way"
    if links.nodes == 1:
        return within
    return f"{links.nodes} nodes, {constants.NIC / 1e9:.0f} GB/s of network to each GPU assumed; in a node {within}"


def _phases(planned: Planned, memory: Memory) -> "RenderableType":
    from tinyzero_sdk.cli.summary_report import table

    speed = planned.speed
    roles = [role for role in ROLES if any(phase.of(role) for phase in memory.phases)]
    names = ["GiB in phase", *roles, "all", *(["seconds"] if speed else [])]
    shown = table(*names)
    for phase in memory.phases:
        cells = [*(f"{phase.of(role) / GIB:.1f}" for role in roles), f"{phase.total / GIB:.1f}"]
        cells += [] if speed is None else [_seconds(speed.seconds[phase.name]) if phase.name in speed.seconds else ""]
        shown.add_row(phase.name, *cells, style="bold" if phase is memory.worst else "")
    return shown


def _changes(found: Plan) -> "RenderableType":
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column()
    for change in found.changes:
        before = f"instead of {format_value(change.before)}" if change.before is not None else ""
        shown.add_row(f"{change.key}={format_value(change.value)}", "; ".join(filter(None, (before, change.costs))))
    return shown


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AHL' or name.startswith('RTX') else 'a'} {name}"


def _blank() -> None:
    stdout.print("")


def _line(text: str) -> None:
    stdout.print(text, markup=False)
