"""What planning takes from measurements rather than from the configuration; `memory.py` checks it.

Bytes are bytes, and a share is of something named. Nothing else in this package is a number that was fitted.
"""

from tinyzero_trainer.hardware.gpu import MIB

# ---- memory ----------------------------------------------------------------------------------------------------------

CONTEXT = 560 * MIB
"""A process's CUDA context with the kernels that it has loaded, cuBLAS' workspace included."""

SLACK = 0.08
"""Of what a process has allocated: what its allocator holds beyond it, in blocks that fit nothing."""

MARGIN = 0.1
"""Of a GPU: what a plan leaves free, which is the error that a prediction may have."""

MASTER_BYTES = 4
"""Of a weight that is trained, of its gradient, and of each of AdamW's two moments: float32."""

FROZEN_BYTES = 4
"""Of a weight below an adapter, or of a head that is not trained; the reference's are what it computes with."""

LAYERS_GATHERED = 2
"""Layers whose weights lie whole in the type that is computed in, at a time: one is computed, the next prefetched."""

LAYERS_ARRIVING = 1
"""The same between several ranks, beside those: an all-gather brings a layer into one buffer, and it is copied out."""

LAYERS_REDUCED = 1
"""Layers whose gradients are on their way at a time between several ranks, in the type that is computed in and in
float32: one is reduced while the next is computed."""

NCCL = 512 * MIB
"""A process's communicators with other GPUs. Assumed; that of one GPU alone takes next to nothing."""

WEIGHT_BUCKET = 2**28
"""Bytes of new weights that go to engines on GPUs of their own at a time; see ray.weight_group.PARCEL_BYTES."""

HIDDEN_EAGER, MLP_EAGER = 16, 8
"""Bytes kept for the backward pass, a layer and token, per unit of the hidden size and of the MLP's, uncompiled: each
norm keeps its input in float32 and twice in bfloat16; the MLP gate, its activation, up and their product."""

HIDDEN_COMPILED, MLP_COMPILED = 8, 6
"""The same where a layer is compiled, which computes the cheap parts again."""

LAYER_BACKWARD = 1.0
"""Gradients of a layer's activations that exist at a time, as a share of what the layer keeps."""

HIDDEN_FORWARD, MLP_FORWARD = 14, 6
"""Bytes a token that a layer needs while it is computed without gradient, as above; one layer at a time."""

HEAD_ELEMENTS = {2: 2**28, 4: 2**26}
"""Logits of a chunk, by the bytes of a number; see head.CHUNK_ELEMENTS."""

VLLM_BESIDE = 700 * MIB
"""What vLLM takes beyond vllm.gpu_memory_gb: CUDA graphs, and workspaces that its own profile does not see."""

VLLM_WORKSPACE = 900 * MIB
"""Within vllm.gpu_memory_gb: activations of a prefill of 8,192 tokens."""

VLLM_SAMPLER_BYTES = 12
"""Within vllm.gpu_memory_gb: bytes a logit of the sequences decoded at a time."""

VLLM_ASLEEP = 900 * MIB
"""What vLLM keeps while it sleeps, beside its process's context: CUDA graphs and workspaces."""

VLLM_SHARE = 0.6
"""Of the GPU: the most that vllm.gpu_memory_gb is where it is not set."""

VLLM_SEQUENCES = 1024
"""At a time, where rollout.max_num_seqs is not set: a batch of vLLM's gains little above that."""

STEP_NUMBERS = 8
"""Numbers a sequence per unit of the MLP's width, that a decoding step of the engine `torch` computes on the way."""

PROMPT_TOKENS = 256
"""Tokens of a prompt where nobody says how long they are."""

COMMON_GPU = "RTX 4090"
"""By whose speed settings are compared where the GPU's own is not known."""

# ---- time ------------------------------------------------------------------------------------------------------------

UPDATE_SHARE = 0.41
"""Of a GPU's peak FLOP/s: what the update of a large model reaches, by 6 · parameters · tokens."""

HALF_SHARE_AT = 55e6
"""Parameters of a model that reaches half of that share."""

VLLM_BANDWIDTH_SHARE = 0.6
"""Of a GPU's memory bandwidth, while vLLM decodes; assumed."""

VLLM_STEP, VLLM_SEQUENCE, VLLM_LOGIT_BYTES = 1.25e-3, 14.6e-6, 115
"""Seconds of vLLM's host for a decoding step, and for each sequence in it; read and written of each logit. Such that 8
and 1,024 sequences of 0.5B and 1,024 of 10M take as long as they did."""

TORCH_STEP, TORCH_LAYER = 120e-6, 15e-6
"""Seconds of a replayed CUDA graph for a decoding step of the engine `torch`, and for each layer in it."""

TORCH_BANDWIDTH_SHARE, TORCH_SHARE = 0.95, 0.6
"""Of a GPU's memory bandwidth and of its peak FLOP/s, while the engine `torch` decodes."""

TORCH_LEAST_TOKENS = 160
"""By so many tokens a sequence seems longer when the engine `torch` reads its cache: what starting to read costs."""

PLAIN_STEP, PLAIN_LAYER = 5e-3, 1.1e-3
"""Seconds of the host for a decoding step of the engine `torch` without CUDA graphs, and for each layer in it: kernel
after kernel is launched from Python, while the GPU works them off. Between two virtual hosts, of 32 and 36 ms."""

PLAIN_CACHE_PASSES = 14
"""How often that engine reads or writes its cache in a step, as measured: it grows by being copied, and kernels that
are made for more than one query attend to it."""

PLAIN_LOGIT_BYTES = 50
"""Read and written of each logit, by that engine's drawing in plain torch."""

PASS_LAYER = 1.5e-3
"""Seconds of the host for a layer in a forward pass over a micro-batch; a backward pass takes twice that. From whole
steps of 0.5B with 1 and 3 sequences a micro-batch, on a virtual machine, which is slower at it than others."""

PCIE = 20e9
"""Bytes a second between the host and the GPU."""

HOST_STEP = 15e9
"""Bytes a second that AdamW steps on the host."""

VLLM_WAKE = 0.6
"""Seconds to put vLLM to sleep without its weights, and to wake it up."""

SCORING_RATE = 20_000
"""Completions scored a second."""

# ---- links between GPUs; how fast each kind of GPU's are is in links.py --------------------------------------------

NVLINK_SHARE = 350 / 450
"""Of NVLink's bandwidth each way, what an all-gather reaches: 350 GB/s over 8 H100, and 360 in a reduce-scatter, of the
450 of the data sheet (https://github.com/NVIDIA/nccl/issues/1281)."""

PCIE_SHARE = 0.6
"""Of the bandwidth of 16 lanes of PCIe each way, for GPUs without NVLink. Assumed."""

GPUS_OF_A_NODE = 8
"""At most: as many of a run's GPUs are taken to share host memory."""

RING_BASE, LINK_HOP = 8.4e-6, 3.4e-6
"""Seconds that a ring takes whatever its size, at its start and for each hop within a node, as NCCL itself estimates:
https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc."""

TENSORS_OF_A_LAYER = 12
"""Of Qwen2: four of attention with three biases, three of the MLP, two norms."""
