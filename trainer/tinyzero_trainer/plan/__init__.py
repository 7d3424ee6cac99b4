"""`tinyzero plan`: which settings make a run fit a GPU, and what `train` says about memory. Predictions: estimate/."""
