"""`tinyzero doctor`: whether a run will work on this machine or Ray cluster, and which command fixes what is wrong.

- facts.py: what was seen, and what a check reports about it, as plain records.
- probe.py, cluster_probe.py: look at this machine, and at a Ray cluster; torch_probe.py imports torch in a child
  process, which may crash or hang, and node_probe.py runs on each node.
- checks.py: facts in, findings out; also package_checks.py, gpu_checks.py and cluster_checks.py.

Checks touch no machine, so each finding can be tested with synthetic facts. The command is in cli/doctor.py.
"""
