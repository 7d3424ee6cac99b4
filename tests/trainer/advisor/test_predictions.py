"""Predictions stay what they are: memory, time and plan of some runs, in predictions.json.

After an intended change, `.venv/bin/python -m tests.trainer.advisor.test_predictions` writes the file anew.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.advisor.planned import SPECS, config_of, target_of
from tinyzero_trainer.advisor.memory import host_bytes, predict_memory
from tinyzero_trainer.advisor.plan import make_plan
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.distributed.workload import workload_of

FILE = Path(__file__).with_name("predictions.json")
ON_8 = "run.executor=ray ray.gpus=8"
VLLM = "rollout.engine=vllm rollout.max_completion_tokens=512"
RUNS = {
    "grpo": ("0.5B", "H200", ""),
    "grpo, small GPU": ("1.5B", "RTX 4090", "data.prompts_per_step=32 algorithm.kl_coefficient=0.001"),
    "float32": ("0.5B", "T4", "model.dtype=float32 data.prompts_per_step=8"),
    "ppo, offloaded": ("0.5B", "L4", "algorithm.advantage_estimator=gae memory.cpu_offload=idle"),
    "exact KL": (
        "1.5B",
        "A100",
        "algorithm.kl_coefficient=0.1 algorithm.kl_estimator=exact optimizer.num_mini_batches=2",
    ),
    "KL in the reward": (
        "0.5B",
        "H100",
        "algorithm.kl_coefficient=0.1 algorithm.kl_placement=reward algorithm.kl_estimator=k1",
    ),
    "remax": ("0.5B", "H100", "algorithm.advantage_estimator=remax rollout.top_p=0.9"),
    "teacher": ("0.5B", "H200", "algorithm.advantage_estimator=on_policy_distillation model.teacher=Qwen/Qwen2.5-7B"),
    "adapter": ("7B", "RTX 4090", "lora.rank=16 algorithm.kl_coefficient=0.001 rollout.max_completion_tokens=256"),
    "float8": ("1.5B", "H200", "model.float8=rowwise rollout.quantization=fp8 rollout.kv_cache_dtype=fp8"),
    "vllm": ("1.5B", "RTX 4090", f"{VLLM} data.prompts_per_step=32"),
    "vllm, given memory": ("3B", "H200", f"{VLLM} vllm.gpu_memory_gb=20 vllm.sleep_mode=true"),
    "8 GPUs": ("7B", "H100", f"{ON_8} memory.reshard_after_forward=false"),
    "replicas": ("3B", "A100", f"{ON_8} parallel.dp_replicate=4 memory.activation_checkpointing=true"),
    "sequence parallel": ("1.5B", "L40S", f"{ON_8} parallel.sequence_parallel=2 rollout.max_completion_tokens=16000"),
    "own engines": ("7B", "H200", f"{ON_8} {VLLM} rollout.num_engines=2 vllm.tensor_parallel=2"),
    "ahead": (
        "0.5B",
        "H100",
        f"{ON_8} rollout.num_engines=1 rollout.max_async_level=2 rollout.return_logprobs=always "
        "rollout_correction.is_level=token",
    ),
}


def predicted(size: str, gpu: str, words: str) -> Any:
    """Work, memory and time of a step as requested."""
    model, target = f"Qwen/Qwen2.5-{size}", target_of(gpu)
    spec, config = SPECS[model], config_of(*words.split(), model=model)
    step = {
        "work": asdict(workload_of(config)),
        "host": host_bytes(spec, config),
        "memory": {
            phase.name: {f"{part.role}: {part.what}": part.size for part in phase.parts}
            for phase in predict_memory(spec, config, keeps=True).phases
        },
        "seconds": predict_speed(spec, config, target.spec).seconds,
    }
    return json.loads(json.dumps(step))


def planned(size: str, gpu: str, words: str) -> dict[str, Any]:
    """What is chosen for `auto`, and what is proposed."""
    model, target = f"Qwen/Qwen2.5-{size}", target_of(gpu)
    config = config_of(*words.split(), model=model)
    plan = make_plan(SPECS[model], config, target.free, gpu=target.spec, host=256 * 2**30)
    return {
        "requested": plan.requested.peak,
        "proposed": plan.memory.peak,
        "chosen": {change.key: change.value for change in plan.chosen},
        "changes": {change.key: change.value for change in plan.changes},
    }


@pytest.mark.parametrize("run", RUNS)
def test_predictions_are_those_in_the_file(run: str) -> None:
    expected, step = json.loads(FILE.read_text(encoding="utf-8"))[run], predicted(*RUNS[run])
    assert step.pop("seconds") == pytest.approx(expected.pop("seconds"), rel=1e-9)
    assert step == {what: value for what, value in expected.items() if what != "plan"}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_plans_are_those_in_the_file(run: str) -> None:
    assert planned(*RUNS[run]) == json.loads(FILE.read_text(encoding="utf-8"))[run]["plan"]


if __name__ == "__main__":
    lines = (
        f"{json.dumps(run)}: {json.dumps(predicted(*words) | {'plan': planned(*words)})}" for run, words in RUNS.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
