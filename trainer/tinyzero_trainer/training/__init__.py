"""Models that learn: log-probabilities, micro-batches, optimizer, policy, critic. The formulas are in algorithms/."""
