"""What is recorded and shown of a run: metrics, trackers, progress, the plot, time and memory. It decides nothing."""
