"""Worker processes that can be killed, one host for all of them. What they do with it is up to their callers."""
