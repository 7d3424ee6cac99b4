"""`tinyzero plan`: which settings make a run fit a GPU, what `train` says about memory, and `rollout.engine=auto`.

Predictions are in estimate/.
"""
