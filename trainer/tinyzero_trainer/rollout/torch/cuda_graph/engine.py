"""The rollout engine for Llama-like models on a GPU: every decoding step is one replay of a CUDA graph.

A step often takes less time than Python needs to launch its kernels one by one. Here one graph holds the whole step:
layers, head, sampling and bookkeeping; the host checks only every few steps which sequences have finished. Graphs are
captured when first needed, one for each batch size of a coarse grid. Without a GPU the same steps are called.

Slots are refilled as sequences finish. New weights overwrite the old ones in place, between two steps: sequences under
way keep the keys and values of their tokens so far (as in PipelineRL, arXiv 2509.19128).
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.torch.batch_state import BatchState, copy_to_host, to_device
from tinyzero_trainer.rollout.torch.batched_engine import BatchedEngine
from tinyzero_trainer.rollout.torch.cost_model import CACHE_BLOCK, PREFILL_TOKENS, sampling_bytes
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import Fp8GraphModel, Fp8Weights
from tinyzero_trainer.rollout.torch.cuda_graph.kv_capacity import FreeMemory, fitting_sequences
from tinyzero_trainer.rollout.torch.cuda_graph.model import Cache, GraphModel
from tinyzero_trainer.rollout.torch.fused_weights import FusedWeights
from tinyzero_trainer.rollout.torch.scheduler import Scheduler
from tinyzero_trainer.rollout.weight_source import WeightSource
from tinyzero_trainer.utils.oom import OutOfMemoryError

CHECK_LAG = 3  # steps from a check's copy to its reading, so that the device need not wait; fewer than `check_every`
PREFILL_LOGITS = 2**27  # most logits of one part of the prefill


def capture_sizes(most: int) -> list[int]:
    """Batch sizes with a graph, up to `most`: two a doubling, 32 apart from 128 to 1,024, then 16 a doubling.

    Example:
        >>> capture_sizes(270)
        [8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 270]
        >>> capture_sizes(4096)[-3:]
        [3840, 3968, 4096]
    """
    sizes = {most}
    power = 8
    while power < most:
        step = power // (2 if power < 128 else min(16, power // 32))
        sizes |= {min(most, size) for size in range(power, 2 * power, step)}
        power *= 2
    return sorted(sizes)


class GraphEngine(BatchedEngine):
    """Generates with static buffers; for models that `FusedDecoder.fits`."""

    check_every = 4
    refills = True

    _cache: Cache  # exists with `_state`, if `_reserved`

    def __init__(
        self,
        language_model: LanguageModel,
        source: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        fp8_cache: bool = False,
        fp8_products: bool = False,
        max_num_seqs: int | None = None,
        keep_memory: bool = True,
        kernels: Any = None,
        memory: Callable[[], FreeMemory] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            language_model: for its sizes and end tokens.
            fp8_cache: keys and values in 8 bits.
            fp8_products: a step's matrix products in 8 bits; for models that `Fp8Weights.misfit` has nothing against.
            max_num_seqs: sequences generated at a time; None = as many as fit.
            keep_memory: whether `sleep` keeps buffers and graphs, unless memory is scarce.
            kernels: module with functions as triton_kernels.py has them; None = that module.
            memory: returns what is free for the buffers; None = asks the GPU; no limit on the CPU.
        """
        super().__init__()
        model, self._eos_ids, self._pad_id = language_model.model, language_model.eos_ids, language_model.pad_id
        network, fused = (Fp8GraphModel, Fp8Weights) if fp8_products else (GraphModel, FusedWeights)
        self._weights = fused(model.config, source, dtype=dtype, device=device)
        self._model = network(model, self._weights, dtype=dtype, device=device, fp8_cache=fp8_cache)
        self._device, self._max_num_seqs = device, max_num_seqs
        self._keep_memory, self._kept, self._reported = keep_memory, keep_memory, False
        self._allocated = 0  # bytes of the buffers
        self._sampling = 0  # bytes per logit for which they have room
        self._full = False  # whether larger ones do not fit
        if memory is None and device.type == "cuda":
            memory = partial(FreeMemory.of, device)
        self._memory, self._report = memory, report
        self._runner = GraphRunner(device)
        self._reserved = False
        self._weights.load()
        if kernels is None:
            self._use_triton()
        else:
            self._model.kernels = kernels

    def _use_triton(self) -> None:
        """Use Triton's kernels, and generate two tokens with them: that they do not run is better known at the start.

        Raises:
            TinyZeroError: they do not run here.
        """
        try:
            from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

            self._model.kernels = triton_kernels
            self.generate([[self._pad_id]], 1, SamplingParams(2), seed=0)
        except (OutOfMemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of many types: no Triton, no C compiler, a GPU too old, too little shared memory
            why = f"{type(error).__name__}: {first_line(error)}"
            advice = "install Triton and a C compiler such as gcc, or take rollout.engine=vllm"
            raise TinyZeroError(f"Triton's kernels do not run here ({why}); {advice}") from error
        self._drop_buffers()
        self._allocated, self._sampling, self._kept = 0, 0, self._keep_memory

    def load_weights(self, version: int = 0) -> None:
        """Take over the weights; sequences in slots go on, with the keys and values of their tokens so far."""
        self._weights.load()
        super().load_weights(version)

    def sleep(self) -> None:
        """Keeps memory that nothing else needs."""
        if not self._kept:
            self._suspend()
            self.close()

    def close(self) -> None:
        self._drop_buffers()
        self._weights.clear()
        self._allocated = 0
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _session(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    # ---- buffers -----------------------------------------------------------------------------------------------------

    def _reserve(self, scheduler: Scheduler) -> int:
        """Allocate the buffers, or keep the present ones if they are large enough."""
        if not self._weights:
            self._weights.load()
        length, steps = scheduler.longest
        wanted = min(len(scheduler.waiting), self._max_num_seqs or 2**62)
        sampling = self._sampling_bytes(self._params)
        large_enough = (
            self._reserved
            and self._has_room(scheduler)
            and sampling <= self._sampling
            and (wanted <= self._state.slots or self._full)
        )
        self._sampling = max(sampling, self._sampling)
        if not large_enough:
            if self._reserved:
                length, steps = max(length, self._cache.length), max(steps, self._state.max_tokens)
            length = -(-length // CACHE_BLOCK) * CACHE_BLOCK
            self._drop_buffers()
            contexts = [
                len(request.group.prompt) + request.begun
                for request in scheduler.waiting
                if request.begun or not request.sample
            ]
            longest = max(contexts, default=1)
            read_at_a_time = min(longest * len(contexts), max(longest, PREFILL_TOKENS))
            wanted = self._fitting(wanted, length, steps, self._model.prefill_bytes(read_at_a_time))
            self._state, self._reserved = BatchState(wanted, steps, self._eos_ids, self._device), True
            self._cache = Cache(self._model, wanted + 1, length)
            self._capture_sizes = capture_sizes(wanted)
        self._check: Callable[[], Tensor] | None = None  # the last copy of `BatchState.finished` to the host
        self._checked = 0  # after how many steps it was made
        return min(wanted, self._state.slots)

    def _has_room(self, scheduler: Scheduler) -> bool:
        length, steps = scheduler.longest
        return length <= self._cache.length and steps <= self._state.max_tokens

    def _fitting(self, wanted: int, length: int, steps: int, prefill: int) -> int:
        """How many of the wanted sequences fit."""
        if self._memory is None:
            return wanted
        free, size = self._memory(), self._sequence_bytes(length, steps)
        # What the last buffers took still counts as this process's.
        free = FreeMemory(free.unused + self._allocated - prefill, max(0, free.reusable - self._allocated), free.margin)
        fitting, self._kept = fitting_sequences(wanted, size, free, keep=self._keep_memory)
        self._allocated, self._full = fitting * size, fitting < wanted
        if fitting < wanted and not self._reported:
            self._reported = True
            self._report(
                f"the GPU has room for {fitting:,} sequences of {length:,} tokens at a time; {wanted:,} are wanted"
            )
        return fitting

    def _sequence_bytes(self, length: int, steps: int) -> int:
        """Bytes of a sequence while it is generated: cache, tokens, and the activations of a step."""
        model, cache = self._model, self._model.cache_bytes(length)
        sampling = model.vocabulary * self._sampling
        return cache + 12 * steps + 16 * model.mlp_size + sampling

    def _sampling_bytes(self, params: SamplingParams) -> int:
        """Per logit of a step."""
        greedy = params.temperature == 0
        return sampling_bytes(self._model.dtype.itemsize, by_kernel=_by_kernel(params), greedy=greedy)

    def _drop_buffers(self) -> None:
        if self._reserved:
            del self._cache, self._state
        self._reserved = False
        self._runner.forget()

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _prefill(self, contexts: Sequence[list[int]], rows: Sequence[int], slots: Tensor) -> None:
        """Read contexts into slots, in parts of a bounded number of tokens and logits."""
        state, start = self._state, 0
        while start < len(rows):
            end = _part_end(contexts, rows, start, self._model.vocabulary)
            # In NumPy: torch would wake all its threads for such a short operation, which can take milliseconds.
            distinct, firsts, places = np.unique(rows[start:end], return_index=True, return_inverse=True)
            part = [contexts[index] for index in distinct]
            longest, entering = max(map(len, part)), slots[start:end].numpy()
            lengths = np.array([len(context) for context in part])
            padded = torch.tensor([context + [self._pad_id] * (longest - len(context)) for context in part])
            columns = np.stack([places, entering, entering[firsts[places]], lengths[places]])
            tokens, sizes, (which, *shared) = (
                to_device(torch.as_tensor(array), self._device) for array in (padded, lengths, columns)
            )
            logits = self._model.prefill(tokens, sizes, which, shared[0], self._cache)
            state.share_prefixes(*shared)
            state.set_rows(slots[start:end], end - start)
            self._sample(state, logits, end - start, self._params)
            start = end

    def _work_on(self, running: Tensor, kept: Tensor | None = None) -> None:
        """Set the rows of the next steps, and capture a step for their number if there is none."""
        state, params, cache = self._state, self._params, self._cache
        rows = next(size for size in self._capture_sizes if size >= len(running))
        # What is fixed in a graph; it reads the values of temperature and top-p.
        key = (rows, params.temperature == 0, params.top_p < 1, params.top_k, params.ignore_eos)

        def step() -> None:
            """Reads and writes the buffers only."""
            self._sample(state, self._model.step(state, rows, cache), rows, params)

        if key not in self._runner.steps:
            state.set_rows(running[:0], rows)  # preparing it changes only the spare slot
            self._runner.prepare(key, step)
        state.set_rows(running, rows)
        self._rows, self._key = rows, key

    def _finished(self) -> tuple[Tensor, int] | None:
        return None if self._check is None else (self._check(), self._checked)

    def _step(self, index: int) -> None:
        self._runner.steps[self._key]()
        if index % self.check_every == self.check_every - 1 - CHECK_LAG and not self._params.ignore_eos:
            self._check, self._checked = copy_to_host(self._state.finished), index

    def _sample(self, state: BatchState, logits: Tensor, rows: int, params: SamplingParams) -> None:
        if _by_kernel(params):
            self._model.kernels.sample(logits, state, rows, ends=not params.ignore_eos)
        else:
            state.sample(logits, rows, params)


def _by_kernel(params: SamplingParams) -> bool:
    """Whether a kernel samples so."""
    return params.temperature > 0 and params.top_p >= 1 and not params.top_k


def _part_end(contexts: Sequence[list[int]], rows: Sequence[int], start: int, vocabulary: int) -> int:
    """The end of the part of the rows that starts at `start`."""
    longest = count = 0
    end = min(len(rows), start + max(1, PREFILL_LOGITS // vocabulary))
    for row in range(start, end):
        if row == start or rows[row] != rows[row - 1]:
            longest, count = max(longest, len(contexts[rows[row]])), count + 1
            if row > start and longest * count > PREFILL_TOKENS:
                return row
    return end


class GraphRunner:
    """Runs steps repeatedly: on a CUDA device as captured graphs, elsewhere by calling them.

    The tensors that a step reads and writes must keep their addresses.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.forget()

    def forget(self) -> None:
        """Drop all steps and their memory; what they read may be freed now."""
        self.steps: dict[Hashable, Callable[[], None]] = {}  # by key
        # The stream stays: memory used on one is not reused on another, and cuBLAS never frees its workspace of each.
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()

    def prepare(self, key: Hashable, step: Callable[[], None]) -> None:
        """Prepare a step. It runs once before it is captured, so that libraries choose their kernels and workspaces."""
        if self._stream is None:
            step()
            self.steps[key] = step
            return
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
            # Not torch.cuda.graph, which empties the allocator's cache each time. Other threads may keep allocating.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # it fails as well, and would hide the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        self.steps[key] = graph.replay
