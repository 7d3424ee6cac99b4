"""Models over several ranks: process groups, FSDP, sequence parallelism, offload. No algorithm is in here."""
