"""Seconds of communication between the GPUs of one node in a step that computation does not hide.

Collectives are rings, as NCCL's all-gather and reduce-scatter are. Networks between nodes are not modelled.
"""

from dataclasses import dataclass
from math import gcd

from tinyzero_trainer.advisor import constants
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.distributed.workload import Workload, number_bytes
from tinyzero_trainer.hardware.gpu_specs import GpuSpec
from tinyzero_trainer.models.spec import ModelSpec

_NVLINK = {
    900e9: ("B300", "B200"),
    450e9: ("H200", "GH200", "H100", "H20"),
    300e9: ("A100", "A100 40GB"),
}
"""Bytes a second each way where NVLink connects all GPUs; NVIDIA's data sheets give the sum of both ways."""

_PCIE = {
    64e9: ("H200 NVL", "H100 NVL", "H100 PCIe", "RTX PRO 6000 Blackwell", "RTX 5090", "RTX 5080", "RTX 5070 Ti"),
    16e9: ("V100 32GB", "V100", "T4"),
}
"""The same for 16 lanes of PCIe 5 and 3; all others have PCIe 4. Bridges between pairs of GPUs do not count."""


@dataclass(frozen=True, slots=True)
class Interconnect:
    """What connects the GPUs of a node; rates in bytes a second that a GPU sends."""

    kind: str
    """`NVLink` or `PCIe`."""

    rated: float
    """By the data sheet."""

    reached: float
    """By collectives."""

    @classmethod
    def of(cls, gpu: GpuSpec) -> "Interconnect":
        """The one of machines with such GPUs.

        Example:
            >>> from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
            >>> found = [Interconnect.of(find_gpu_spec(name)) for name in ("H200", "RTX 4090")]
            >>> [(one.kind, round(one.reached / 1e9)) for one in found]
            [('NVLink', 350), ('PCIe', 19)]
        """
        for rate, names in _NVLINK.items():
            if gpu.name in names:
                return cls("NVLink", rate, constants.NVLINK_SHARE * rate)
        rate = next((rate for rate, names in _PCIE.items() if gpu.name in names), 32e9)
        return cls("PCIe", rate, constants.PCIE_SHARE * rate)

    def gather(self, size: float, count: int) -> float:
        """Seconds of an all-gather over `count` GPUs of `size` bytes in all, or of a reduce-scatter of them."""
        if count == 1:
            return 0.0
        return constants.RING_BASE + (count - 1) * constants.LINK_HOP + size * (count - 1) / count / self.reached

    def all_reduce(self, size: float, count: int) -> float:
        """Seconds of an all-reduce of `size` bytes: a reduce-scatter, then an all-gather."""
        return 2 * self.gather(size, count)

    def broadcast(self, size: float, count: int) -> float:
        """Seconds in which one GPU sends `size` bytes to `count` others, pipelined along a chain."""
        return constants.RING_BASE + count * constants.LINK_HOP + size / self.reached


@dataclass(frozen=True, slots=True)
class Traffic:
    """A run and its communication; none on one GPU."""

    spec: ModelSpec
    config: TrainConfig
    work: Workload
    dims: ParallelDims
    interconnect: Interconnect

    def with_forward(self, compute: float) -> float:
        """Seconds of a pass over the batch whose computation takes `compute` seconds.

        The next layer is gathered during a layer's computation; embedding, head and the first layer are waited for.
        """
        if self.dims.world_size == 1:
            return compute
        count, spec = self.work.micro_batches, self.spec
        layer, root = self._gathered(spec.layer), self._gathered(spec.embeddings)
        each = root + layer + max(compute / count, (spec.layers - 1) * layer)
        return self._gathering * each + (count - self._gathering) * compute / count + count * self._exchanged()

    def with_backward(self, compute: float) -> float:
        """The same for a backward pass: layers are gathered again, and gradients reduced in float32."""
        if self.dims.world_size == 1:
            return compute
        count, spec, rank = self.work.micro_batches, self.spec, self.config.lora.rank
        adapter = spec.adapter(rank, self.config.lora.target_modules)
        reduced = self._reduced(adapter // max(1, spec.layers) if adapter else spec.layer)
        again = self._gathered(spec.layer) if self._gathering == count else 0.0
        layers = spec.layers * (again + reduced)
        root = 0.0 if adapter else self._reduced(spec.embeddings)
        each = max(compute / count, layers) + root
        passes = 2 if self.config.memory.activation_checkpointing is True else 1
        return self._gathering * each + (count - self._gathering) * compute / count + count * passes * self._exchanged()

    @property
    def _gathering(self) -> int:
        """Micro-batches whose passes gather the weights, and reduce the gradients."""
        once = self.config.memory.reshard_after_forward is False
        return self.work.mini_batches if once else self.work.micro_batches

    def of_decoding(self, sequences: int) -> float:
        """Seconds in which an engine's GPUs reduce the outputs of attention and MLP, in one decoding step."""
        size = number_bytes(self.config) * sequences * self.spec.hidden
        return 2 * self.spec.layers * self.interconnect.all_reduce(size, self.config.vllm.tensor_parallel)

    def new_weights(self) -> float:
        """Seconds to gather every tensor in float32, and to send them, or an adapter, to engines on other GPUs."""
        lora, tensors = self.config.lora, constants.TENSORS_OF_A_LAYER * self.spec.layers + 3
        adapter = 0 if self.dims.colocated else self.spec.adapter(lora.rank, lora.target_modules)
        size, number = (
            (adapter, constants.MASTER_BYTES) if adapter else (self.spec.parameters, number_bytes(self.config))
        )
        seconds = tensors * self.interconnect.gather(constants.MASTER_BYTES * size / tensors, self.dims.dp_shard)
        if not self.dims.colocated:
            seconds += self.interconnect.broadcast(number * size, self.dims.num_engines)
        return seconds

    def _gathered(self, parameters: int) -> float:
        return self.interconnect.gather(number_bytes(self.config) * parameters, self.dims.dp_shard)

    def _reduced(self, parameters: int) -> float:
        """Reducing gradients within each replica, then between replicas, shard by shard."""
        size, shards = constants.MASTER_BYTES * parameters, self.dims.dp_shard
        between = self.interconnect.all_reduce(size / shards, self.dims.dp_replicate)
        return self.interconnect.gather(size, shards) + between

    def _exchanged(self) -> float:
        """Ulysses' exchange of heads for tokens and back, in a micro-batch; each rank sends as in an all-gather."""
        ranks, spec = self.work.sequence_parallel, self.spec
        if ranks == 1:
            return 0.0
        repeated = ranks // gcd(spec.kv_heads, ranks)
        widths = (spec.attention, spec.kv * repeated, spec.kv * repeated, spec.attention)
        tokens = number_bytes(self.config) * self.work.micro_batch
        return spec.layers * sum(self.interconnect.gather(tokens * width, ranks) for width in widths)
