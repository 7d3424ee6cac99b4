"""Weights from one sender to several receivers, over gloo: threads of this process in the place of actors."""

from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tinyzero_trainer.executors.ray import weight_broadcast
from tinyzero_trainer.executors.ray.weight_broadcast import WeightGroup

CPU = torch.device("cpu")
SIZES = {"embedding": (40, 8), "norm": (8,), "scale": (), "head": (40, 8)}


def together(count: int, work: Any) -> list[Any]:
    """`work(group, index)` at each end of a group, all at the same time."""
    store = dist.HashStore()

    def end(index: int) -> Any:
        return work(WeightGroup(store, index, count, CPU, torch.bfloat16), index)

    with ThreadPoolExecutor(count) as pool:
        return [found.result(60) for found in [pool.submit(end, index) for index in range(count)]]


@pytest.mark.parametrize("size", [1, 700, 2**28], ids=["a tensor each", "some", "all at once"])
def test_every_receiver_has_all_weights_as_they_are_sent(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_broadcast, "BUCKET_BYTES", size)
    weights = {name: torch.randn(shape) for name, shape in SIZES.items()}

    def work(group: WeightGroup, index: int) -> dict[str, torch.Tensor]:
        if index == 0:
            group.send(weights.items())
            return {}
        received = group.receive(list(SIZES.items()))
        return {name: tensor.clone() for bucket in received for name, tensor in bucket}

    _, *found = together(3, work)
    for taken in found:
        assert list(taken) == list(weights)
        for name, tensor in taken.items():
            assert tensor.shape == weights[name].shape
            assert torch.equal(tensor, weights[name].to(torch.bfloat16))


@pytest.mark.slow
def test_who_waits_for_one_that_has_died_is_freed_by_an_abort() -> None:
    def work(group: WeightGroup, index: int) -> str:
        if index == 0:
            return "died"
        abort = Timer(0.3, group.abort)
        abort.start()
        with pytest.raises(RuntimeError):
            list(group.receive(list(SIZES.items())))
        abort.join()
        return "freed"

    assert together(2, work) == ["died", "freed"]
