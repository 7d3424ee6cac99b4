"""Weights on their way to vLLM's process."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.rollout.vllm import weight_transfer
from tinyzero_trainer.rollout.vllm.weight_transfer import packed, unpacked
from tinyzero_trainer.rollout.weight_source import buckets


@given(sizes=st.lists(st.integers(1, 9), max_size=12), limit=st.integers(2, 60))
def test_buckets_hold_every_weight_once_in_order_and_bounded(sizes: list[int], limit: int) -> None:
    weights = [(str(place), torch.full((size,), float(place))) for place, size in enumerate(sizes)]
    found = list(buckets(weights, torch.bfloat16, limit))
    assert [name for bucket in found for name, _ in bucket] == [name for name, _ in weights]
    for bucket in found:
        assert all(tensor.dtype == torch.bfloat16 for _, tensor in bucket)
        assert sum(tensor.nbytes for _, tensor in bucket[:-1]) < limit


def test_weights_arrive_unchanged_and_their_memory_is_freed() -> None:
    weights = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(4.0)), ("c", torch.arange(3.0)[::2])]
    with packed(weights) as message:
        assert len(message) < 1000  # the values are not in it
        (names, shapes, dtype), kind, _ = pickle.loads(message)
        assert (names, shapes, dtype, kind) == (["a", "b", "c"], [(2, 3), (), (2,)], torch.float32, "memory")
        with unpacked(message) as found:
            assert [name for name, _ in found] == ["a", "b", "c"]
            assert all(torch.equal(each, given) for (_, each), (_, given) in zip(found, weights, strict=True))
    with pytest.raises(FileNotFoundError), unpacked(message):
        pass


def test_if_shared_memory_is_too_small_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_transfer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 3}))
    with pytest.raises(Exception, match="--shm-size"), packed([("a", torch.ones(9))]):
        pass
