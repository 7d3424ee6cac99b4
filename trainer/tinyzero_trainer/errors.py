"""A worker that died under a run: which, and what can still be saved. Noticed in ray/, told by the loop."""

import shlex

from tinyzero_sdk.errors import TinyZeroError


class WorkerDiedError(TinyZeroError):
    """A process that the run needs has died."""

    def __init__(self, which: str, end: str, *, policy_is_whole: bool) -> None:
        """
        Args:
            which: the worker's name.
            end: how it ended: "has died".
            policy_is_whole: whether those that learn are there, and as they were before the step.
        """
        super().__init__(f"{which} {end}")
        self.which, self.policy_is_whole = which, policy_is_whole

    def told(self, saved: int | None, output: str) -> TinyZeroError:
        """The same for the user.

        Args:
            saved: step of the newest checkpoint; None = there is none.
            output: the run directory.
        """
        if saved is None:
            return TinyZeroError(f"{self}; nothing has been saved yet: start again, with a smaller checkpoint.every")
        how_to_go_on = f"go on with: tinyzero train --output {shlex.quote(output)} --resume"
        return TinyZeroError(f"{self}; step {saved} is saved; {how_to_go_on}")
