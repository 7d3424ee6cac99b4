"""Every benchmark starts and is documented, the pages have the tables it writes, and the trainer takes its settings."""

import runpy
import sys
import time
from pathlib import Path

import pytest

from benchmarks import common, engines, scaling, several_gpus
from benchmarks.common import with_content
from benchmarks.several import tables
from benchmarks.several.jobs import Failed, RunningJob
from benchmarks.several.suites import SUITES, Setup
from tinyzero_sdk.settings import merge
from tinyzero_trainer.advisor.engine_choice import read_speeds
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose, gather
from tinyzero_trainer.distributed.parallel_dims import parallel_dims
from tinyzero_trainer.sft.default_model import SETTINGS

BENCHMARKS = Path(common.__file__).parent
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_benchmark_starts_and_is_documented(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
    assert left.value.code in (0, None)
    assert capsys.readouterr().out
    assert f"{script}.py" in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_of_engines() -> None:
    page = engines.README.read_text(encoding="utf-8")
    assert with_content(page, {"engines": engines.shown(read_speeds())}) == page


@pytest.mark.slow
def test_the_page_on_scaling_has_the_tables_that_the_simulation_prints() -> None:
    page = scaling.DOCS.read_text(encoding="utf-8")
    assert with_content(page, scaling.Tables(scaling.make_run()).all()) == page


class Recorder(RunningJob):
    """Runs no command."""

    def run(self, command, **conditions):
        raise Failed(command)


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "cpu"), [(4, False), (2, True)])
def test_the_trainer_takes_the_settings_of_every_run_on_several_gpus(tmp_path: Path, gpus: int, cpu: bool) -> None:
    setup = Setup(tmp_path, gpus, cpu, 60.0, ["optimizer.learning_rate=3e-5"])
    for shape in ("10M", "0.5B"):
        (tmp_path / "models" / shape).mkdir(parents=True)
    for job in several_gpus.select([job for build in SUITES.values() for job in build(setup)], []):
        if job.name.startswith(("resume: on", tables.DEFAULT_MODEL)):
            continue
        with pytest.raises(Failed) as failed:
            job.work(Recorder(job.name, (), time.monotonic()))
        command = failed.value.args[0]
        flags = {"task": "run.task", "model": "model.path"} | ({"output": "run.output"} if "train" in command else {})
        typed = {key: command[command.index(f"--{flag}") + 1] for flag, key in flags.items() if f"--{flag}" in command}
        words = [word for word in command if "=" in word and not word.startswith(("-", "import"))]
        overrides = gather(TrainConfig, typed, words)
        own = (
            None if "path" in overrides.get("model", {}) else merge(SETTINGS, {"data": {"prompt_template": "compact"}})
        )
        config = compose(overrides, own).config
        if config.run.executor == "local":
            assert job.gpus == 1, job.name
        else:
            dims = parallel_dims(config)
            assert job.gpus == dims.world_size + dims.dedicated_engines * dims.engine_tp, job.name
