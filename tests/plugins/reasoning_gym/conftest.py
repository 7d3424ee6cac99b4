"""`test_tasks.py` needs reasoning-gym, which is not installed here: `test_environment.py` runs it where it is."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("reasoning_gym") else ["test_tasks.py"]
