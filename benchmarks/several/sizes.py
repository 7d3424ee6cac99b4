"""How much each part of `several_gpus.py` does: on GPUs what is published, on the CPU what it takes to try it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    same: dict[str, list[str]]
    """Part `same`: settings of the run for each shape of model."""

    shape: str
    """Parts `weak`, `strong` and `tensor_parallel`: of the model."""

    step: dict[str, int]
    """Parts `weak` and `strong`: a step's work on one GPU, as `step.py` has it."""

    vllm: list[str]
    """Part `tensor_parallel`: the engine's settings."""

    spread: dict[str, int]
    """Part `tensor_parallel`: a step's work, and how many."""

    resume: list[str]
    """Part `resume`: the batch."""

    small: list[str]
    """Part `one_step_off`: settings of the runs."""


ON_GPUS = Sizes(
    same={
        "10M": [
            "model.dtype=float32",
            "run.steps=20",
            "data.prompts_per_step=32",
            "rollout.group_size=8",
            "task.prompt_tokens=24",
            "rollout.max_completion_tokens=256",
            "optimizer.learning_rate=1e-4",
            "optimizer.micro_batch_tokens=8192",
        ],
        "0.5B": [
            "model.dtype=bfloat16",
            "run.steps=20",
            "data.prompts_per_step=16",
            "rollout.group_size=8",
            "task.prompt_tokens=140",
            "rollout.max_completion_tokens=512",
            "optimizer.learning_rate=1e-5",
            "optimizer.micro_batch_tokens=4096",
        ],
    },
    shape="0.5B",
    step={"prompts": 128, "samples": 8, "prompt_tokens": 140, "new_tokens": 1024, "steps": 3},
    vllm=["rollout.engine=vllm", "vllm.tensor_parallel=2", "vllm.verify_weights=true"],
    spread={"prompts": 32, "samples": 4, "prompt_tokens": 140, "new_tokens": 128, "steps": 2},
    resume=[
        "data.prompts_per_step=32",
        "rollout.group_size=8",
        "rollout.max_completion_tokens=128",
        "task.prompt_tokens=24",
        "optimizer.micro_batch_tokens=8192",
    ],
    small=[],
)

ON_CPU = Sizes(
    same={
        "10M": [
            "run.steps=2",
            "data.prompts_per_step=4",
            "rollout.group_size=2",
            "task.prompt_tokens=8",
            "rollout.max_completion_tokens=16",
            "optimizer.learning_rate=1e-4",
            "optimizer.micro_batch_tokens=64",
        ],
    },
    shape="10M",
    step={"prompts": 2, "samples": 2, "prompt_tokens": 8, "new_tokens": 8, "steps": 2},
    vllm=[],
    spread={"prompts": 2, "samples": 2, "prompt_tokens": 8, "new_tokens": 8, "steps": 2},
    resume=[
        "data.prompts_per_step=4",
        "rollout.group_size=2",
        "rollout.max_completion_tokens=8",
        "task.prompt_tokens=8",
        "optimizer.micro_batch_tokens=64",
    ],
    small=[
        "--model",
        "tiny",
        "run.steps=2",
        "data.prompts_per_step=4",
        "rollout.group_size=4",
        "rollout.max_completion_tokens=32",
        "rollout.return_logprobs=always",
        "eval.num_problems=16",
        "eval.num_problems_during=16",
        "eval.every=1",
        "eval.greedy=false",
    ],
)
"""The engine is `torch` wherever vLLM would be taken."""
