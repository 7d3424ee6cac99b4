"""Updates skipped because they are not finite: reported, and their batches kept for `tinyzero replay`."""

from collections.abc import Callable
from shlex import quote

from tinyzero_sdk.console import plural
from tinyzero_sdk.data.files import replacing
from tinyzero_sdk.errors import DataError
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.training.optimizer import UpdateError

MOST_SKIPPED = 10  # batches kept of skipped updates


class SkippedUpdates:
    """Reports updates that were skipped, and keeps the newest of their batches in the run's directory."""

    def __init__(self, run: RunDirectory, warn: Callable[[str], None]) -> None:
        self.run, self._warn = run, warn

    def watch(self, step: int, update: Callable[[], dict[str, float]], batch: Callable[[], bytes]) -> dict[str, float]:
        """The metrics of `update`, which trains on a step's batch; `batch` is its content, to be kept."""
        try:
            metrics = update()
        except UpdateError as error:
            raise UpdateError(
                f"{error}, the last in step {step:,}; {self._keep(step, batch)}; if it happens again, start again with "
                "a lower optimizer.learning_rate"
            ) from error
        if count := sum(metrics.get(f"{model}/skipped_updates", 0) for model in ("actor", "critic")):
            skipped = f"skipped {plural(int(count), 'update')}, whose loss or gradient is not finite"
            self._warn(f"step {step:,}: {skipped}; {self._keep(step, batch)}")
        else:  # delete that of an earlier session, from whose checkpoint the run was resumed
            self.run.skipped_batch(step).unlink(missing_ok=True)
        return metrics

    def _keep(self, step: int, batch: Callable[[], bytes]) -> str:
        """Write a batch; what to do with it, or why it cannot be written."""
        file = self.run.skipped_batch(step)
        try:
            with replacing(file) as temporary:
                temporary.write_bytes(batch())
            kept = sorted(file.parent.glob("step_*.json"), key=lambda path: int(path.stem.removeprefix("step_")))
            for old in kept[:-MOST_SKIPPED]:
                old.unlink()
        except DataError as error:
            return f"its batch is not kept: {error}"
        return f"to see where: tinyzero replay {quote(str(self.run.path))} {step}"
