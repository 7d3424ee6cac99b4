"""A GRPO step on 1 to 8 nodes of 8 GPUs, simulated: where time and bytes go, and what fails first. No training is run.

    python benchmarks/scaling.py [--model Qwen/Qwen2.5-7B] [--gpu H200] [--median 1200] [--spread 0.8] [KEY=VALUE …]
    python benchmarks/scaling.py --write-docs     # writes the tables of the default run to docs/design/scaling.md
    python benchmarks/scaling.py --measure        # measures the constants that depend on this machine's processor

The speed of one GPU is the prediction of `tinyzero plan`; `benchmarks/cluster/` models links, engines and controller,
with the source of each constant. The same seed gives the same tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, TypeVar

import typer

from benchmarks.cluster import failures
from benchmarks.cluster.generation import Lengths
from benchmarks.cluster.host import measure
from benchmarks.cluster.network import Cluster, Traffic
from benchmarks.cluster.step import (
    Run,
    Sharding,
    Step,
    engines_of,
    generation,
    one_step_off,
    passes,
    peak_bytes,
    refuse,
    synchronous,
    weights,
)
from benchmarks.common import last_of_each, print_machine, print_table, table, with_content
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import gather, make_config
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.sizes import MARGIN
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models.hub import find_spec

DOCS = Path(__file__).parents[1] / "docs/design/scaling.md"
MODEL, GPU, MEDIAN, SPREAD = "Qwen/Qwen2.5-7B", "H200", 1200.0, 0.8
SETTINGS = (
    "data.prompts_per_step=512",
    "rollout.group_size=16",
    "rollout.max_completion_tokens=8192",
    "optimizer.num_mini_batches=4",
)
"""Of the run on all nodes; the command line overrides them."""

NODES = (1, 2, 4, 8)
MORE_NODES = (*NODES, 16, 32)
SHARDINGS: tuple[Sharding, ...] = ("full", "hybrid", "hybrid, reduced once")
PASSES = ("old_log_prob", "update_actor")
GB = 1e9

T = TypeVar("T")
Rows = Mapping[str, Mapping[str, str]]


def by_nodes(cell: Callable[[T], str], values: Mapping[int, T]) -> dict[str, str]:
    """The cells of a row, from values by number of nodes."""
    return {f"{nodes} × 8": cell(value) for nodes, value in values.items()}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of docs/design/scaling.md."""

    run: Run  # on the largest of `NODES`
    _steps: dict[tuple[int, bool], Step] = field(default_factory=dict)

    def all(self) -> dict[str, str]:
        """Each table by its name."""
        tables: dict[str, tuple[str, Rows]] = {
            "weak": ("seconds, constant completions per GPU", self.scaling(weak=True)),
            "strong": ("seconds, constant completions in total", self.scaling(weak=False)),
            "bytes": ("GB sent per GPU: NVLink / NIC", self.bytes()),
            "sharding": ("sharding, on all nodes", self.sharding()),
            "generation": ("seconds of generation", self.generation()),
            "weights": ("weight sync", self.weights()),
            "overlap": ("nodes for engines + nodes for ranks", self.overlap()),
            "memory": ("peak GiB per GPU", self.memory()),
            "checkpoint": ("a checkpoint", self.checkpoint()),
            "failures": ("checkpoint every", self.failures()),
        }
        return {name: table(title, rows) for name, (title, rows) in tables.items()}

    def on(self, nodes: int, *, weak: bool) -> Run:
        """The run on `nodes` nodes: with constant completions per GPU (`weak`), or in total."""
        run = self.run
        if weak:
            prompts = run.config.data.prompts_per_step * nodes // run.cluster.nodes
            run = replace(run, config=with_settings(run.config, {"data.prompts_per_step": prompts}))
        return run.on(replace(run.cluster, nodes=nodes))

    def step(self, nodes: int, *, weak: bool) -> Step:
        """A synchronous step on `nodes` nodes."""
        if (nodes, weak) not in self._steps:
            self._steps[nodes, weak] = synchronous(self.on(nodes, weak=weak))
        return self._steps[nodes, weak]

    def scaling(self, *, weak: bool) -> Rows:
        """Seconds of each phase by number of nodes, and the efficiency relative to one node."""
        steps = {nodes: self.step(nodes, weak=weak) for nodes in (MORE_NODES if weak else NODES)}
        phases = {
            name: by_nodes(_seconds, {nodes: step.phases[name].seconds for nodes, step in steps.items()})
            for name in steps[1].phases
        }
        return phases | {
            "step": by_nodes(lambda step: _seconds(step.seconds), steps),
            "tokens/s per GPU": by_nodes(lambda step: f"{step.rate:,.0f}", steps),
            "relative to one node": by_nodes(lambda step: _percent(step.rate / steps[1].rate), steps),
        }

    def bytes(self) -> Rows:
        """What a GPU sends in a step, by phase and number of nodes; and what the hosts send."""
        steps = {nodes: self.step(nodes, weak=True) for nodes in NODES}
        sending = [name for name, phase in steps[max(NODES)].phases.items() if phase.nvlink]
        rows = {
            name: by_nodes(str, {nodes: _links(step, name) for nodes, step in steps.items()})
            for name in (*sending, "all")
        }
        return rows | {
            "through the object store, in total": by_nodes(lambda step: f"{step.sent('hosts') / GB:.1f}", steps)
        }

    def sharding(self) -> Rows:
        """Bytes and seconds of full and hybrid sharding, with the default NICs and with slower ones."""
        gpus, lengths, rows = self.run.cluster.gpus, self.run.sample_lengths(), {}
        nics = (self.run.cluster.nic, 0.9 * 50 * GB / gpus, 0.9 * 12.5 * GB / gpus)
        names = ("400 Gb/s per GPU", "400 Gb/s per node", "100 Gb/s per node")
        for sharding in SHARDINGS:
            run = replace(self.run, sharding=sharding)
            each = [passes(run.on(replace(run.cluster, nic=nic)), lengths)["update_actor"] for nic in nics]
            updates = dict(zip(names, each, strict=True))
            rows[str(sharding)] = {
                "sent per NIC": f"{each[0].nic / run.cluster.size / GB:.0f} GB",
                **{f"update, {name}": f"{_seconds(update.seconds)} s" for name, update in updates.items()},
                "peak memory": f"{peak_bytes(run)['update_actor'] / GIB:.0f} GiB",
            }
        return rows

    def generation(self) -> Rows:
        """Seconds and idle fraction for the same completions, with other engines and queues."""
        run, steps = self.run, {nodes: self.step(nodes, weak=False) for nodes in NODES}
        vllm = {"rollout.engine": "vllm", "vllm.sleep_mode": True}
        split = {**vllm, "vllm.tensor_parallel": 4}
        even = replace(run.lengths, spread=0.0, median=fmean(run.sample_lengths()))
        variants = {
            "the same, from one queue": replace(run, queue=True),
            "in rounds": replace(run, refills=False),
            "engine `vllm`": replace(run, config=with_settings(run.config, vllm)),
            "the same, 4 GPUs per engine": replace(run, config=with_settings(run.config, split)),
            "all completions of mean length": replace(run, lengths=even),
        }

        def cell(generated: tuple[Traffic, float]) -> str:
            return f"{generated[0].seconds:.0f}, idle {_percent(generated[1])}"

        default = {nodes: (step.phases["gen"], step.idle) for nodes, step in steps.items()}
        rows = {"engine `torch`, refilling slots": by_nodes(cell, default)}
        for name, variant in variants.items():
            runs = {nodes: Tables(variant).on(nodes, weak=False) for nodes in NODES}
            rows[name] = by_nodes(cell, {nodes: generation(run, run.sample_lengths()) for nodes, run in runs.items()})
        longest = run.lengths.most
        alone = longest * engines_of(run).step(1, run.prompt + longest / 2)
        return rows | {"one completion of full length, alone": by_nodes(lambda _: f"{alone:.0f}", steps)}

    def weights(self) -> Rows:
        """Seconds of ways to sync weights, by number of nodes."""
        ways = {
            "each rank to its colocated engine": self.run,
            "the same, sharded within a node": replace(self.run, sharding="hybrid"),
            "through the object store": replace(self.run, way="object store"),
        }
        return {
            name: by_nodes(
                lambda run: f"{_seconds(weights(run).seconds)} s",
                {nodes: Tables(run).on(nodes, weak=True) for nodes in NODES},
            )
            for name, run in ways.items()
        }

    def overlap(self) -> Rows:
        """All GPUs shared and synchronous, or dedicated engines and training one step off policy."""
        cluster, shared = self.run.cluster, self.step(self.run.cluster.nodes, weak=True)

        def cells(shares: Step, queue: Step) -> dict[str, str]:
            training = sum(phase.seconds for name, phase in shares.phases.items() if name in PASSES)
            row = {"log-probs and update": f"{_seconds(training)} s"}
            for name, step in (("equal shares", shares), ("one queue", queue)):
                row[f"gen, {name}"] = f"{_seconds(step.phases['gen'].seconds)} s"
                row[f"step, {name}"] = f"{_seconds(step.seconds)} s ({_percent(step.rate / shared.rate)})"
            return row

        queued = replace(self.run, queue=True)
        rows = {"all shared, synchronous": cells(shared, shared)}
        for engines in (3, 4, 5):
            nodes = [replace(cluster, nodes=number) for number in (engines, cluster.nodes - engines)]
            name = f"{engines} + {cluster.nodes - engines}, one step off"
            rows[name] = cells(one_step_off(self.run, *nodes), one_step_off(queued, *nodes))
        return rows

    def memory(self) -> Rows:
        """Peaks by model and number of nodes, and the sequences for which an engine has memory."""

        def cell(run: Run) -> str:
            limit = (1 - MARGIN) * run.cluster.gpu.memory * GIB
            try:
                peaks, slots = peak_bytes(run), engines_of(run).slots
            except ValueError:
                return "too much for one sequence"
            excess = " (too much)" if peaks["update_actor"] > limit else ""
            return f"{peaks['gen'] / GIB:.0f} with {slots}, {peaks['update_actor'] / GIB:.0f}{excess}"

        rows = {}
        for name, model, checkpointing in (
            (self.run.spec.name, self.run.spec.name, False),
            ("Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-14B", False),
            ("the same, memory.activation_checkpointing", "Qwen/Qwen2.5-14B", True),
            ("Qwen/Qwen2.5-32B, the same", "Qwen/Qwen2.5-32B", True),
        ):
            change = {"memory.activation_checkpointing": checkpointing}
            run = replace(self.run, spec=find_spec(model), config=with_settings(self.run.config, change))
            runs = {nodes: Tables(run).on(nodes, weak=True) for nodes in NODES}
            rows[name] = by_nodes(cell, runs)
        return rows

    def checkpoint(self) -> Rows:
        """What is written by which process, and how long each phase takes."""
        written = failures.checkpoint_bytes(self.run.spec)
        seconds = failures.checkpoint_seconds(self.run.spec, self.run.cluster.size)
        who = {"weights": "rank 0", "moments": "all ranks", "seal": "the controller"}
        sizes = {name: f"{written.get(name, sum(written.values())) / GB:.0f}" for name in seconds}
        rows = {name: {"who": who[name], "GB": sizes[name], "seconds": f"{of:.0f}"} for name, of in seconds.items()}
        return rows | {"all": {"who": "", "GB": "", "seconds": f"{sum(seconds.values()):.0f}"}}

    def failures(self) -> Rows:
        """Fraction of time lost, by the interval of checkpoints."""
        step, size = self.step(self.run.cluster.nodes, weak=True).seconds, self.run.cluster.size
        cost, mean = sum(failures.checkpoint_seconds(self.run.spec, size).values()), failures.mtbf(size)
        best = failures.best_interval(cost, mean)
        rows = {
            f"{steps} steps ({steps * step / 3600:.1f} h)": _percent(failures.lost(steps * step, cost, mean), 1)
            for steps in (10, 50, 100, 200, 500)
        }
        rows["the best interval"] = f"{_percent(failures.lost(best, cost, mean), 1)} at {best / 3600:.1f} h"
        return {name: {"lost": cell} for name, cell in rows.items()}


def _links(step: Step, name: str) -> str:
    of = [step.phases[name]] if name != "all" else list(step.phases.values())
    return " / ".join(f"{sum(getattr(one, link) for one in of) / step.gpus / GB:.0f}" for link in ("nvlink", "nic"))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _percent(fraction: float, digits: int = 0) -> str:
    return f"{100 * fraction:.{digits}f}%"


# ---- the command -----------------------------------------------------------------------------------------------------


def make_run(
    model: str = MODEL,
    gpu: str = GPU,
    lengths: Lengths | None = None,
    overrides: tuple[str, ...] = (),
    *,
    nodes: int = max(NODES),
    gpus: int = 8,
    prompt: int = 256,
    seed: int = 0,
) -> Run:
    """A run with the settings of `SETTINGS`, and overrides.

    Raises:
        SettingsError: an override, the model or the GPU is not known.
        ValueError: it has something that is not simulated.
    """
    found = find_gpu_spec(gpu)
    if found is None:
        raise TinyZeroError(f"--gpu {gpu!r} is not known; give a name as `tinyzero plan --gpu` takes it")
    settings = last_of_each([*SETTINGS, *overrides])
    config = make_config(gather(TrainConfig, {"run.task": "countdown", "model.path": model}, settings, None))
    refuse(config)
    lengths = lengths or Lengths(MEDIAN, SPREAD, config.rollout.max_completion_tokens)
    return Run(find_spec(model), config, Cluster(found, nodes, gpus), lengths, prompt, seed=seed)


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the run")] = None,
    model: Annotated[str, typer.Option(help="as for tinyzero plan")] = MODEL,
    gpu: Annotated[str, typer.Option(help="as for tinyzero plan --gpu")] = GPU,
    median: Annotated[float, typer.Option(help="tokens of the median completion")] = MEDIAN,
    spread: Annotated[float, typer.Option(help="standard deviation of the logarithm of their lengths")] = SPREAD,
    seed: Annotated[int, typer.Option(help="of the lengths")] = 0,
    write: Annotated[bool, typer.Option("--write-docs", help="write the tables to docs/design/scaling.md")] = False,
    measure_host: Annotated[bool, typer.Option("--measure", help="measure this machine's processor instead")] = False,
) -> None:
    """Simulate a GRPO step on 1 to 8 nodes of 8 GPUs."""
    if measure_host:
        print_machine("tinyzero-trainer")
        print_table("this machine", {name: {"": value} for name, value in measure().items()})
        return
    try:
        run = make_run(model, gpu, overrides=tuple(overrides or ()), seed=seed)
        run = replace(run, lengths=Lengths(median, spread, run.config.rollout.max_completion_tokens))
        if write and run != make_run():
            raise ValueError("--write-docs takes no other options: the page has the tables of the default run")
        tables = Tables(run).all()
    except (TinyZeroError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    print(f"{run.spec.name} on {run.cluster.gpu.name}s, simulated and not measured; see docs/design/scaling.md.\n")
    print("\n".join(tables.values()), end="")
    if write:
        DOCS.write_text(with_content(DOCS.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
