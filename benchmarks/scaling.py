"""A GRPO step on 1 to 8 nodes of 8 GPUs, calculated: where time and bytes go, and what breaks first. Nothing is run.

    python benchmarks/scaling.py [--model Qwen/Qwen2.5-7B] [--GPU H200] [--median 1200] [--spread 0.8] [KEY=VALUE …]
    python benchmarks/scaling.py --write-docs     # puts the tables of the usual run into docs/scaling.md
    python benchmarks/scaling.py --measure        # what the model takes from this machine's processor

What a GPU does by itself is `tinyzero plan`'s prediction; how links, engines and driver are reckoned stands in
`benchmarks/cluster/`, each number beside its source. The same seed gives the same tables.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.cluster import failures
from benchmarks.cluster.generation import Lengths
from benchmarks.cluster.host import measure
from benchmarks.cluster.network import Cluster
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
from benchmarks.common import print_machine, table
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import gather, make_config
from tinyzero_trainer.estimate.constants import MARGIN
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models.hub import find_spec

DOCS = Path(__file__).parents[1] / "docs" / "scaling.md"
MODEL, CARD, MEDIAN, SPREAD = "Qwen/Qwen2.5-7B", "H200", 1200.0, 0.8
WORDS = (
    "data.prompts_per_step=512",
    "rollout.group_size=16",
    "rollout.max_completion_tokens=8192",
    "optimizer.num_mini_batches=4",
)
"""Of the run on all nodes, unless the command line says otherwise."""

NODES = (1, 2, 4, 8)
MORE_NODES = (*NODES, 16, 32)
SHARDINGS: tuple[Sharding, ...] = ("full", "hybrid", "hybrid, reduced once")
GB = 1e9

Rows = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a run that is meant for the largest of `NODES`."""

    run: Run
    """On these nodes."""

    _steps: dict[tuple[int, bool], Step] = field(default_factory=dict)

    def each(self) -> Iterator[tuple[str, str]]:
        """Name and text of each."""
        shown: dict[str, tuple[str, Callable[[], Rows]]] = {
            "weak": ("seconds, constant completions per GPU", lambda: self.scaling(weak=True)),
            "strong": ("seconds, constant completions in total", lambda: self.scaling(weak=False)),
            "bytes": ("GB sent per GPU: NVLink / NIC", self.bytes),
            "sharding": ("sharding, on all nodes", self.sharding),
            "generation": ("seconds of generation", self.generation),
            "weights": ("weight sync", self.weights),
            "overlap": ("nodes for engines + nodes for ranks", self.overlap),
            "memory": ("peak GiB per GPU", self.memory),
            "checkpoint": ("a checkpoint", self.checkpoint),
            "failures": ("checkpoint every", self.failures),
        }
        for name, (title, rows) in shown.items():
            yield name, table(title, rows())

    def on(self, nodes: int, *, weak: bool) -> Run:
        """The run on so many nodes: with as many completions for each GPU as it has on all of them, or in all."""
        run, most = self.run, self.run.cluster.nodes
        prompts = run.config.data.prompts_per_step
        if weak:
            run = replace(run, config=with_settings(run.config, {"data.prompts_per_step": prompts * nodes // most}))
        return run.on(replace(run.cluster, nodes=nodes))

    def step(self, nodes: int, *, weak: bool) -> Step:
        """Synchronous, on so many nodes."""
        if (nodes, weak) not in self._steps:
            self._steps[nodes, weak] = synchronous(self.on(nodes, weak=weak))
        return self._steps[nodes, weak]

    def scaling(self, *, weak: bool) -> Rows:
        """Seconds of each phase by the number of nodes, and how much of linear scaling is left."""
        steps = {nodes: self.step(nodes, weak=weak) for nodes in (MORE_NODES if weak else NODES)}
        rows = {
            phase: {f"{nodes} × 8": _seconds(step.phases[phase].seconds) for nodes, step in steps.items()}
            for phase in steps[1].phases
        }
        rows["step"] = {f"{nodes} × 8": _seconds(step.seconds) for nodes, step in steps.items()}
        rows["tokens/s per GPU"] = {f"{nodes} × 8": f"{step.rate:,.0f}" for nodes, step in steps.items()}
        rows["relative to one node"] = {
            f"{nodes} × 8": _percent(step.rate / steps[1].rate) for nodes, step in steps.items()
        }
        return rows

    def bytes(self) -> Rows:
        """What a GPU sends in a step by phase and number of nodes; and what the driver's host sends."""
        steps = {nodes: self.step(nodes, weak=True) for nodes in NODES}
        sending = [name for name, phase in steps[max(NODES)].phases.items() if phase.nvlink]
        rows = {
            name: {f"{nodes} × 8": _links(step, name) for nodes, step in steps.items()} for name in (*sending, "all")
        }
        rows["through the object store, in total"] = {
            f"{nodes} × 8": f"{step.sent('hosts') / GB:.1f}" for nodes, step in steps.items()
        }
        return rows

    def sharding(self) -> Rows:
        """What full and hybrid sharding send and take, with the NICs of the model and with slower ones."""
        gpus, lengths = self.run.cluster.gpus, self.run.drawn()
        links = {
            "400 Gb/s per GPU": self.run.cluster.nic,
            "400 Gb/s per node": 0.9 * 50 * GB / gpus,
            "100 Gb/s per node": 0.9 * 12.5 * GB / gpus,
        }
        rows = {}
        for sharding in SHARDINGS:
            run = replace(self.run, sharding=sharding)
            updates = {
                name: passes(run.on(replace(run.cluster, nic=nic)), lengths)["update_actor"]
                for name, nic in links.items()
            }
            rows[str(sharding)] = {
                "sent per NIC": f"{updates['400 Gb/s per GPU'].nic / run.cluster.size / GB:.0f} GB",
                **{f"update, {name}": f"{_seconds(update.seconds)} s" for name, update in updates.items()},
                "peak memory": f"{peak_bytes(run)['update_actor'] / GIB:.0f} GiB",
            }
        return rows

    def generation(self) -> Rows:
        """The same completions, generated otherwise, by the number of nodes."""
        long, mean = self.run.lengths, fmean(self.run.drawn())
        steps = {nodes: self.step(nodes, weak=False) for nodes in NODES}
        rows = {
            "in rounds, as in the engine `torch`": {
                nodes: (step.phases["gen"].seconds, step.idle) for nodes, step in steps.items()
            }
        }
        for name, run in {
            "refilling slots": replace(self.run, refills=True),
            "refilling slots, from one queue": replace(self.run, refills=True, queue=True),
            "engine `vllm`, which refills slots": self._vllm(1),
            "the same, 4 GPUs per engine": self._vllm(4),
            "all completions of mean length": replace(self.run, lengths=replace(long, spread=0.0, median=mean)),
        }.items():
            on = {nodes: Tables(run).on(nodes, weak=False) for nodes in NODES}
            rows[name] = {nodes: _generated(one) for nodes, one in on.items()}
        shown = {
            name: {f"{nodes} × 8": f"{seconds:.0f}, idle {_percent(idle)}" for nodes, (seconds, idle) in row.items()}
            for name, row in rows.items()
        }
        alone = long.most * engines_of(self.run).step(1, self.run.prompt + long.most / 2)
        return shown | {"one completion of full length, alone": dict.fromkeys(shown["refilling slots"], f"{alone:.0f}")}

    def _vllm(self, several: int) -> Run:
        settings = {"rollout.engine": "vllm", "vllm.sleep_mode": True, "vllm.tensor_parallel": several}
        return replace(self.run, config=with_settings(self.run.config, settings))

    def weights(self) -> Rows:
        """Ways of new weights, by the number of nodes."""
        rows: dict[str, dict[str, str]] = {}
        for name, run in {
            "each rank to its colocated engine": self.run,
            "the same, sharded within a node": replace(self.run, sharding="hybrid"),
            "through the object store": replace(self.run, way="object store"),
        }.items():
            found = {nodes: weights(Tables(run).on(nodes, weak=True)) for nodes in NODES}
            rows[name] = {f"{nodes} × 8": f"{_seconds(one.seconds)} s" for nodes, one in found.items()}
        return rows

    def overlap(self) -> Rows:
        """Everything on all GPUs one after another, or engines and learners apart and a step ahead."""
        cluster, together = self.run.cluster, self.step(self.run.cluster.nodes, weak=True)
        learning = _learning(together)
        rows = {"all shared, synchronous": _overlapped("rounds", together, together, learning)}
        rows["all shared, synchronous"] |= _overlapped("one queue", together, together)
        for engines in (3, 4, 5):
            nodes = [replace(cluster, nodes=number) for number in (engines, cluster.nodes - engines)]
            name = f"{engines} + {cluster.nodes - engines}, one step off"
            apart = one_step_off(self.run, *nodes)
            queued = one_step_off(replace(self.run, refills=True, queue=True), *nodes)
            rows[name] = _overlapped("rounds", apart, together, _learning(apart))
            rows[name] |= _overlapped("one queue", queued, together)
        return rows

    def memory(self) -> Rows:
        """Peaks by model and number of nodes, and sequences that an engine has room for beside the shards."""
        models = {
            self.run.spec.name: (self.run.spec.name, False),
            "Qwen/Qwen2.5-14B": ("Qwen/Qwen2.5-14B", False),
            "the same, memory.activation_checkpointing": ("Qwen/Qwen2.5-14B", True),
            "Qwen/Qwen2.5-32B, the same": ("Qwen/Qwen2.5-32B", True),
        }
        return {name: self._memory(*of) for name, of in models.items()}

    def _memory(self, model: str, again: bool) -> dict[str, str]:
        cells = {}
        for nodes in NODES:
            run = replace(self.on(nodes, weak=True), spec=find_spec(model))
            run = replace(run, config=with_settings(run.config, {"memory.activation_checkpointing": again}))
            limit = (1 - MARGIN) * run.cluster.gpu.memory * GIB
            try:
                held = peak_bytes(run)
            except ValueError:
                cells[f"{nodes} × 8"] = "too much for one sequence"
                continue
            generating, update = held["gen"] / GIB, held["update_actor"]
            much = " (too much)" if update > limit else ""
            cells[f"{nodes} × 8"] = f"{generating:.0f} with {engines_of(run).places}, {update / GIB:.0f}{much}"
        return cells

    def checkpoint(self) -> Rows:
        """What is written, and how long each part takes."""
        spec, size = self.run.spec, self.run.cluster.size
        written, seconds = failures.checkpoint_bytes(spec), failures.checkpoint_seconds(spec, size)
        who = {"weights": "rank 0", "moments": "all ranks", "seal": "the driver"}
        rows = {
            name: {
                "who": who[name],
                "GB": f"{written.get(name, sum(written.values())) / GB:.0f}",
                "seconds": f"{of:.0f}",
            }
            for name, of in seconds.items()
        }
        return rows | {"all": {"who": "", "GB": "", "seconds": f"{sum(seconds.values()):.0f}"}}

    def failures(self) -> Rows:
        """Time lost by the interval of checkpoints."""
        spec, size, step = self.run.spec, self.run.cluster.size, self.step(self.run.cluster.nodes, weak=True).seconds
        seconds, mean = failures.checkpoint_seconds(spec, size), failures.mtbf(size)
        costs = {"lost": sum(seconds.values())}
        best = {name: failures.best_interval(cost, mean) for name, cost in costs.items()}
        rows = {
            f"{steps} steps ({steps * step / 3600:.1f} h)": {
                name: _percent(failures.lost(steps * step, cost, mean), 1) for name, cost in costs.items()
            }
            for steps in (10, 50, 100, 200, 500)
        }
        return rows | {
            "the best interval": {
                name: f"{_percent(failures.lost(best[name], cost, mean), 1)} at {best[name] / 3600:.1f} h"
                for name, cost in costs.items()
            }
        }


def _generated(run: Run) -> tuple[float, float]:
    traffic, idle = generation(run, run.drawn())
    return traffic.seconds, idle


def _learning(step: Step) -> float:
    return sum(step.phases[name].seconds for name in ("old_log_prob", "update_actor") if name in step.phases)


def _overlapped(how: str, step: Step, together: Step, learning: float | None = None) -> dict[str, str]:
    first = {} if learning is None else {"log-probs and update": f"{_seconds(learning)} s"}
    return first | {
        f"gen, {how}": f"{_seconds(step.phases['gen'].seconds)} s",
        f"step, {how}": f"{_seconds(step.seconds)} s ({_percent(step.rate / together.rate)})",
    }


def _links(step: Step, name: str) -> str:
    of = [step.phases[name]] if name != "all" else list(step.phases.values())
    return " / ".join(f"{sum(getattr(one, link) for one in of) / step.gpus / GB:.0f}" for link in ("nvlink", "nic"))


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


# ---- the command -----------------------------------------------------------------------------------------------------


def make_run(
    model: str = MODEL,
    gpu: str = CARD,
    lengths: Lengths | None = None,
    words: tuple[str, ...] = (),
    *,
    nodes: int = max(NODES),
    gpus: int = 8,
    prompt: int = 256,
    seed: int = 0,
) -> Run:
    """A run with the words of `WORDS`, and others after them.

    Raises:
        SettingsError: a word, the model or the GPU is not known.
        ValueError: it has something that is not simulated.
    """
    found = find_gpu_spec(gpu)
    if found is None:
        raise TinyZeroError(f"--GPU {gpu!r} is not known; give a name as `tinyzero plan --gpu` takes it")
    config = make_config(
        gather(TrainConfig, {"run.task": "countdown", "model.path": model}, _last((*WORDS, *words)), None)
    )
    refuse(config)
    lengths = lengths or Lengths(MEDIAN, SPREAD, config.rollout.max_completion_tokens)
    return Run(find_spec(model), config, Cluster(found, nodes, gpus), lengths, prompt, seed=seed)


def _last(words: tuple[str, ...]) -> list[str]:
    """The last word of each key."""
    return list({word.partition("=")[0]: word for word in words}.values())


def write_docs(text: str, tables: Mapping[str, str]) -> str:
    """The page with the tables between their marks."""
    for name, shown in tables.items():
        before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not end:
            raise ValueError(f"docs/scaling.md has no place for the table {name!r}")
        text = f"{before}{begin}{shown}{end}{after}"
    return text


def main(
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the run")] = None,
    model: Annotated[str, typer.Option(help="as tinyzero plan takes it")] = MODEL,
    gpu: Annotated[str, typer.Option(help="as tinyzero plan --gpu takes it")] = CARD,
    median: Annotated[float, typer.Option(help="tokens of the median completion")] = MEDIAN,
    spread: Annotated[float, typer.Option(help="standard deviation of the logarithm of their lengths")] = SPREAD,
    seed: Annotated[int, typer.Option(help="of the lengths")] = 0,
    write: Annotated[bool, typer.Option("--write-docs", help="put the tables into docs/scaling.md")] = False,
    measuring: Annotated[bool, typer.Option("--measure", help="measure this machine's processor instead")] = False,
) -> None:
    """Calculate a GRPO step on 1 to 8 nodes of 8 GPUs."""
    if measuring:
        print_machine("tinyzero-trainer")
        print(table("this machine", {name: {"": value} for name, value in measure().items()}), end="")
        return
    try:
        run = make_run(model, gpu, words=tuple(words or ()), seed=seed)
        run = replace(run, lengths=Lengths(median, spread, run.config.rollout.max_completion_tokens))
        if write and run != make_run():
            raise ValueError("--write-docs takes no other options: the page has the tables of the usual run")
        tables = dict(Tables(run).each())
    except (TinyZeroError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    print(f"{run.spec.name} on {run.cluster.gpu.name}s, simulated and not measured; see docs/scaling.md.\n")
    print("\n".join(tables.values()), end="")
    if write:
        DOCS.write_text(write_docs(DOCS.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
