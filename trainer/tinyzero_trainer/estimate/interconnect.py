"""Links between GPUs, and the seconds that collectives take on them. config/parallel.py spreads a run over GPUs.

Collectives are rings, as NCCL's all-gather and reduce-scatter are: a ring over all nodes goes through the cards of a
node, then on to the next, and there are as many rings as network cards, each with its share of the bytes.
"""

from dataclasses import dataclass

from tinyzero_trainer.estimate import constants
from tinyzero_trainer.hardware.gpu_specs import GpuSpec

_NVLINK = {
    900e9: ("B300", "B200"),
    450e9: ("H200", "GH200", "H100", "H20"),
    300e9: ("A100", "A100 40GB"),
}
"""Bytes a second each way of cards whose machines have NVLink between all of them, by NVIDIA's data sheets, which give
both ways together: 1.8 TB/s, 900 and 600 GB/s."""

_PCIE = {
    64e9: ("H200 NVL", "H100 NVL", "H100 PCIe", "RTX PRO 6000 Blackwell", "RTX 5090", "RTX 5080", "RTX 5070 Ti"),
    16e9: ("V100 32GB", "V100", "T4"),
}
"""The same of 16 lanes of PCIe 5 and 3; all others have PCIe 4. Bridges between pairs of cards are left out."""

_PCIE_4 = 32e9


@dataclass(frozen=True, slots=True)
class Links:
    """Of equal cards in equal nodes."""

    kind: str
    """What is between the cards of a node."""

    rated: float
    """Bytes a second that a card sends to others of its node, by the data sheet."""

    within: float
    """The same, as it is reached."""

    cards: int
    """Of all nodes."""

    nodes: int
    """Machines."""

    @property
    def of_a_node(self) -> int:
        """Cards of each node, at the most."""
        return -(-self.cards // self.nodes)

    def gather(self, size: float, count: int, stride: int = 1) -> float:
        """Seconds of an all-gather of `size` bytes in all, or of a reduce-scatter of them.

        Args:
            size: of which each card sends all but its own share.
            count: cards that do it together, while all others do the same.
            stride: from one of them to the next; cards are numbered node by node.
        """
        nodes = -(-count // max(1, self.of_a_node // stride))
        return ring_seconds(size, nodes, -(-count // nodes), self.within, constants.NIC) if count > 1 else 0.0

    def all_reduce(self, size: float, count: int, stride: int = 1) -> float:
        """Seconds of an all-reduce of `size` bytes, which each card has: a reduce-scatter, then an all-gather."""
        return 2 * self.gather(size, count, stride)

    def exchange(self, size: float, count: int) -> float:
        """Seconds in which each of `count` neighbours gives each other one its part of `size` bytes that it has."""
        return self.gather(size, count)  # as many bytes leave each of them

    def broadcast(self, size: float, count: int) -> float:
        """Seconds in which one card sends `size` bytes to `count` others, piece after piece along a chain."""
        hop = constants.LINK_HOP if self.nodes == 1 else constants.NIC_HOP
        slowest = self.within if self.nodes == 1 else min(self.within, constants.NIC)
        return constants.RING_BASE + count * hop + size / slowest


def ring_seconds(size: float, nodes: int, cards: int, within: float, nic: float) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all.

    As fast as the slower of a card's link within its node and the network cards of a node, together.

    Args:
        size: bytes.
        nodes: that take part.
        cards: of each of them.
        within: bytes a second that a card sends to others of its node.
        nic: bytes a second that a card's network card sends.
    """
    count = nodes * cards
    bandwidths = [within] * (cards > 1) + [cards * nic] * (nodes > 1)
    latency = constants.RING_BASE + (count - nodes) * constants.LINK_HOP + (nodes - 1) * constants.NIC_HOP
    return latency + size * (count - 1) / count / min(bandwidths)


def nodes_of(cards: int, nodes: int | None = None) -> int:
    """Machines that so many cards are in; where that is not said, as few as can be."""
    return nodes or -(-cards // constants.GPUS_OF_A_NODE)


def links_of(card: GpuSpec, cards: int, nodes: int | None = None) -> Links:
    """Those of a kind of card.

    Args:
        card: by whose name it is known.
        cards: in all.
        nodes: see `nodes_of`.

    Example:
        >>> from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
        >>> found = [links_of(find_gpu_spec(name), 4) for name in ("H200", "RTX 4090")]
        >>> [(links.kind, round(links.within / 1e9)) for links in found]
        [('NVLink', 350), ('PCIe', 19)]
    """
    nodes = nodes_of(cards, nodes)
    for rate, names in _NVLINK.items():
        if card.name in names:
            return Links("NVLink", rate, constants.NVLINK_SHARE * rate, cards, nodes)
    rate = next((rate for rate, names in _PCIE.items() if card.name in names), _PCIE_4)
    return Links("PCIe", rate, constants.PCIE_SHARE * rate, cards, nodes)
