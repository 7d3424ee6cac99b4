"""The scorers that `benchmarks/score.py` compares, its workloads, and the outcomes on labelled cases."""
