"""Worker processes that load one task and can be killed. What they do with it is up to their callers."""
