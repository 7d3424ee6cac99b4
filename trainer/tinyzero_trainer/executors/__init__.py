"""The workers of a run (policy, critic, rollout engine): in this process or in Ray's actors; not what they do.

- base.py: the workers as the training loop sees them. build.py: which executor a run gets. tasks.py: a run's tasks.
- local/, ray/: an executor each; kind.py says what it is, build.py builds its workers.
- restart.py: the one mechanism that restarts a worker that died.
"""
