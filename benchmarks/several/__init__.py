"""What `benchmarks/several_gpus.py` is made of."""
