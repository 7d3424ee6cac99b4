"""Which of the settings that make a run fit gives the shortest step: all that are worth a look are tried."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.engine_memory import lacking_in_vllm, sequences_in_vllm
from tinyzero_trainer.estimate.fit import Settings, awake_bytes, predict_within, setting, settle, usable, with_settings
from tinyzero_trainer.estimate.memory import Memory, host_bytes
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.estimate.workload import workload_on
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.plan.candidates import (
    COSTS,
    COSTS_OF_VALUE,
    Change,
    Plan,
    divisions,
    fewer_sequences,
    moves,
    smaller_micro_batches,
)

WORTH = 1.05
"""What was asked and fits is changed only where that makes the step shorter by more than this factor: where it has room
for so few sequences at a time that generating them takes long."""

OFFLOADS = (None, "idle", "always")

_SAME = 1e-9
"""Relative difference of two times that are one."""


def make_plan(
    shape: ModelSpec,
    config: TrainConfig,
    memory: int,
    prompt_tokens: int | None = None,
    *,
    card: GpuSpec | None = None,
    host: int | None = None,
    nodes: int | None = None,
) -> Plan:
    """Make a configuration fit a card, or as many as it names, if it does not already.

    Args:
        shape: the model's.
        config: what the user wants.
        memory: bytes of the card.
        prompt_tokens: see `work_of`.
        card: what it can do; None = not known, so that a common one's proportions count.
        host: bytes of the machine's own memory, in which `memory.cpu_offload` must have room; None = not known.
        nodes: see `links.nodes_of`.

    Returns:
        A plan that `fits`, if one was found: what was asked, or the one with the shortest step; else the one that takes
        least.
    """
    search = Search(shape, config, usable(memory), prompt_tokens, card, host, nodes)
    found = search.find()
    changes = tuple(_changes(shape, config, found.config, prompt_tokens))
    return Plan(search.asked.memory, found.config, found.memory, changes, search.limit, search.asked.lacking)


def can_fit(
    shape: ModelSpec,
    config: TrainConfig,
    memory: int,
    prompt_tokens: int | None = None,
    *,
    host: int | None = None,
    nodes: int | None = None,
) -> bool:
    """Whether `make_plan` finds something that fits, which is sooner known than what."""
    return Search(shape, config, usable(memory), prompt_tokens, None, host, nodes).can_fit()


def _changes(shape: ModelSpec, asked: TrainConfig, config: TrainConfig, prompt_tokens: int | None) -> Iterator[Change]:
    """What is other than the user wanted it."""
    for key, costs in COSTS.items():
        value, before = setting(config, key), setting(asked, key)
        if value == before:
            continue
        work = workload_on(config, prompt_tokens)
        if key == "rollout.max_num_seqs" and value >= work.completions:
            costs = "evaluations are generated in more rounds"
        if key == "vllm.gpu_memory_gb":
            wanted = work.trained_at_a_time
            room = min(wanted, sequences_in_vllm(shape, config, work))
            costs = f"GB: room for {room:,} of {wanted:,} whole sequences at a time"
        yield Change(key, value, before, COSTS_OF_VALUE.get((key, value), costs))


@dataclass(frozen=True, slots=True)
class Tried:
    """Settings that were looked at."""

    settings: Settings
    """What is other than asked, but for what the engine decides by itself."""

    config: TrainConfig
    """With them, and what was left to the engine decided."""

    memory: Memory
    """Of that."""

    seconds: float
    """Of a step."""

    lacking: int = 0
    """See `Plan`: vLLM would not even start."""

    def beats(self, other: "Tried | None") -> bool:
        """Whether its step is shorter; if both take as long, whether it changes less."""
        if other is None or self.seconds < other.seconds * (1 - _SAME):
            return True
        return self.seconds <= other.seconds * (1 + _SAME) and len(self.settings) < len(other.settings)


@dataclass
class Search:
    """For the settings that fit and have the shortest step."""

    shape: ModelSpec
    """The model's."""

    config: TrainConfig
    """What was asked."""

    limit: int
    """Bytes that may be taken of the card."""

    prompt_tokens: int | None
    """See `work_of`."""

    card: GpuSpec | None
    """What counts for the times; None = not known."""

    host: int | None
    """Bytes of the machine's own memory; None = not known."""

    nodes: int | None = None
    """See `links.nodes_of`."""

    def find(self) -> Tried:
        """What was asked if that is good, else the fastest that fits; an adapter only where nothing else does.

        How several cards are divided stays as it was asked, unless weights would have to wait in the host's memory.

        Where nothing fits, what takes least.
        """
        asked = self.asked
        if asked.lacking:  # as if it had been left out
            asked = self.tried({"vllm.gpu_memory_gb": None}) or asked
        fits = self.fits(asked)
        if fits and asked.seconds <= WORTH * self.at_best({}):
            return asked
        adapter, best = self.adapter, self.fastest({})
        divisions = [] if fits or (best is not None and "memory.cpu_offload" not in best.settings) else self.divisions()
        for division in divisions:
            if (found := self.fastest(division)) is not None and found.beats(best):
                best = found
        if best is None and not fits and adapter is not None:
            best = self.fastest(adapter)
        if fits:
            return asked if best is None or asked.seconds <= WORTH * best.seconds else best
        return best or self.least({}, *divisions, *([adapter] if adapter else []))

    def can_fit(self) -> bool:
        """Whether anything does."""
        bases = chain(({},), self.divisions(), [self.adapter] if self.adapter else [])
        return self.fits(self.asked) or any(self.fastest(base) is not None for base in bases)

    @cached_property
    def adapter(self) -> Settings | None:
        """The last resort; None if it was asked for."""
        return next((move for move in moves(self.config, self.prompt_tokens) if "lora.rank" in move), None)

    @cached_property
    def asked(self) -> Tried:
        """What was asked."""
        found = self.tried({})
        assert found is not None
        return found

    # ---- choosing ------------------------------------------------------------------------------------------------

    def fastest(self, base: Settings) -> Tried | None:
        """The shortest step of all that fit; None if nothing does."""
        best: Tried | None = None
        cores = [(self.at_best(core), len(core), core) for core in self.cores(base)]
        for bound, count, core in sorted(cores, key=lambda one: one[:2]):
            if best is not None and bound >= best.seconds * (1 - _SAME) and count >= len(best.settings):
                continue
            if best is not None and bound > best.seconds * (1 + _SAME):
                continue
            if (found := self.fastest_of(core, bound)) is not None and found.beats(best):
                best = found
        return best

    def fastest_of(self, core: Settings, bound: float) -> Tried | None:
        """The same with what the rollout engine may do; its time is no shorter than `bound`."""
        best, choices = None, list(self.engines(core))
        if len(choices) > 1 and not self.fits(self.tried_least(core, choices[-1])):
            return None
        for choice in choices:
            found = self.tried({**core, **choice})
            if found is not None and self.fits(found) and found.beats(best):
                best = found
            if best is not None and best.seconds <= bound * (1 + _SAME):
                break
        return best

    def least(self, *bases: Settings) -> Tried:
        """What takes least."""
        found = self.asked
        for core in (core for base in bases for core in self.cores(base)):
            *_, choice = self.engines(core)
            tried = self.tried_least(core, choice)
            if tried is not None and (tried.lacking, tried.memory.peak) < (found.lacking, found.memory.peak):
                found = tried
        return found

    def fits(self, tried: Tried | None) -> bool:
        """Whether it fits the card, and the model what vLLM has of that."""
        return tried is not None and tried.memory.peak <= self.limit and not tried.lacking

    # ---- what there is to choose from ----------------------------------------------------------------------------

    def divisions(self) -> list[Settings]:
        """Other ways to divide several cards."""
        found = divisions(self.shape, self.config, self.prompt_tokens)
        return [division for division in found if self.tried(division) is not None]

    def cores(self, base: Settings) -> Iterator[Settings]:
        """Settings of the update, each with fewer bytes than what was asked."""
        config = with_settings(self.config, base)
        work = workload_on(config, self.prompt_tokens)
        offloads = OFFLOADS[OFFLOADS.index(config.memory.cpu_offload) :] if config.run.device != "cpu" else ()
        checkpoints = () if config.memory.activation_checkpointing else (True,)
        for size, offload, checkpoint in product(
            (None, *smaller_micro_batches(config, work)), offloads or (config.memory.cpu_offload,), (None, *checkpoints)
        ):
            core = dict(base)
            if size is not None:
                core["optimizer.micro_batch_tokens"] = size
            if offload != config.memory.cpu_offload:
                core["memory.cpu_offload"] = offload
            if checkpoint is not None:
                core["memory.activation_checkpointing"] = checkpoint
            if self.has_host_memory(core):
                yield core

    def has_host_memory(self, core: Settings) -> bool:
        """Whether what is moved into the machine's memory has room there, as far as is known."""
        if self.host is None or "memory.cpu_offload" not in core:
            return True
        return host_bytes(self.shape, with_settings(self.config, core), self.nodes) <= self.host

    def engines(self, core: Settings) -> Iterator[Settings]:
        """What the rollout engine may do, the least memory last."""
        fewer = ({"rollout.max_num_seqs": count} for count in self.counts())
        if self.config.rollout.engine != "vllm":
            yield self.sequences(core, [{}, *fewer])
            return
        vllm = self.config.vllm
        sleeps: Iterable[Settings] = ({}, {"vllm.sleep_mode": True}) if vllm.sleep_mode is False else ({},)
        sizes: Iterable[Settings] = ({}, {"vllm.gpu_memory_gb": None}) if vllm.gpu_memory_gb is not None else ({},)
        yield from ({**sleep, **size, **count} for sleep, size, count in product(sleeps, sizes, [{}, *fewer]))

    def counts(self) -> Iterator[int]:
        """Of sequences at a time, fewer than asked; the engine `torch` settles it by itself where nothing was asked."""
        if self.config.rollout.engine == "vllm" or self.config.rollout.max_num_seqs is not None:
            yield from fewer_sequences(self.config, workload_on(self.config, self.prompt_tokens))
        elif not self.shape.graphs:
            config = self.asked.config
            yield from fewer_sequences(config, workload_on(config, self.prompt_tokens))

    def sequences(self, core: Settings, choices: list[Settings]) -> Settings:
        """As many sequences at a time as the engine `torch` has room for; the update does not matter to that."""
        offload = {key: value for key, value in core.items() if key != "optimizer.micro_batch_tokens"}
        for choice in choices[:-1]:
            config = with_settings(self.config, {**offload, **choice})
            config = settle(self.shape, config, self.limit, self.prompt_tokens)
            if awake_bytes(self.shape, config, self.prompt_tokens) <= self.limit:
                return choice
        return choices[-1]

    # ---- looking at one ------------------------------------------------------------------------------------------

    def tried(self, settings: Mapping[str, object]) -> Tried | None:
        """Memory and time with some settings; None if they do not go together, or are not less than was asked."""
        try:
            config = settle(self.shape, with_settings(self.config, settings), self.limit, self.prompt_tokens)
        except ValueError:
            return None
        if "vllm.gpu_memory_gb" in settings:
            given, asked = config.vllm.gpu_memory_gb, self.config.vllm.gpu_memory_gb
            if given is None or asked is None:
                return None
            if given >= asked and not self.lacking(with_settings(config, {"vllm.gpu_memory_gb": asked})):
                return None
        memory = predict_within(self.shape, config, self.limit, self.prompt_tokens)
        return Tried(settings, config, memory, self.seconds(config), self.lacking(config))

    def tried_least(self, core: Settings, choice: Settings) -> Tried | None:
        """The same with the last of what the engine may do; with vllm.gpu_memory_gb as asked, where that is less
        still."""
        settings = {**core, **choice}
        found = self.tried(settings)
        if found is None and settings.pop("vllm.gpu_memory_gb", self) is None:
            found = self.tried(settings)
        return found

    def lacking(self, config: TrainConfig) -> int:
        """See `Plan`."""
        return lacking_in_vllm(self.shape, config, workload_on(config, self.prompt_tokens))

    def seconds(self, config: TrainConfig) -> float:
        """Of a step."""
        card = self.card or find_gpu_spec(constants.COMMON_CARD)
        assert card is not None
        return predict_speed(self.shape, config, card, self.prompt_tokens, self.nodes).step

    def at_best(self, core: Settings) -> float:
        """Seconds of a step with room for all sequences at a time, and an engine that need not sleep."""
        config = with_settings(self.config, core)
        if config.rollout.engine == "vllm":
            sleep = True if config.vllm.sleep_mode else None
            config = with_settings(config, {"vllm.gpu_memory_gb": None, "vllm.sleep_mode": sleep})
        return self.seconds(config)
