"""`tinyzero plan`: how much of a GPU's memory a run takes, how fast it goes, and which settings make it fit.

    models/spec.py      a model's shape and its exact number of parameters
    models/hub.py the shape behind a directory or a name
    estimate/constants.py  what was measured: the only numbers that a new measurement changes
    config/parallel.py     who is on which of several cards, and what share each has
    estimate/interconnect.py      links between cards, and what collectives take of them
    estimate/engine_memory.py    what the rollout engine takes of a GPU
    estimate/memory.py     what each role holds in each phase of a step
    estimate/speed.py      seconds of each phase
    estimate/communication.py    what cards send each other in a step, and do not hide behind computing
    candidates.py  settings that make a run fit, and what they cost
    search.py     which of them make the shortest step
    limits.py   what no card can do
    advice.py     what `train` says before it loads anything, and where it ran out of memory
    target_gpu.py     the card that is planned for
    cli/plan_report.py       a plan, and how it is shown
    cli/plan.py    the command

Pure functions over a model's shape and a configuration; no torch, unless an architecture is not known.
"""
