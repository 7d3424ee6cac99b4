"""The package of a new task (`tinyzero new`): its name, and a small example that works and is tested."""
