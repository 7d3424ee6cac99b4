"""What a rank takes of its GPU in an update, as planned, and that it takes less to load: on two GPUs, through NCCL.

With fewer nothing is collected.
"""

from pathlib import Path

import pytest
import torch

from tests.trainer.advisor.planned import config_of
from tests.trainer.processes import on_ranks
from tinyzero_trainer.advisor.memory import predict_memory
from tinyzero_trainer.config import NewModelConfig, TrainConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions
from tinyzero_trainer.distributed.sizes import SLACK
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.training.build import build_trained_models

pytestmark = pytest.mark.gpu

SHAPE = NewModelConfig(hidden_size=1024, layers=12, head_size=64, kv_heads=4, mlp_size=4096, context=2048)
"""0.2 billion parameters, so that states, activations and logits all count."""

DIVISIONS: dict[str, tuple[str, ...]] = {
    "2 ranks": (),
    "2 replicas": ("parallel.dp_replicate=2",),
    "2 in a line": ("parallel.sequence_parallel=2",),
    "2 ranks, checkpointed": ("memory.activation_checkpointing=true",),
    "2 ranks, with a KL": ("algorithm.kl_coefficient=0.001",),
}


def settled(start: str, words: tuple[str, ...]) -> TrainConfig:
    batch = ("data.prompts_per_step=64", "rollout.group_size=8", "rollout.max_completion_tokens=1024")
    return config_of("run.executor=ray", "ray.gpus=2", "rollout.num_engines=0", *batch, *words, model=start)


def peaks(start: str, words: tuple[str, ...], kind: str = "cuda") -> dict[str, int]:
    """On this rank: bytes allocated at the peak of loading, and of a whole micro-batch's passes."""
    rank, config, found = torch.distributed.get_rank(), settled(start, words), dict[str, int]()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    options = FsdpOptions.of(config, device)
    learners = build_trained_models(config, options, checkpoint=None)
    found["loading"] = peak(device)
    learners.policy.warm_up(
        config.settings_at(1), workload_of(config, 1).micro_batch * config.parallel.sequence_parallel
    )
    found["update_actor"] = peak(device)
    print(f"rank {rank}, {words}: { ({name: f'{size / GIB:.2f} GiB' for name, size in found.items()}) }", flush=True)
    return found


def peak(device: torch.device) -> int:
    """Bytes, since it was asked last."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    found = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory, tokenizer = tmp_path_factory.mktemp("planned") / "start", build_tokenizer()
    save_model(directory, from_parts("small", build_model(SHAPE, tokenizer, seed=0), tokenizer))
    return str(directory)


@pytest.mark.parametrize("division", DIVISIONS if torch.cuda.device_count() > 1 else ())
def test_two_gpus_take_what_is_planned(division: str, start: str, tmp_path: Path) -> None:
    words = DIVISIONS[division]
    spec, config = find_spec(start), settled(start, words)
    (planned,) = (phase for phase in predict_memory(spec, config, 1, gpu="rank").phases if phase.name == "update_actor")
    expected = sum(planned.of(role) for role in ("policy", "reference"))
    for rank, taken in enumerate(on_ranks(2, peaks, tmp_path, start, words, gpus=True)):
        print(f"{division}, rank {rank}: {taken['update_actor'] / GIB:.2f} GiB, planned {expected / GIB:.2f}")
        # What the allocator wastes is planned for apart, and a plan may be too high where a kernel keeps less.
        assert 0.6 * expected <= taken["update_actor"] <= (1 + SLACK) * expected
        assert taken["loading"] < taken["update_actor"]
