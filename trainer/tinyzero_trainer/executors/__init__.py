"""The workers of a run (policy, critic, rollout engine, scorers): in this process or in Ray's actors; not what they do.

- base.py: the workers as the training loop sees them. build.py: which executor a run gets. tasks.py: a run's tasks.
- local.py: the executor `local`. ray/: the executor `ray`.
- restart.py: the one mechanism that restarts a worker that died.
"""
