"""A GRPO loop built from the trainer's components, to modify where the settings of `tinyzero train` are not enough.

Each component can be replaced by your own. Run it with: python examples/custom_trainer.py
"""

from itertools import islice

from tinyzero_sdk import load_task
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.algorithms.advantages import grpo
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig, RewardConfig
from tinyzero_trainer.data import PromptSource
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import load_model
from tinyzero_trainer.rewards.reward_pool import scoring_pool
from tinyzero_trainer.rewards.score import score
from tinyzero_trainer.rollout import SamplingParams, TorchEngine, generate
from tinyzero_trainer.training.policy import Policy

GROUP_SIZE, PARAMS = 8, SamplingParams(max_tokens=128, temperature=1.0)
OPTIMIZER = OptimizerConfig(learning_rate=2e-4, beta2=0.99, num_mini_batches=2, micro_batch_tokens=2048)


def train(steps: int = 40, prompts_per_step: int = 32) -> list[float]:
    """Train the tiny model on countdown; the mean reward of each step."""
    task = load_task("countdown", options={"numbers": [3], "number_range": [1, 20], "target_range": [1, 50]})
    model = load_model("tiny", choose_device("auto"))
    engine = TorchEngine(model)
    policy = Policy(
        model, algorithm=AlgorithmConfig(), optimizer=OPTIMIZER, max_tokens=PARAMS.max_tokens, reference=None
    )
    stream = PromptSource(task, model.tokenizer, prompt_template="compact", test_fraction=1 / 8).stream(seed=0)
    mean_rewards = []
    with scoring_pool(RewardConfig(), task) as pool:
        for step in range(1, steps + 1):
            prompts = list(islice(stream, prompts_per_step))
            generated = generate(model, engine, prompts, GROUP_SIZE, PARAMS, seed=derive_seed("rollout", step))
            rollouts = score(generated, model.tokenizer, {task.name: pool}, group_size=GROUP_SIZE)
            batch = TrainingBatch.of(rollouts, GROUP_SIZE)
            batch.old_logprobs = policy.logprobs(rollouts, temperature=1.0)  # [tokens]
            batch.advantages = grpo(batch)  # [tokens]
            metrics = policy.update(batch, StepSettings(OPTIMIZER.learning_rate))
            engine.load_weights()
            mean_rewards.append(batch.rewards.mean().item())
            print(f"step {step}/{steps}  reward {mean_rewards[-1]:.3f}  loss {metrics['actor/pg_loss']:+.4f}")
    return mean_rewards


if __name__ == "__main__":
    train()
