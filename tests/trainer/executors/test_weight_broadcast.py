"""Weights from one sender to several receivers over gloo, with threads instead of actors."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Timer
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tinyzero_trainer.executors.ray import weight_broadcast
from tinyzero_trainer.executors.ray.weight_broadcast import WeightGroup

CPU = torch.device("cpu")
SIZES = {"embedding": (40, 8), "norm": (8,), "scale": (), "head": (40, 8)}


def run_members(count: int, work: Any) -> list[Any]:
    """`work(group, index)` of each member of a group, concurrently."""
    store = dist.HashStore()

    def member(index: int) -> Any:
        return work(WeightGroup(store, index, count, CPU, torch.bfloat16), index)

    with ThreadPoolExecutor(count) as pool:
        return [found.result(60) for found in [pool.submit(member, index) for index in range(count)]]


@pytest.mark.parametrize("size", [1, 700, 2**28], ids=["a tensor each", "some", "all at once"])
def test_every_receiver_gets_all_weights(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_broadcast, "WEIGHT_BUCKET", size)
    weights = {name: torch.randn(shape) for name, shape in SIZES.items()}

    def work(group: WeightGroup, index: int) -> dict[str, torch.Tensor]:
        if index == 0:
            group.send(weights.items())
            return {}
        received = group.receive(list(SIZES.items()))
        return {name: tensor.clone() for bucket in received for name, tensor in bucket}

    _, *found = run_members(3, work)
    for taken in found:
        assert list(taken) == list(weights)
        for name, tensor in taken.items():
            assert tensor.shape == weights[name].shape
            assert torch.equal(tensor, weights[name].to(torch.bfloat16))


@pytest.mark.slow
def test_an_abort_frees_a_member_that_waits_for_a_dead_one() -> None:
    joined = Event()

    def work(group: WeightGroup, index: int) -> str:
        if index == 0:
            assert joined.wait(60)  # gloo lets nobody join a group that another has left
            return "died"
        joined.set()
        abort = Timer(0.3, group.abort)
        abort.start()
        with pytest.raises(RuntimeError):
            list(group.receive(list(SIZES.items())))
        abort.join()
        return "freed"

    assert run_members(2, work) == ["died", "freed"]
