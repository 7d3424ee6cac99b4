"""Run within an environment that has verl: rows of a data file through its own loader and its own reward manager."""

import asyncio
import json
import sys

WRONG = "<answer>1 + 1</answer>"


def main(data_file):
    import pandas
    from omegaconf import OmegaConf
    from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

    from tinyzero_sdk import load_task
    from tinyzero_sdk.data.rows import row_to_item

    task = load_task("countdown")
    rows = pandas.read_parquet(data_file).to_dict("records")  # numpy arrays within, as verl's own evaluation has them
    golds = [task.solve(row_to_item(row)) or "" for row in rows]
    config = OmegaConf.load(f"{verl_folder()}/trainer/config/reward/reward.yaml")
    config.custom_reward_function.path = "pkg://tinyzero_sdk.adapters.verl"
    everything = OmegaConf.create({"reward": config})

    plain = get_custom_reward_fn(everything)
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    evaluated = [
        [plain(row["data_source"], text, truth) for text in (gold, WRONG)]
        for row, gold, truth in zip(rows, golds, truths, strict=True)
    ]

    everything.reward.custom_reward_function.reward_kwargs = {
        "details": True,
        "options": {"weights": {"correct": 0.9, "format": 0.1}},
        "workers": 1,
    }
    managed = asyncio.run(manage(everything, load_reward_manager, rows, golds))
    print(json.dumps({"types": type(truths[0]["numbers"]).__name__, "evaluated": evaluated, "managed": managed}))


def verl_folder():
    import verl

    return str(verl.__path__[0])


async def manage(config, load_reward_manager, rows, golds):
    """What verl's reward manager makes of a right and a wrong response to each row."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer
    from verl import DataProto

    from tinyzero_trainer.config.model_defaults import BUILT_IN_MODEL

    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN_MODEL)
    manager = load_reward_manager(config, tokenizer)
    results = []
    for row, gold in zip(rows, golds, strict=True):
        for text in (gold, WRONG):
            response = torch.tensor([tokenizer.encode(text)])
            batch = DataProto.from_dict(
                tensors={"responses": response, "attention_mask": torch.ones_like(response)},
                non_tensors={
                    name: np.array([row[name]], dtype=object) for name in ("data_source", "reward_model", "extra_info")
                },
            )
            results.append(await manager.run_single(batch))
    return results


if __name__ == "__main__":
    main(sys.argv[1])
