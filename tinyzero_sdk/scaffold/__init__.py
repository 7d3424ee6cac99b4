"""A new task from nothing: the name, and a package with a small task that works and is tested."""
