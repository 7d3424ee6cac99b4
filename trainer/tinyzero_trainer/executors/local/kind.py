"""What the executor `local` is."""

from tinyzero_trainer.kinds import ExecutorKind

KIND = ExecutorKind(name="local", build="tinyzero_trainer.executors.local.build")
