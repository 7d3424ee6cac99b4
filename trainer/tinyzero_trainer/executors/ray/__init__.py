"""The executor `ray`: the roles of a run as actors in a placement group. The loop is the same as ever.

- paths.py: what is named by a path, for everyone.
- cluster.py: Ray itself, and room for the actors.
- actors.py, actors.py, scorer.py: what runs in them.
- weight_group.py: weights from GPU to GPU.
- asking.py: calls to them, and what is told when one has died.
- remote_workers.py, engines.py: what the loop has in their place.
- build.py: all of it, from the configuration.

Design: docs/ray.md.
"""
