"""The suites of `benchmarks/several_gpus.py`, the scheduler of their jobs, and the tables of their results."""
