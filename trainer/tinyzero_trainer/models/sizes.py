"""Numbers of the models that predictions need too. No torch in here."""

HEAD_ELEMENTS = {2: 2**28, 4: 2**26}
"""Logits held at a time, by the bytes of a number: 256 or 512 MiB. Small chunks cost time: each adds to the gradient of
the entire head."""

KEPT_ELEMENTS = 2**30
"""Logits of a chunk on a GPU, where the kernels need no memory beside them, if all are kept anyway."""

HIDDEN_FORWARD, MLP_FORWARD = 14, 6
"""Bytes of a layer in a forward pass without gradient, in bfloat16, for each token, per unit of the hidden size and of
the MLP's."""

FLOAT8_LARGE = 2**22
"""Elements of a weight from which its products are in float8; the smallest that was measured is of an MLP at 0.5B."""
