"""The trainer's own pieces, put together by hand: a GRPO loop to change where no setting of `tinyzero train` will do.

Each piece can be replaced by one of your own. To run it: python examples/custom_trainer.py
"""

from itertools import islice

from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.algorithms.advantages import grpo
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, DataConfig, OptimizerConfig, RewardConfig
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.models.loading import choose_device, load_model
from tinyzero_trainer.rewards.pool import scoring_pool
from tinyzero_trainer.rollout import SamplingParams, TorchEngine
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Rollout

GROUP_SIZE, MAX_TOKENS = 8, 128
OPTIMIZER = OptimizerConfig(learning_rate=2e-4, beta2=0.99, num_mini_batches=2, micro_batch_tokens=2048)


def train(steps: int = 40, prompts_per_step: int = 32) -> list[float]:
    """Train the tiny model on countdown; the mean reward of each step."""
    task = load_task("countdown", options={"numbers": [3], "number_range": [1, 20], "target_range": [1, 50]})
    model = load_model("tiny", choose_device("auto"))
    engine = TorchEngine(model.model, eos_ids=model.eos_ids, pad_id=model.pad_id, max_num_seqs=512)
    policy = Policy(model, algorithm=AlgorithmConfig(), optimizer=OPTIMIZER, max_tokens=MAX_TOKENS, reference=None)
    stream = PromptSource(task, model.tokenizer, DataConfig(prompt_template="compact", test_fraction=1 / 8)).training(
        seed=0
    )
    mean_rewards = []
    with scoring_pool(RewardConfig(), task) as pool:
        for step in range(1, steps + 1):
            prompts = list(islice(stream, prompts_per_step))
            token_ids, params = [prompt.token_ids for prompt in prompts], SamplingParams(MAX_TOKENS, temperature=1.0)
            groups = engine.generate(token_ids, GROUP_SIZE, params, seed=derive_seed("rollout", step))
            pairs = [(prompt, rollout) for prompt, group in zip(prompts, groups, strict=True) for rollout in group]
            texts = decode_texts(model.tokenizer, [rollout.token_ids for _, rollout in pairs])
            scores = pool.score(list(map(Completion, texts)), [prompt.item.ground_truth for prompt, _ in pairs])
            samples = [Rollout(*pair, text, score) for pair, text, score in zip(pairs, texts, scores, strict=True)]
            batch = TrainingBatch.of(samples, GROUP_SIZE)
            batch.old_logprobs = policy.logprobs(samples, temperature=1.0)  # [tokens]
            batch.advantages = grpo(batch)  # [tokens]
            metrics = policy.update(batch, StepSettings(OPTIMIZER.learning_rate))
            engine.load_weights()
            mean_rewards.append(batch.rewards.mean().item())
            print(f"step {step}/{steps}  reward {mean_rewards[-1]:.3f}  loss {metrics['actor/pg_loss']:+.4f}")
    return mean_rewards


if __name__ == "__main__":
    train()
