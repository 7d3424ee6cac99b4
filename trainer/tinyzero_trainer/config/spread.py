"""How a run is spread over cards: which kinds there are, and what each has of the model and of the batch. No torch.

Who is where is decided in parallel.py; a run in one process is on one card.
"""

from dataclasses import dataclass
from typing import Literal

from tinyzero_trainer.config.parallel import ParallelError, layout_of
from tinyzero_trainer.config.train_config import TrainConfig

CardKind = Literal["rank", "engine"]
"""`rank` = a card on which weights are trained, with an engine beside them where engines have no cards of their own;
`engine` = a card of an engine's own."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a run's processes over its cards."""

    ranks: int = 1
    """Cards that train."""

    replicas: int = 1
    """Groups of them that each hold a whole model."""

    slices: int = 1
    """Ranks that share each sequence."""

    engines: int = 1
    """Rollout engines."""

    of_engine: int = 1
    """Cards that an engine is on."""

    apart: bool = False
    """Whether those are its own."""

    parts: int = 1
    """Of a batch, for each engine."""

    @property
    def cards(self) -> int:
        """All of them."""
        return sum(map(self.count, self.kinds))

    @property
    def kinds(self) -> tuple[CardKind, ...]:
        """Kinds of cards that there are."""
        return ("rank", "engine") if self.apart else ("rank",)

    @property
    def generating(self) -> CardKind:
        """The kind that engines are on."""
        return self.kinds[-1]

    @property
    def shards(self) -> int:
        """Ranks that hold a model together."""
        return self.ranks // self.replicas

    @property
    def shares(self) -> int:
        """Parts of a mini-batch that are trained on at the same time."""
        return self.ranks // self.slices

    def count(self, kind: CardKind) -> int:
        """Cards of a kind."""
        return self.ranks if kind == "rank" else self.engines * self.of_engine

    def shard(self, parameters: int) -> int:
        """Of so many parameters those that a rank holds, at the most."""
        return -(-parameters // self.shards)

    def largest_part(self, prompts: int) -> int:
        """Of so many prompts those that an engine is given at a time, at the most."""
        return -(-prompts // min(prompts, self.engines * self.parts))

    def of_an_engine(self, prompts: int) -> int:
        """Of so many prompts those that an engine has in all, at the most."""
        return -(-prompts // self.engines)


ALONE = Spread()
"""All on one card."""


def spread_of(config: TrainConfig) -> Spread:
    """Of a configuration; what has no GPU is planned as one process.

    Raises:
        ParallelError: ranks and engines do not fit on the GPUs; says what to change.

    Example:
        >>> from tinyzero_trainer.plan.candidates import with_settings
        >>> values = {"run.executor": "ray", "ray.gpus": 8, "rollout.num_engines": 2, "parallel.dp_replicate": 3}
        >>> spread = spread_of(with_settings(TrainConfig(), values))
        >>> spread.ranks, spread.shards, spread.kinds, spread.count("engine")
        (6, 2, ('rank', 'engine'), 2)
    """
    if config.run.executor != "ray":
        return ALONE
    layout = layout_of(config)
    if layout.device == "cpu":
        return ALONE
    apart = layout.engines > 0
    return Spread(
        layout.ranks,
        config.parallel.dp_replicate,
        config.parallel.sequence_parallel,
        layout.engines if apart else len(layout.places),
        layout.spread,
        apart,
        config.rollout.chunks_per_engine,
    )


def refuse_uneven(config: TrainConfig, heads: int) -> None:
    """Refuse what the ranks, or vLLM, would refuse once they have the model.

    Args:
        config: of the run.
        heads: attention heads of the model.

    Raises:
        ParallelError: something does not divide them.
    """
    for name, count in (
        ("parallel.sequence_parallel", config.parallel.sequence_parallel),
        ("vllm.tensor_parallel", config.vllm.tensor_parallel),
    ):
        if heads % count:
            possible = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
            raise ParallelError(
                f"{name}={count} does not divide the model's {heads} attention heads; give one of {possible}"
            )


def device_of(config: TrainConfig) -> str:
    """`run.device`; of actors of Ray the CPU, unless they have GPUs."""
    return "cpu" if config.run.executor == "ray" and not config.ray.gpus else config.run.device


def described(config: TrainConfig) -> str:
    """Who is on how many cards, in words; empty if there is one."""
    spread, takes = spread_of(config), config.vllm.tensor_parallel
    if spread.cards == 1:
        alone = config.run.executor != "ray" and takes > 1
        return f"vLLM is on {takes} GPUs; planned is the first, which trains too" if alone else ""
    engines = f"{spread.engines} engine{'s' * (spread.engines > 1)}"
    if spread.of_engine > 1:
        engines += f" on {spread.of_engine} GPUs" + " each" * (spread.engines > 1)
    if spread.apart:
        who = f"{spread.ranks} rank{'s' * (spread.ranks > 1)}, and {engines}"
    else:
        beside = f"{engines} beside them" if spread.of_engine > 1 else "an engine beside each"
        who = f"{spread.ranks} ranks, with {beside}"
    if spread.replicas > 1:
        who += f"; {spread.replicas} replicas of the model"
    if spread.slices > 1:
        who += f"; {spread.slices} ranks to a sequence"
    return f"{spread.cards} GPUs: {who}"
