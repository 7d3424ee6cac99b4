"""The executor `ray`: the workers of a run as actors in a placement group, and their proxies.

- build.py: starts them as configured. cluster.py: Ray itself, and the placement group.
- base_actor.py, actors.py: what runs in the actors. remote_workers.py, remote_engine.py: their proxies.
- calls.py: calls of actors, and the error when one has died. They are restarted by executors/restart.py.
- watch.py: actors that hang, why one died, and the servers of a Ray that the run has started.
- weight_broadcast.py: weights from the ranks to dedicated engines.

Design: docs/design/ray.md.
"""
