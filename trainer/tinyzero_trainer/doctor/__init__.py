"""`tinyzero doctor`: what stands in the way of training on this machine, and what to type about each thing.

facts.py     what was seen, as plain records
probe.py     sees it (torch_probe.py in a process of its own, since what it imports may crash)
nvidia_smi.py, model_files.py   parts of it: the driver's cards, and a model's files (models.py asks it too)
kernels.py   whether torch has kernels for a card; `tinyzero train` asks it too
checks.py    the machine: facts in, findings out; packages.py and gpus.py do the same for theirs
command.py   the command

Only these four touch the machine, so every finding can be had from made-up facts.
"""
