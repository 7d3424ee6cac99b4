"""`tinyzero doctor`: what stands in the way of training on this machine, and what to type about each thing.

facts.py     what was seen, as plain records
probe.py     sees it (torch_probe.py in a process of its own, since what it imports may crash)
nvidia_smi.py   a part of that: the driver's cards
kernels.py   whether torch has kernels for a card; `tinyzero train` asks it too
checks.py    the machine: facts in, findings out; packages.py, gpus.py and links.py do the same for theirs
command.py   the command

Only probe.py, torch_probe.py and nvidia_smi.py touch the machine (and for them model_files.py, beside models.py), so
every finding can be had from made-up facts.
"""
