"""Where actors are placed, and what a run on Ray reports before it starts; without Ray."""

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_trainer.checkpoint.run_directory import OWNER
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed.parallel_dims import parallel_dims
from tinyzero_trainer.executors.ray import actors, base_actor, build, remote_workers
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.cluster import RayError
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors


def test_ranks_that_share_an_engine_are_in_one_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"run": {"task": "countdown", "executor": "ray"}, "ray": {"gpus": 4}}
    config = make_config(run | {"rollout": {"engine": "vllm"}, "vllm": {"tensor_parallel": 2}})
    bundles = parallel_dims(config).bundles()
    table = {"bundles_to_node_id": {0: "a", 1: "b"}}
    started: list[tuple[int, type]] = []
    actor = SimpleNamespace(process=SimpleNamespace(remote=lambda: None))

    def remote(kind: type) -> Any:
        def options(scheduling_strategy: Any, **_: Any) -> Any:
            bundle = scheduling_strategy.placement_group_bundle_index
            return SimpleNamespace(remote=lambda: started.append((bundle, kind)) or actor)

        return SimpleNamespace(options=options)

    ray = SimpleNamespace(util=SimpleNamespace(placement_group_table=lambda group: table), remote=remote)
    monkeypatch.setattr(build, "import_ray", lambda: ray)
    pool = build.ActorPool(SimpleNamespace(bundle_specs=bundles), timeout=600.0)
    for rank in range(4):
        pool.start(f"rank {rank}", actors.TrainerActor)
    assert started == [(bundle, actors.TrainerActor) for bundle in (0, 0, 1, 1)]


# ---- the run directory -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("there", ["the same", "another run's", None])
def test_a_rank_that_does_not_see_the_run_directory_is_named(
    there: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_actor, "VISIBLE_SECONDS", 0.3)
    for module in (build, remote_workers):
        monkeypatch.setattr(module, "gather", lambda calls, **_: [call() for _, call in calls])
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for directory, content in ((run, "the same"), (elsewhere, there)):
        directory.mkdir()
        if content is not None:
            (directory / OWNER).write_text(content)

    def member(place: int, directory: Path) -> ActorHandle:
        own = base_actor.BaseActor()
        sees = SimpleNamespace(remote=lambda file, content: lambda: own.sees(directory / file.name, content))
        actor = SimpleNamespace(sees=sees, host=SimpleNamespace(remote=lambda: lambda: f"10.0.0.{place}"))
        return ActorHandle(f"policy rank {place} of 2", actor, trains=True)

    config = make_config({"run": {"task": "countdown", "output": str(run)}})
    ranks = TrainerActors([member(0, run), member(1, elsewhere)])
    message = re.escape(f"policy rank 1 of 2 on 10.0.0.1 does not see {run}, where it has to save its shard")
    with nullcontext() if there == "the same" else pytest.raises(RayError, match=message):
        build._check_run_directory(config, ranks)


def test_relative_paths_become_absolute_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    run, loss = {"run": {"task": "countdown", "output": "runs/a"}}, {"algorithm": {"policy_loss": "./loss.py:mine"}}
    loss["algorithm"]["advantage_estimator"] = "on_policy_distillation"
    found = build.with_absolute_paths(make_config(run | loss | {"model": {"path": "model", "teacher": "./model"}}))
    assert found.run.output == str(tmp_path / "runs/a")
    assert found.model.path == found.model.teacher == str(tmp_path / "model")
    assert found.algorithm.policy_loss == f"{tmp_path / 'loss.py'}:mine"
    assert build.with_absolute_paths(found) == found
    for path in (None, "tiny", "Qwen/Qwen2.5-0.5B"):
        algorithm = replace(found.algorithm, policy_loss="package.loss:mine")
        named = replace(found, model=replace(found.model, path=path), algorithm=algorithm)
        assert build.with_absolute_paths(named) == named
