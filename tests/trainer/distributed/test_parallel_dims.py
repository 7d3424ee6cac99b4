"""How many ranks and engines a run has, and what is refused."""

import re
from pathlib import Path

import pytest

from tests.trainer.configurations import call, typed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import RayConfig, TrainConfig, VllmConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed.parallel_dims import ParallelDims, ParallelError, parallel_dims

TWO_GPUS_EACH = ("rollout.engine=vllm", "vllm.tensor_parallel=2")


def dims(*words: str) -> ParallelDims:
    """Of a run through Ray with these overrides."""
    return parallel_dims(make_config(typed(*words, executor="ray", task="countdown")))


def test_each_gpu_has_a_rank_or_belongs_to_an_engine() -> None:
    assert dims("ray.gpus=4") == ParallelDims(4, num_engines=4)
    assert list(dims("ray.gpus=4").engine_ranks) == [0, 1, 2, 3]
    assert list(dims("ray.gpus=4", *TWO_GPUS_EACH).engine_ranks) == [0, 2]
    separate = dims("ray.gpus=4", "rollout.num_engines=1", *TWO_GPUS_EACH)
    assert (separate.world_size, separate.dedicated_engines, list(separate.engine_ranks)) == (2, 1, [])
    assert sum(bundle.get("GPU", 0) for bundle in separate.bundles()) == 4
    assert len(separate.bundles()) == 2 + 1
    together = dims("ray.gpus=4", *TWO_GPUS_EACH).bundles()
    assert together == [{"CPU": 2.0, "GPU": 2.0}] * 2, "those that share an engine are on one node"
    cpu = dims("parallel.world_size=2")
    assert (cpu.world_size, cpu.device, list(cpu.engine_ranks)) == (2, "cpu", [0, 1])
    assert not any("GPU" in bundle for bundle in cpu.bundles())
    shared = dims("parallel.world_size=2", *TWO_GPUS_EACH)
    assert list(shared.engine_ranks) == [0], "on the CPU ranks share an engine as on GPUs"
    assert shared.bundles() == [{"CPU": 2.0}]
    assert parallel_dims(TrainConfig(ray=RayConfig(), vllm=VllmConfig())).world_size == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ray.gpus=2 rollout.num_engines=2", "rollout.num_engines=2 leave no GPU of ray.gpus=2 to train on"),
        ("ray.gpus=4 rollout.num_engines=2 {tp}", "rollout.num_engines=2 of 2 GPUs each leave no GPU"),
        ("ray.gpus=4 parallel.world_size=3", "ray.gpus=4 with rollout.num_engines=0 is 4: a rank for each GPU"),
        ("ray.gpus=3 {tp}", "vllm.tensor_parallel=2 does not divide ray.gpus=3"),
        ("parallel.world_size=3 {tp}", "vllm.tensor_parallel=2 does not divide the 3 ranks"),
        ("parallel.world_size=3 parallel.dp_replicate=2", "parallel.dp_replicate=2 does not divide the 3 ranks"),
        ("ray.gpus=4 rollout.num_engines=1 parallel.dp_replicate=2", "does not divide the 3 ranks"),
        ("parallel.world_size=4 parallel.sequence_parallel=3", "does not divide the 4 ranks of a replica"),
        (
            "parallel.world_size=4 parallel.dp_replicate=2 parallel.sequence_parallel=4",
            "parallel.sequence_parallel=4 does not divide the 2 ranks of a replica",
        ),
    ],
)
def test_what_does_not_fit_is_refused(words: str, message: str) -> None:
    with pytest.raises(ParallelError, match=re.escape(message)):
        dims(*words.format(tp=" ".join(TWO_GPUS_EACH)).split())


def test_padded_rows_cannot_be_shared() -> None:
    with pytest.raises(TinyZeroError, match=r"parallel\.sequence_parallel=2 divides packed rows"):
        dims("parallel.world_size=2", "parallel.sequence_parallel=2", "optimizer.packing=padded")


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu", "cuda:0", "cuda:1"])
def test_ray_chooses_the_gpu(device: str) -> None:
    settings = {"run": {"task": "countdown", "executor": "ray", "device": device}}
    if device in ("auto", "cpu"):
        assert parallel_dims(make_config(settings)).device == "cpu", "there is nothing to choose"
    else:
        with pytest.raises(ParallelError, match=rf"run\.device={device} does not go with ray\.gpus=0.*--gpus N"):
            parallel_dims(make_config(settings))
    config = make_config(settings | {"ray": {"gpus": 2}})
    if device in ("auto", "cuda"):
        assert parallel_dims(config) == ParallelDims(2, num_engines=2)
        return
    with pytest.raises(ParallelError, match=rf"run\.device={device} does not go with ray\.gpus=2: .*; leave"):
        parallel_dims(config)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("parallel.world_size=3 parallel.dp_replicate=2", "parallel.dp_replicate=2 does not divide the 3 ranks"),
        ("ray.address=127.0.0.1:1", "there is no Ray at ray.address='127.0.0.1:1' (Connection refused)"),
        ("ray.address=head", "ray.address='head' is not an address of Ray; give auto, or HOST:PORT as `ray start"),
        ("ray.address=ray://head:10001", "ray.address='ray://head:10001' is not an address of Ray"),
        ("ray.address=head:99999", "ray.address='head:99999' is not an address of Ray"),
    ],
)
def test_a_run_that_cannot_be_placed_leaves_nothing(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "--task", "countdown", "--gpus", "0", "--output", str(tmp_path / "run"))
    code, _, error = call(capsys, *command, *words.split())
    assert code == 2
    assert error.startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()
