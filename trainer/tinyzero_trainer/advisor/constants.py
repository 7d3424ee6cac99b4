"""Measured and fitted numbers of the predictions: bytes, seconds, and fractions (`..._SHARE`) of what is named.

Nothing else in this package is fitted. Assumed numbers say so. Numbers of the code that is predicted stand beside that
code, in files named sizes.py and cost_model.py.
"""

# ---- memory ----------------------------------------------------------------------------------------------------------

MASTER_BYTES = 4  # a trained weight, its gradient, and each of AdamW's two moments: float32
FROZEN_BYTES = 4  # a weight below an adapter, or of a head that is not trained; a reference has the compute dtype

LAYERS_GATHERED = 2  # whose weights are gathered in the compute dtype at a time: one computed, the next prefetched
LAYERS_ARRIVING = 1  # more between several ranks: an all-gather brings a layer into a buffer, from which it is copied
LAYERS_REDUCED = 1  # whose gradients are reduced at a time between several ranks, in the compute dtype and in float32

# Bytes of a layer for each token, per unit of the hidden size and of the MLP's. For the backward pass each norm keeps
# its input in float32 and twice in bfloat16; the MLP keeps gate, activation, up and their product.
HIDDEN_EAGER, MLP_EAGER = 16, 8
HIDDEN_COMPILED, MLP_COMPILED = 8, 6  # a compiled layer recomputes the cheap parts
MLP_FLOAT8 = 4  # with model.float8 it keeps gate and up alone
LAYER_BACKWARD = 1.0  # gradients of a layer's activations that exist at a time, as a fraction of what the layer keeps

COMMON_GPU = "RTX 4090"  # compares the speed of settings where the GPU's own is not known

# ---- time ------------------------------------------------------------------------------------------------------------

UPDATE_SHARE = 0.43  # fraction of a GPU's peak FLOP/s that a large model's update reaches, by 6 · parameters · tokens
HALF_SHARE_AT = 55e6  # parameters of a model that reaches half of that
FLOAT8_UPDATE = 0.86  # the time of an update with model.float8, relative to one in bfloat16; at 0.5B

PASS_LAYER = 1.5e-3
"""Seconds on the host for a layer in a forward pass over a micro-batch; a backward pass takes twice that. From steps at
0.5B with 1 and 3 sequences in a micro-batch, on a virtual machine, which is slower than others."""

LAUNCH_WAIT = 0.25  # fraction of the update's launching that a GPU waits for, where settings are compared; assumed
PCIE = 20e9  # bytes a second between the host and the GPU
HOST_STEP = 15e9  # bytes a second that AdamW updates on the host
SCORING_RATE = 20_000  # completions a second
GPUS_OF_A_NODE = 8  # GPUs of a run that are assumed to share host memory, at most
