"""Tasks: finding, loading and calling them (`registry.py`, `task.py`), and their splits. No hook specs."""
