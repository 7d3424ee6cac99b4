"""Running out of memory, distinguished from other failures."""

import weakref

import pytest
import torch

from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.utils.oom import OutOfMemoryError, catch_out_of_memory

PINNED = "CUDA error: out of memory"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has", "Tried to allocate 4.64 GiB"),
        ("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual", PINNED),
        *(
            (words, words)
            for words in (
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `c`",
                "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                "CUDA driver error: out of memory",
                "Triton Error [CUDA]: out of memory",
                "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            )
        ),
    ],
)
def test_a_gpus_memory_by_any_allocator(words: str, reason: str) -> None:
    kind = torch.OutOfMemoryError if words.startswith("CUDA out of memory") else RuntimeError
    with pytest.raises(OutOfMemoryError) as error, catch_out_of_memory("completions were generated", "wait"):
        raise kind(words)
    assert str(error.value) == f"the GPU's memory ran out while completions were generated ({reason}); wait"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:125] . DefaultCPUAllocator: can't allocate memory: you tried 99"),
        RuntimeError("cudaHostAlloc(&ptr, size) failed: out of memory"),
        RuntimeError("cudaErrorMemoryAllocation"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_host_memory_has_other_advice(error: Exception) -> None:
    with pytest.raises(OutOfMemoryError) as raised, catch_out_of_memory("it was loaded", "advice for a GPU"):
        raise error
    assert (raised.value.on_host, raised.value.advice) == (True, "")
    assert str(raised.value).startswith("host memory (RAM) ran out while it was loaded")


def test_pinned_memory_is_host_memory_whatever_cuda_reports() -> None:
    with pytest.raises(OutOfMemoryError, match="host memory"), catch_out_of_memory("it was loaded", "wait"):
        raise RuntimeError(PINNED)  # from pin_memory(), by the line that failed
    with pytest.raises(OutOfMemoryError, match="the GPU's memory"), catch_out_of_memory("it was loaded", "wait"):
        raise RuntimeError(PINNED)


def test_an_error_caused_by_it_counts_and_others_stay_what_they_are() -> None:
    with pytest.raises(OutOfMemoryError, match="host memory"), catch_out_of_memory("it was loaded", "wait"):
        raise ModelError("cannot load the model") from RuntimeError("DefaultCPUAllocator: can't allocate memory")
    for error in (ModelError("invalid header"), ZeroDivisionError(), RuntimeError("an illegal memory access")):
        with pytest.raises(type(error)) as raised, catch_out_of_memory("it was loaded", "wait"):
            raise error
        assert raised.value is error


def test_tensors_of_the_failed_pass_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Activations:
        pass

    def fail() -> None:
        held = Activations()
        alive.append(weakref.ref(held))
        raise torch.OutOfMemoryError

    alive: list[weakref.ref[Activations]] = []
    seen: list[Activations | None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(alive[0]()))
    with pytest.raises(OutOfMemoryError), catch_out_of_memory("it was loaded", "wait"):
        fail()
    assert seen == [None]
