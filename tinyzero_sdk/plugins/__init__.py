"""Plugins of the SDK (`registry.py`) and the checks that plugins and tasks must pass. Tasks are in `tasks/`."""
