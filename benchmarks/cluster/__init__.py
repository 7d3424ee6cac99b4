"""A GRPO step on many GPUs, calculated: what `benchmarks/scaling.py` shows. Nothing in here is measured by itself.

    network.py     links, and what a collective takes of them
    generation.py  engines that generate completions of unequal length
    host.py        what the driver and other processes do on processors
    memory.py      what a GPU holds, with weights and states sharded
    step.py        seconds and bytes of each phase of a step
    failures.py    checkpoints, and the time that failures cost

What a GPU does by itself is `tinyzero_trainer.plan`'s to say, which was measured; every other number stands in these
files beside its source, as a constant.
"""
