import pytest
import torch
from transformers import PreTrainedModel

from tinyzero_trainer.rollout.torch.decoder import (
    CACHE_BLOCK,
    Decoder,
    FusedDecoder,
    TransformersDecoder,
    build_decoder,
)

LENGTHS = (5, 2, 7)


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 97, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = torch.tensor([[0] * (max(LENGTHS) - length) + [1] * length for length in LENGTHS])
    return tokens * mask, mask


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FusedDecoder, TransformersDecoder])
@torch.inference_mode()
def test_cached_logits_equal_those_of_the_whole_sequence(any_model: PreTrainedModel, kind: type[Decoder]) -> None:
    decoder = kind(any_model)
    tokens, mask = prompts()
    sequences = [row[-length:] for row, length in zip(tokens, LENGTHS, strict=True) for _ in range(2)]
    logits = decoder.start(tokens, mask, copies=2)
    generator = torch.Generator().manual_seed(2)
    for step in range(CACHE_BLOCK + 3):
        if step in (0, 1, CACHE_BLOCK, CACHE_BLOCK + 2):
            for row, sequence in enumerate(sequences):
                expected = any_model(input_ids=sequence[None], use_cache=False).logits[0, -1]
                torch.testing.assert_close(logits[row], expected, atol=2e-4, rtol=1e-4)
        if step == 1:
            rows = torch.tensor([5, 0, 3])
            decoder.keep(rows)
            sequences = [sequences[row] for row in rows]
        sampled = torch.randint(1, 97, (len(sequences),), generator=generator)
        sequences = [torch.cat([sequence, token[None]]) for sequence, token in zip(sequences, sampled, strict=True)]
        logits = decoder.step(sampled)


PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(("name", "value"), [("sliding_window", 16), ("mlp_bias", True), ("rope_parameters", PARTIAL)])
def test_models_that_it_does_not_compute_take_the_general_path(name, value, any_model):
    assert isinstance(build_decoder(any_model), FusedDecoder)
    setattr(any_model.config, name, value)
    assert isinstance(build_decoder(any_model), TransformersDecoder)
