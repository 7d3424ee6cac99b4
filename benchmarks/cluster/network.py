"""Links of a cluster, and the cost of collectives: seconds, and bytes sent over NVLink and NICs.

Collectives are rings, as NCCL's all-gather and reduce-scatter are: a ring over all nodes goes through the GPUs of a
node, then to the next; there are as many rings as NICs, each with an equal part of the bytes.
"""

from dataclasses import astuple, dataclass

from tinyzero_trainer.hardware.gpu_specs import GpuSpec

NIC = 45e9
"""Bytes per second, each way, of a GPU's NIC: 90% of 400 Gb/s. One NIC per GPU:
https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-h100/latest/. 90% is assumed."""

RING_BASE, LINK_HOP, NIC_HOP = 8.4e-6, 3.4e-6, 9.6e-6
"""Seconds that a ring takes whatever its size, at its start and for each hop within a node and between nodes, as NCCL
itself estimates: https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc."""

NVLINK = 350e9
"""Bytes per second, each way, of a GPU's NVLink, of 450: an all-gather over 8 H100 reaches 350, a reduce-scatter 360
(https://github.com/NVIDIA/nccl/issues/1281)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    gpu: GpuSpec
    nodes: int = 1
    gpus: int = 8  # of each node
    nvlink: float = NVLINK  # bytes per second that a GPU sends to others of its node
    nic: float = NIC  # bytes per second that a GPU sends to other nodes

    @property
    def size(self) -> int:
        return self.nodes * self.gpus


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of something on otherwise idle links; bytes are the sum over all GPUs."""

    seconds: float = 0.0
    nvlink: float = 0.0
    nic: float = 0.0  # bytes from GPU to GPU over NICs
    hosts: float = 0.0  # bytes from node to node through the hosts, by Ray's object store

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> "Traffic":
        return Traffic(*(times * value for value in astuple(self)))


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that run a collective together; all GPUs of the cluster are in such groups, which work concurrently."""

    cluster: Cluster
    nodes: int
    gpus: int  # of each of these nodes

    @property
    def size(self) -> int:
        return self.nodes * self.gpus

    def gather(self, size: float) -> Traffic:
        """All-gather or reduce-scatter of `size` bytes in total: each GPU sends all but its own shard."""
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
        """All-reduce of `size` bytes per GPU: a reduce-scatter, then an all-gather."""
        return self.gather(size) * 2


def ring_seconds(size: float, nodes: int, gpus: int, within: float, nic: float) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in total over `gpus` GPUs of each node.

    As fast as the slower of a GPU's link within its node (`within`, bytes per second) and all NICs of a node.
    """
    count = nodes * gpus
    bandwidths = [within] * (gpus > 1) + [gpus * nic] * (nodes > 1)
    latency = RING_BASE + (count - nodes) * LINK_HOP + (nodes - 1) * NIC_HOP
    return latency + size * (count - 1) / count / min(bandwidths)


def broadcast(cluster: Cluster, nodes: int, size: float) -> Traffic:
    """From a GPU of another node to all GPUs of `nodes` nodes, chunk by chunk along a chain of the slowest link."""
    hops = nodes * (cluster.gpus - 1)
    return Traffic(
        RING_BASE + nodes * NIC_HOP + hops * LINK_HOP + size / min(cluster.nvlink, cluster.nic),
        nvlink=hops * size,
        nic=nodes * size,
    )
