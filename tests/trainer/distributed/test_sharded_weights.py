"""Weights of a sharded model as others read them: checkpoints and engines."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.trainer.distributed.sharded import CPU, NOW, PLAIN, SAVING, Case, each, made_up, make_policy
from tests.trainer.distributed.sharded import group as group
from tests.trainer.samples import with_dropout
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.models.loading import LanguageModel, load_model, save_model
from tinyzero_trainer.rollout.decoder import Decoder, FusedDecoder, TransformersDecoder, build_decoder
from tinyzero_trainer.rollout.weight_sync import named_weights


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("saving", each(SAVING, "all of it"))
def test_a_checkpoint_is_that_of_the_plain_model(
    saving: str, lora: bool, toy_model: LanguageModel, tmp_path: Path
) -> None:
    for name, options in (("plain", None), ("sharded", SAVING[saving])):
        policy = make_policy(toy_model, Case(lora=lora), options)
        policy.update(made_up(toy_model), NOW)
        save_model(tmp_path / name, policy.language_model)
        policy.save(tmp_path / name)
    files = {path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "sharded") for path in (tmp_path / "sharded").rglob("*") if path.is_file()
    }
    for file in files:
        plain, sharded = ((tmp_path / name / file).read_bytes() for name in ("plain", "sharded"))
        if file.parent.name == "adapter" and file.suffix == ".safetensors":  # its header's entries are in any order
            plain, sharded = (plain[len(plain) // 2 :], sharded[len(sharded) // 2 :])
        assert plain == sharded, file
    load_model(str(tmp_path / "sharded"), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("saving", each(["as it is", "offloaded while idle"], "as it is"))
def test_moments_saved_sharded_or_plain_are_loaded_sharded_or_plain(
    saving: str, toy_model: LanguageModel, tmp_path: Path
) -> None:
    experience, ends = made_up(toy_model), []
    first = make_policy(toy_model, Case(), SAVING[saving])
    first.update(experience, NOW)
    first.save(tmp_path)
    save_model(tmp_path / "model", first.language_model)
    for options in (None, SAVING[saving]):
        second = make_policy(load_model(str(tmp_path / "model"), CPU), Case(), options)
        second.load(tmp_path)
        ends.append((second.update(experience, NOW), dict(named_weights(second.language_model.model))))
    ends.append((first.update(experience, NOW), dict(named_weights(first.language_model.model))))
    for metrics, weights in ends[1:]:
        assert metrics == ends[0][0]
        assert all(torch.equal(weights[name], value) for name, value in ends[0][1].items())


def test_a_tied_head_is_among_the_weights(toy_model: LanguageModel) -> None:
    assert toy_model.model.config.tie_word_embeddings
    policy = make_policy(toy_model, Case(), PLAIN)
    weights = dict(named_weights(policy.language_model.model))
    assert not any(isinstance(weight, DTensor) for weight in weights.values())
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert weights.keys() == toy_model.model.state_dict().keys()


def generated(decoder: Decoder) -> list[Any]:
    tokens, mask = torch.tensor([[7, 8, 9], [0, 5, 6]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    with torch.inference_mode():
        found = [decoder.start(tokens, mask, 2)]
        found += [decoder.step(torch.tensor([3, 4, 5, 6]))]
        decoder.keep(torch.tensor([0, 3]))
        return [logits.tolist() for logits in [*found, decoder.step(torch.tensor([2, 1]))]]


@pytest.mark.slow
@pytest.mark.parametrize("saving", each(SAVING, "as it is"))
@pytest.mark.parametrize("decoder", [FusedDecoder, TransformersDecoder])
@pytest.mark.parametrize("lora", [False, True])
def test_an_engine_generates_with_the_weights_of_a_sharded_model(
    lora: bool, decoder: type[FusedDecoder] | type[TransformersDecoder], saving: str, toy_model: LanguageModel
) -> None:
    shown = []
    for options in (None, SAVING[saving]):
        policy = make_policy(toy_model, Case(lora=lora), options)
        engine = decoder(policy.language_model.model)
        before = generated(engine)
        policy.update(made_up(toy_model), NOW)
        engine.load_weights()
        shown.append((before, generated(engine)))
    assert shown[0][0] != shown[0][1]
    if lora and decoder is TransformersDecoder:  # which runs a plain model with the adapter beside, not merged
        for plain, sharded in zip(*shown, strict=True):
            assert [torch.tensor(each) for each in sharded] == [
                pytest.approx(torch.tensor(each), abs=1e-5) for each in plain
            ]
    else:
        assert shown[0] == shown[1]


def test_any_architecture_is_sharded_and_generates(toy_model: LanguageModel) -> None:
    other = with_dropout(toy_model)  # no decoder of our own
    policy, plain = make_policy(other, Case(), PLAIN), make_policy(other, Case(), None)
    experience = made_up(toy_model)
    decoders = [build_decoder(each.language_model.model) for each in (policy, plain)]
    assert generated(decoders[0]) == generated(decoders[1])
    metrics = [each.update(experience, NOW) for each in (policy, plain)]
    assert metrics[0] == metrics[1]
    decoders[0].load_weights()
    assert generated(decoders[0]) == generated(decoders[1])


def test_on_one_rank_the_engine_has_no_copy_of_what_it_need_not_fuse(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), PLAIN)
    model: Any = policy.language_model.model
    decoder = FusedDecoder(model)
    assert decoder._weights["head"].data_ptr() == local_shard(model.lm_head.weight).data_ptr()
    twin: Any = TransformersDecoder(model)._model
    assert (
        twin.model.layers[0].mlp.up_proj.weight.data_ptr()
        == local_shard(model.model.layers[0].mlp.up_proj.weight).data_ptr()
    )
