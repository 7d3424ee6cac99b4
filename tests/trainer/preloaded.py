"""What is imported once for all processes that `processes.py` starts: whatever takes long."""

from tinyzero_trainer.collector import without_collector

with without_collector():
    import tinyzero_trainer.loop
    import tinyzero_trainer.ray.actors  # noqa: F401
