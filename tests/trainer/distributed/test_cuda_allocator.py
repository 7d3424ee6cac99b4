"""Settings of the GPU allocator; no GPU is used."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.advisor.planned import config_of
from tinyzero_trainer.distributed import cuda_allocator as allocator
from tinyzero_trainer.rollout.vllm.weight_transfer import packed

EXPANDING = "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2],expandable_segments:True"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """The allocator's settings, with expandable segments; none in the environment."""
    monkeypatch.setattr(allocator, "_set_here", [])
    for name in allocator.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    get, change = torch._C._accelerator_getAllocatorSettings, torch._C._accelerator_setAllocatorSettings
    before = get()
    change(EXPANDING)
    allocator._set_here.append(EXPANDING)
    yield get
    change(before)


def test_a_bucket_lies_in_no_expandable_segment(settings: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, empty = [], torch.empty

    def spy(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(settings())
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", spy)
    with packed([("a", torch.ones(2)), ("b", torch.ones(3))]):
        assert settings() == EXPANDING
    assert seen == [EXPANDING.replace("True", "False")]


def test_the_users_settings_return_after_an_error(settings: Callable[[], str]) -> None:
    with pytest.raises(MemoryError), allocator.fixed_segments():
        raise MemoryError
    assert settings() == EXPANDING


@pytest.mark.parametrize("given", ["", "max_split_size_mb:64", "expandable_segments:False"])
def test_settings_that_do_not_expand_are_left_alone(given: str, settings: Callable[[], str]) -> None:
    torch._C._accelerator_setAllocatorSettings(given)
    allocator._set_here[:] = [given]
    with allocator.fixed_segments():
        assert settings() == given
    assert settings() == given


@pytest.mark.parametrize(
    ("words", "given", "expected"),
    [
        ((), None, "expandable_segments:True"),
        (("rollout.engine=vllm",), None, "expandable_segments:True"),
        (("rollout.engine=vllm", "vllm.separate_process=false"), None, ""),
        ((), "max_split_size_mb:64", ""),
    ],
)
def test_segments_expand_unless_the_settings_are_given(
    words: tuple[str, ...],
    given: str | None,
    expected: str,
    settings: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if given is not None:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", given)
    torch._C._accelerator_setAllocatorSettings("")
    allocator.expand_segments(config_of(*words))
    assert settings() == expected
