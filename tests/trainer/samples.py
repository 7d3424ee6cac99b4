"""Made-up rollouts for tests of the update."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tinyzero_sdk import Item, Score
from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.types import Generation, Prompt, Rollout


def ragged_samples(language_model: LanguageModel, groups: int = 3, samples: int = 4, seed: int = 0) -> list[Rollout]:
    """Groups of completions of many lengths, with the log-probabilities that the model gives them at temperature 1."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> list[int]:
        count = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(0, 1252, (count,), generator=generator).tolist()

    made = []
    for _ in range(groups):
        prompt = Prompt(Item(None), "", draw(1, 9))
        for _ in range(samples):
            ids = draw(1, 25)
            rollout = Generation(ids, token_logprobs(language_model, prompt.token_ids, ids), True)
            made.append(Rollout(prompt, rollout, "", Score(0.0, False, "wrong")))
    return made


def with_dropout(language_model: LanguageModel) -> LanguageModel:
    """A GPT-2, which has dropout of 0.1, with the vocabulary of this model."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(language_model.tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=0
    )
    assert config.resid_pdrop > 0
    return from_parts("with dropout", GPT2LMHeadModel(config).eval(), language_model.tokenizer)


@torch.no_grad()
def token_logprobs(language_model: LanguageModel, prompt: list[int], completion: list[int]) -> list[float]:
    """log π of each completion token, from one unpadded forward pass."""
    sequence = torch.tensor([prompt + completion])
    logits = language_model.model(sequence).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
