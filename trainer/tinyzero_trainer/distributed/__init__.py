"""One model over several ranks: process groups, FSDP2, sequence parallelism, CPU offload. It knows no algorithm."""
