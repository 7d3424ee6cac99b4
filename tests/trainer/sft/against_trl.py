"""Fine-tunes one model on one file with `tinyzero sft` and with TRL's SFTTrainer, and prints both loss curves as JSON.

Run in an environment with TRL by `test_against_trl.py`.
"""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from tinyzero_sdk import load_task
from tinyzero_trainer.config import NewModelConfig
from tinyzero_trainer.config.sft import compose_sft
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.monitoring.metrics_log import LOSS, read_metrics
from tinyzero_trainer.sft.batches import Batches
from tinyzero_trainer.sft.examples import Encoder
from tinyzero_trainer.sft.file_examples import ExampleFile
from tinyzero_trainer.sft.train import fine_tune
from tinyzero_trainer.types import Rollout

STEPS, BATCH, RATE = 16, 8, 5e-3


def trl_losses(folder: Path, tokenizer: Any, examples: list[Rollout]) -> list[float]:
    from trl import SFTConfig, SFTTrainer

    class InOrder(SFTTrainer):
        """TRL's trainer, without its shuffling."""

        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    rows = [
        {
            "input_ids": example.prompt.token_ids + example.generation.token_ids,
            "completion_mask": [0] * len(example.prompt.token_ids) + [1] * len(example.generation.token_ids),
        }
        for example in examples
    ]
    arguments = SFTConfig(
        output_dir=str(folder / "trl"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="linear",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta2=0.99,
        max_grad_norm=0.5,
        logging_steps=1,
        completion_only_loss=True,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "start", dtype=torch.float32)
    trainer = InOrder(model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    shape = NewModelConfig(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=1024)
    save_model(folder / "start", from_parts("start", build_model(shape, tokenizer, seed=0), tokenizer))
    task, path = load_task("countdown"), folder / "examples.jsonl"
    items = task.dataset("train", 200)
    rows = [{"prompt": task.make_prompt(item, "base"), "completion": task.solve(item)} for item in items]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = compose_sft(
        {
            "run": {"output": str(folder / "run"), "steps": STEPS, "device": "cpu"},
            "model": {"path": str(folder / "start")},
            "data": {"path": str(path), "batch_size": BATCH},
            # A linear decay to zero that has not moved at the first step, as of transformers.
            "optimizer": {
                "learning_rate": RATE,
                "warmup_steps": 0,
                "lr_schedule": "linear",
                "min_lr_ratio": 1 / STEPS,
                "beta2": 0.99,
                "weight_decay": 0.0,
                "max_grad_norm": 0.5,
                "micro_batch_tokens": 700,
            },
        }
    )
    encoder = Encoder(tokenizer, {tokenizer.eos_token_id})
    batches = Batches(config, {}, encoder, ExampleFile(str(path), config, {})).batches()
    examples = [example for batch in islice(batches, STEPS) for example in batch]
    fine_tune(config)
    ours = [row[LOSS] for row in read_metrics(folder / "run" / "metrics.jsonl") if LOSS in row]
    print(json.dumps({"ours": ours, "trl": trl_losses(folder, tokenizer, examples)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
