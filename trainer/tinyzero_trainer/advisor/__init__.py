"""Advice on memory and speed: `tinyzero plan`, values for `auto`, and what to change after memory ran out.

- memory.py, speed.py: predict a step from a model's sizes and a configuration.
- fit.py, auto.py, plan.py, engine_choice.py: choose settings by these predictions.
- advice.py, limits.py: what commands say before a run and after memory ran out.
- target_gpu.py, host.py: the GPU and the host that a run has to fit.
"""
