"""Log a run in two sessions to the real trackio, in this directory; prints what it holds afterwards."""

import io
import json
import math
import os
from contextlib import redirect_stdout
from pathlib import Path

from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.config import LogConfig, TrainConfig
from tinyzero_trainer.monitoring.trackers import Trackers


def main() -> None:
    os.environ["TRACKIO_DIR"] = "trackio"
    config = TrainConfig(log=LogConfig(trackers=("trackio",)))
    messages: list[str] = []
    with redirect_stdout(io.StringIO()) as printed:
        for steps in (range(3), range(3, 5)):
            with Trackers(config.log, to_mapping(config), Path("countdown"), messages.append) as trackers:
                for step in steps:
                    trackers.log(step, {"critic/score/mean": step / 4, "actor/entropy": math.nan})
    import trackio  # after TRACKIO_DIR is set

    runs = trackio.Api().runs("tinyzero")
    logs = trackio.sqlite_storage.SQLiteStorage.get_logs("tinyzero", "countdown")
    found = {
        "runs": [run.name for run in runs],
        "project": runs[0].config["log"]["project"],
        "logged": [[row["step"], row["critic/score/mean"]] for row in logs],
        "stdout": printed.getvalue(),
        "messages": sorted(set(messages)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
