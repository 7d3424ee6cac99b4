"""How many ranks and engines a run has, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configurations import call, changed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import RayConfig, TrainConfig, VllmConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed.parallel_dims import ParallelDims, ParallelError, parallel_dims


def dims(tensor_parallel: int = 1, **settings: Any) -> ParallelDims:
    """Of a run with these settings, written as `group__name`."""
    vllm = {"rollout__engine": "vllm", "vllm__tensor_parallel": tensor_parallel} if tensor_parallel > 1 else {}
    return parallel_dims(changed({"run": {"task": "countdown", "executor": "ray"}}, vllm | settings))


def test_each_gpu_has_a_rank_or_belongs_to_an_engine() -> None:
    assert dims(ray__gpus=4) == ParallelDims(4, num_engines=4)
    assert list(dims(ray__gpus=4).engine_ranks) == [0, 1, 2, 3]
    assert list(dims(2, ray__gpus=4).engine_ranks) == [0, 2]
    separate = dims(2, ray__gpus=4, rollout__num_engines=1)
    assert (separate.world_size, separate.dedicated_engines, list(separate.engine_ranks)) == (2, 1, [])
    assert sum(bundle.get("GPU", 0) for bundle in separate.bundles(scorers=3)) == 4
    assert len(separate.bundles(scorers=3)) == 2 + 1 + 3
    together = dims(2, ray__gpus=4).bundles(scorers=3)
    assert together == [{"CPU": 2.0, "GPU": 2.0}] * 2 + [{"CPU": 1.0}] * 3, "those that share an engine are on one node"
    cpu = dims(parallel__world_size=2)
    assert (cpu.world_size, cpu.device, list(cpu.engine_ranks)) == (2, "cpu", [0, 1])
    assert not any("GPU" in bundle for bundle in cpu.bundles(1))
    shared = dims(2, parallel__world_size=2)
    assert list(shared.engine_ranks) == [0], "on the CPU ranks share an engine as on GPUs"
    assert shared.bundles(scorers=1) == [{"CPU": 2.0}, {"CPU": 1.0}]
    assert parallel_dims(TrainConfig(ray=RayConfig(), vllm=VllmConfig())).world_size == 1


@pytest.mark.parametrize(
    ("tensor_parallel", "settings", "message"),
    [
        (
            1,
            {"ray__gpus": 2, "rollout__num_engines": 2},
            r"rollout\.num_engines=2 leave no GPU of ray\.gpus=2 to train on",
        ),
        (2, {"ray__gpus": 4, "rollout__num_engines": 2}, r"rollout\.num_engines=2 of 2 GPUs each leave no GPU"),
        (
            1,
            {"ray__gpus": 4, "parallel__world_size": 3},
            r"parallel\.world_size=3, but ray\.gpus=4 with rollout\.num_engines=0 is 4.*give parallel\.world_size=4",
        ),
        (2, {"ray__gpus": 3}, r"vllm\.tensor_parallel=2 does not divide ray\.gpus=3"),
        (2, {"parallel__world_size": 3}, r"vllm\.tensor_parallel=2 does not divide the 3 ranks"),
        (
            1,
            {"parallel__world_size": 3, "parallel__dp_replicate": 2},
            r"parallel\.dp_replicate=2 does not divide the 3 ranks",
        ),
        (
            1,
            {"parallel__world_size": 4, "parallel__sequence_parallel": 3},
            r"parallel\.sequence_parallel=3 does not divide the 4 ranks of a replica",
        ),
        (
            1,
            {"parallel__world_size": 4, "parallel__dp_replicate": 2, "parallel__sequence_parallel": 4},
            "does not divide the 2 ranks of a replica",
        ),
        (
            1,
            {"ray__gpus": 4, "rollout__num_engines": 1, "parallel__dp_replicate": 2},
            "does not divide the 3 ranks",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tensor_parallel: int, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        dims(tensor_parallel, **settings)


def test_padded_rows_cannot_be_shared() -> None:
    with pytest.raises(TinyZeroError, match=r"parallel\.sequence_parallel=2 divides packed rows"):
        dims(parallel__world_size=2, parallel__sequence_parallel=2, optimizer__packing="padded")


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu", "cuda:0", "cuda:1"])
def test_ray_chooses_the_gpu(device: str) -> None:
    settings = {"run": {"task": "countdown", "executor": "ray", "device": device}}
    if device in ("auto", "cpu"):
        assert parallel_dims(make_config(settings)).device == "cpu", "there is nothing to choose"
    else:
        with pytest.raises(ParallelError, match=rf"run\.device={device}, but ray\.gpus=0 is .* CPU; give --gpus N"):
            parallel_dims(make_config(settings))
    config = make_config(settings | {"ray": {"gpus": 2}})
    if device in ("auto", "cuda"):
        assert parallel_dims(config) == ParallelDims(2, num_engines=2)
        return
    with pytest.raises(ParallelError, match=rf"run\.device={device}, but .* one of ray\.gpus=2 .*; leave it out"):
        parallel_dims(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("parallel.world_size=3", "parallel.dp_replicate=2"), "parallel.dp_replicate=2 does not divide the 3 ranks"),
        (("ray.address=127.0.0.1:1",), "there is no Ray at ray.address='127.0.0.1:1' (Connection refused)"),
        (
            ("ray.address=head",),
            "ray.address='head' is not an address of Ray; give auto, or HOST:PORT as `ray start --head` prints it",
        ),
        (
            ("ray.address=ray://head:10001",),
            "ray.address='ray://head:10001' is not an address of Ray; give auto, or HOST:PORT",
        ),
        (("ray.address=head:99999",), "ray.address='head:99999' is not an address of Ray; give auto, or HOST:PORT"),
    ],
)
def test_a_run_that_cannot_be_placed_leaves_nothing(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = call(
        capsys, "train", "--task", "countdown", "--gpus", "0", "--output", str(tmp_path / "run"), *words
    )
    assert code == 2
    assert said.startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()
