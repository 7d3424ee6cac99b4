"""Log a run in two sessions to the real trackio, in this directory; prints what it holds afterwards."""

import io
import json
import math
import os
import sys
from pathlib import Path

from tinyzero_trainer.config import LogConfig, TrainConfig
from tinyzero_trainer.monitoring.trackers import Trackers

os.environ["TRACKIO_DIR"] = "trackio"
real, sys.stdout = sys.stdout, io.StringIO()
config = TrainConfig(log=LogConfig(trackers=("trackio",)))
messages: list[str] = []
for steps in (range(3), range(3, 5)):
    with Trackers(config, Path("countdown"), messages.append) as trackers:
        for step in steps:
            trackers.log(step, {"critic/score/mean": step / 4, "actor/entropy": math.nan})
printed = sys.stdout.getvalue()
sys.stdout = real

import trackio  # noqa: E402  after TRACKIO_DIR is set

(run,) = trackio.Api().runs("tinyzero")
logs = trackio.sqlite_storage.SQLiteStorage.get_logs("tinyzero", "countdown")
print(
    json.dumps(
        {
            "runs": [run.name],
            "project": run.config["log"]["project"],
            "logged": [[row["step"], row["critic/score/mean"]] for row in logs],
            "stdout": printed,
            "messages": messages,
        }
    )
)
