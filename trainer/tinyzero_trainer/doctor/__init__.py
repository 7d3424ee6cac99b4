"""`tinyzero doctor`: what stands in the way of training on a machine or a cluster, and what to type about each thing.

facts.py     what was seen, as plain records
probe.py     sees it (torch_probe.py in a process of its own, since what it imports may crash)
hardware/nvml.py   a part of that: the driver's GPUs
hardware/compute_capability.py   whether torch has kernels for a GPU; `tinyzero train` asks it too
checks.py    the machine: facts in, findings out; so do package_checks.py, gpu_checks.py and interconnect_checks.py
cli/doctor.py   the command

With --address, of a Ray and its nodes:

ray_facts.py       what was seen of them
cluster_probe.py   sees it, by ray_probe.py in a process of its own, which has node_probe.py run on each node
cluster_checks.py         facts in, findings out, on Ray and on each node; alike.py: on what is unlike among nodes
placement_checks.py         what of a run fits where

Only probe.py, torch_probe.py, hardware/nvml.py, cluster_probe.py, ray_probe.py and node_probe.py touch a machine (and
for them models/files.py, beside models/loading.py), so every finding can be had from made-up facts.
"""
