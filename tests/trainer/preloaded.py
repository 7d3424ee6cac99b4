"""What is imported once for all processes that `processes.py` starts: whatever takes long."""

from tinyzero_trainer.utils.startup import without_collector

with without_collector():
    import tinyzero_trainer.controller.loop
    import tinyzero_trainer.executors.ray.actors  # noqa: F401
