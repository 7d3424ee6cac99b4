"""`tinyzero plan`: how much of a GPU's memory a run takes, how fast it goes, and which settings make it fit.

    shape.py      a model's shape and its exact number of parameters
    find_shape.py the shape behind a directory or a name
    constants.py  what was measured: the only numbers that a new measurement changes
    spread.py     who is on which of several cards, and what share each has
    links.py      links between cards, and what collectives take of them
    rollout.py    what the rollout engine takes of a GPU
    memory.py     what each role holds in each phase of a step
    speed.py      seconds of each phase
    traffic.py    what cards send each other in a step, and do not hide behind computing
    proposals.py  settings that make a run fit, and what they cost
    search.py     which of them make the shortest step
    refusals.py   what no card can do
    advice.py     what `train` says before it loads anything, and where it ran out of memory
    target.py     the card that is planned for
    view.py       a plan, and how it is shown
    command.py    the command

Pure functions over a model's shape and a configuration; no torch, unless an architecture is not known.
"""
