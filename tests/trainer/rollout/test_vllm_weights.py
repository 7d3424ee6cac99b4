"""Weights on their way to vLLM's process."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.rollout.vllm_setup import CPU
from tinyzero_trainer.rollout.vllm.weight_transfer import buckets, packed, unpacked
from tinyzero_trainer.rollout.vllm.worker_extension import WeightReceiver


@given(sizes=st.lists(st.integers(1, 9), max_size=12), limit=st.integers(2, 60))
def test_parcels_hold_every_weight_once_in_order_and_bounded(sizes: list[int], limit: int) -> None:
    weights = [(str(place), torch.full((size,), float(place))) for place, size in enumerate(sizes)]
    found = list(buckets(weights, torch.bfloat16, limit))
    assert [name for bucket in found for name, _ in bucket] == [name for name, _ in weights]
    for bucket in found:
        assert all(tensor.dtype == torch.bfloat16 for _, tensor in bucket)
        assert sum(tensor.nbytes for _, tensor in bucket[:-1]) < limit


def test_weights_arrive_as_they_are_and_their_memory_is_given_back() -> None:
    weights = [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(4.0)), ("c", torch.arange(3.0)[::2])]
    with packed(weights) as bucket:
        assert len(bucket) < 1000  # the values are not in it
        with unpacked(bucket) as found:
            assert [name for name, _ in found] == ["a", "b", "c"]
            assert all(torch.equal(each, given) for (_, each), (_, given) in zip(found, weights, strict=True))
    with pytest.raises(FileNotFoundError), unpacked(bucket):
        pass


def test_without_room_in_shared_memory_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tinyzero_trainer.rollout.vllm.weight_transfer.shutil.disk_usage", lambda _: type("U", (), {"free": 3})
    )
    with pytest.raises(Exception, match="--shm-size"), packed([("a", torch.ones(9))]):
        pass


def test_the_worker_loads_a_parcel_the_way_its_device_can() -> None:
    class Worker(WeightReceiver):
        device = CPU
        seen: dict[str, Tensor]

        def reload_weights(self, *, weights_iterator: object) -> None:
            self.seen = dict(weights_iterator)  # type: ignore[call-overload]

    worker = Worker()
    with packed([("a", torch.ones(2))]) as bucket:
        worker.tinyzero_receive(bucket)
    assert torch.equal(worker.seen["a"], torch.ones(2))


def test_a_parcel_is_small_and_says_what_is_in_it() -> None:
    with packed([("a", torch.ones(2, 3, dtype=torch.bfloat16))]) as bucket:
        (names, shapes, dtype), kind, _ = pickle.loads(bucket)
    assert (names, shapes, dtype, kind) == (["a"], [(2, 3)], torch.bfloat16, "memory")
