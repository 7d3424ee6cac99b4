"""What the cards of a run send each other in a step, in seconds, as far as it is not hidden behind computing."""

from dataclasses import dataclass
from math import gcd

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.spread import Spread
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.interconnect import Links, links_of
from tinyzero_trainer.estimate.workload import Workload, number_bytes
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of a run; nothing on one card."""

    shape: ModelSpec
    """The model's."""

    config: TrainConfig
    """Of the run."""

    work: Workload
    """Of a step."""

    spread: Spread
    """Over cards."""

    links: Links
    """Between them."""

    @classmethod
    def of(
        cls, shape: ModelSpec, config: TrainConfig, card: GpuSpec, work: Workload, spread: Spread, nodes: int | None
    ) -> "Traffic":
        """On cards of a kind."""
        return cls(shape, config, work, spread, links_of(card, spread.cards, nodes))

    @property
    def number(self) -> int:
        """Bytes of a number that is computed with."""
        return number_bytes(self.config)

    def beside_forward(self, compute: float) -> float:
        """Seconds of a pass over the batch that computes for so many.

        While a layer computes, the next is gathered; embedding, head and the first layer are waited for.
        """
        if self.spread.ranks == 1:
            return compute
        count, shape = self.work.micro_batches, self.shape
        layer, root = self._gathered(shape.layer), self._gathered(shape.embeddings)
        each = root + layer + max(compute / count, (shape.layers - 1) * layer)
        return count * (each + self._exchanged())

    def beside_backward(self, compute: float) -> float:
        """The same backwards: layers are gathered anew, and gradients added up in float32; the last are waited for."""
        if self.spread.ranks == 1:
            return compute
        count, shape, rank = self.work.micro_batches, self.shape, self.config.lora.rank
        adapter = shape.adapter(rank, self.config.lora.target_modules)
        reduced = self._reduced(adapter // max(1, shape.layers) if adapter else shape.layer)
        layers = shape.layers * (self._gathered(shape.layer) + reduced)
        root = 0.0 if adapter else self._reduced(shape.embeddings)
        again = 2 if self.config.memory.activation_checkpointing else 1
        return count * (max(compute / count, layers) + root + again * self._exchanged())

    def of_decoding(self, sequences: int) -> float:
        """Seconds in which the cards of an engine add up what attention and MLP give, in a step for so many."""
        cards = self.config.vllm.tensor_parallel
        if cards == 1:
            return 0.0
        return 2 * self.shape.layers * self.links.all_reduce(self.number * sequences * self.shape.hidden, cards)

    def new_weights(self) -> float:
        """Seconds to put every tensor together in float32, and to send them to engines that are on other cards."""
        tensors = constants.TENSORS_OF_A_LAYER * self.shape.layers + 3
        size = self.shape.parameters
        seconds = tensors * self.links.gather(constants.MASTER_BYTES * size / tensors, self.spread.shards)
        if self.spread.apart:
            seconds += self.links.broadcast(self.number * size, self.spread.engines)
        return seconds

    def _gathered(self, parameters: int) -> float:
        """Weights that a replica's ranks put together."""
        return self.links.gather(self.number * parameters, self.spread.shards)

    def _reduced(self, parameters: int) -> float:
        """Gradients that all ranks add up: each replica its own, and then replicas theirs, shard by shard."""
        size, shards = constants.MASTER_BYTES * parameters, self.spread.shards
        across = self.links.all_reduce(size / shards, self.spread.replicas, stride=shards)
        return self.links.gather(size, shards) + across

    def _exchanged(self) -> float:
        """What ranks that share sequences give each other in a micro-batch: heads for tokens, and back."""
        slices, shape = self.work.slices, self.shape
        if slices == 1:
            return 0.0
        repeated = slices // gcd(shape.kv_heads, slices)
        states = (shape.attention, shape.kv * repeated, shape.kv * repeated, shape.attention)
        tokens = self.number * self.work.micro_batch
        return shape.layers * sum(self.links.exchange(tokens * width, slices) for width in states)
