"""The model of `benchmarks/scaling.py`: links, engines, processors, memory and failures of a cluster; no command.

The speed of one GPU is predicted by `tinyzero_trainer.advisor`; all other constants are in these files, with their
sources.
"""
