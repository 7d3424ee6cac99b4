"""Training steps of TRL's GRPOTrainer with colocated vLLM, for `step.py` to compare with ours.

Not a benchmark by itself: `python benchmarks/step.py --trl …` runs it. Prints one JSON line per step.
"""

import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer


def main(
    model: Path,
    prompts: int = 128,
    samples: int = 8,
    prompt_tokens: int = 140,
    new_tokens: int = 1024,
    steps: int = 2,
    micro_batch: int = 16,
    option: Annotated[list[str] | None, typer.Option(help="KEY=JSON of GRPOConfig")] = None,
) -> None:
    """Train for some steps, and print the seconds of each."""
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it needs flashinfer, which may be missing
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from benchmarks.fixed_task import Options, generate_dataset, is_right

    class Clock(TrainerCallback):
        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            import torch

            torch.cuda.synchronize()
            print(json.dumps({"step_s": time.perf_counter() - self.started}), flush=True)

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(is_right(text)) for text in completions]

    items = generate_dataset("train", prompts * steps, 0, 0, Options(prompt_tokens))
    given = {key: json.loads(value) for key, _, value in (word.partition("=") for word in option or [])}
    settings = {
        "output_dir": "trl",
        "max_steps": steps,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": prompts * samples // micro_batch,
        "num_generations": samples,
        "max_completion_length": new_tokens,
        "generation_kwargs": {"ignore_eos": True},
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "gradient_checkpointing": False,
        "bf16": True,
        "beta": 0.0,
        "learning_rate": 1e-6,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        **given,
    }
    trainer = GRPOTrainer(
        str(model),
        reward_funcs=reward,
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list([{"prompt": item.data["text"]} for item in items]),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[Clock()],
    )
    print(json.dumps({"trl": version("trl"), "vllm": version("vllm"), **settings}), flush=True)
    trainer.train()


if __name__ == "__main__":
    typer.run(main)
