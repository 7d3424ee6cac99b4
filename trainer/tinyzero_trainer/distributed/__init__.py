"""One model over several ranks: parallel dimensions, process groups, FSDP2, sequence parallelism, CPU offload.

It knows no algorithm. parallel_dims.py needs no torch.
"""
