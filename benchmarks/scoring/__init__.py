"""What `benchmarks/score.py` compares, and on what: others' rewards, workloads, verdicts on labelled cases."""
