"""Links of a cluster, and what a collective takes of them: seconds, and bytes sent over NVLink and over NICs.

Collectives are rings, as NCCL's all-gather and reduce-scatter are: a ring over all nodes goes through the GPUs of a
node, then on to the next, and there are as many rings as NICs, each with its share of the bytes.
"""

from dataclasses import dataclass

from tinyzero_trainer.estimate.constants import LINK_HOP, NVLINK_SHARE, RING_BASE
from tinyzero_trainer.hardware.gpu_specs import GpuSpec

NIC = 45e9
"""Bytes a second, each way, of a GPU's network card: 90 % of 400 Gb/s. That there is one for each GPU:
https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-h100/latest/. 90 % is assumed."""

NIC_HOP = 9.6e-6
"""Seconds that a ring takes for each hop between nodes; see `LINK_HOP`."""

NVLINK = 450e9 * NVLINK_SHARE
"""Bytes a second, each way, of a GPU's NVLink."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    gpu: GpuSpec
    """Kind of GPU."""

    nodes: int = 1
    """Machines."""

    gpus: int = 8
    """GPUs of each."""

    nvlink: float = NVLINK
    """Bytes a second that a GPU sends to others of its node."""

    nic: float = NIC
    """Bytes a second that a GPU sends to other nodes."""

    @property
    def size(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Traffic:
    """What something takes of the links."""

    seconds: float = 0.0
    """If nothing else is on them."""

    nvlink: float = 0.0
    """Bytes that all GPUs together send over NVLink."""

    nic: float = 0.0
    """Bytes that they send over NICs, GPU to GPU."""

    hosts: float = 0.0
    """Bytes that go from node to node through the hosts, by Ray's object store."""

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.seconds + other.seconds, self.nvlink + other.nvlink, self.nic + other.nic, self.hosts + other.hosts
        )

    def __mul__(self, times: float) -> "Traffic":
        return Traffic(times * self.seconds, times * self.nvlink, times * self.nic, times * self.hosts)


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that do a collective together; all GPUs of the cluster are in such groups, which work at the same time."""

    cluster: Cluster
    """Where."""

    nodes: int
    """That a group goes over."""

    gpus: int
    """Of each of these nodes."""

    @property
    def size(self) -> int:
        """GPUs of a group."""
        return self.nodes * self.gpus

    def gather(self, size: float) -> Traffic:
        """All-gather of `size` bytes in all, or a reduce-scatter of them: each GPU sends all but its own share."""
        if self.size == 1:
            return Traffic()
        cluster, sent = self.cluster, size * (self.size - 1) / self.size
        groups = cluster.size // self.size
        between = self.nodes if self.nodes > 1 else 0  # of the ring's hops, those from node to node
        return Traffic(
            ring_seconds(size, self.nodes, self.gpus, cluster.nvlink, cluster.nic),
            nvlink=groups * (self.size - between) * sent,
            nic=groups * between * sent,
        )

    def all_reduce(self, size: float) -> Traffic:
        """All-reduce of `size` bytes, which each GPU has: a reduce-scatter, then an all-gather."""
        return self.gather(size) * 2


def ring_seconds(size: float, nodes: int, gpus: int, within: float, nic: float) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all.

    As fast as the slower of a GPU's link within its node and the network cards of a node, together.

    Args:
        size: bytes.
        nodes: that take part.
        gpus: of each of them.
        within: bytes a second that a GPU sends to others of its node.
        nic: bytes a second that a GPU's network card sends.
    """
    count = nodes * gpus
    bandwidths = [within] * (gpus > 1) + [gpus * nic] * (nodes > 1)
    latency = RING_BASE + (count - nodes) * LINK_HOP + (nodes - 1) * NIC_HOP
    return latency + size * (count - 1) / count / min(bandwidths)


def broadcast(cluster: Cluster, nodes: int, size: float) -> Traffic:
    """From a GPU of another node to all GPUs of so many nodes, piece after piece along a chain.

    As fast as a GPU's slowest link.
    """
    hops = nodes * (cluster.gpus - 1)
    return Traffic(
        RING_BASE + nodes * NIC_HOP + hops * LINK_HOP + size / min(cluster.nvlink, cluster.nic),
        nvlink=hops * size,
        nic=nodes * size,
    )
