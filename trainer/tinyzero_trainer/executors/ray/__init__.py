"""The executor `ray`: the workers of a run as actors in a placement group, and the proxies that the loop has of them.

- build.py: all of it, from the configuration; cluster.py: Ray itself, and the placement group.
- actors.py, reward_actor.py: what runs in the actors. remote_workers.py, remote_engine.py: their proxies.
- calls.py: calls of actors, and the errors when one has died. Restarting them: executors/restart.py.
- weight_broadcast.py: weights from GPU to GPU. paths.py: paths that hold on every machine.

Design: docs/ray.md.
"""
