"""The rollout engine for Llama-like models on a GPU: every decoding step is one replay of a CUDA graph.

A step is often over before Python has launched its kernels one by one. Here one graph holds the whole step: layers,
head, sampling and bookkeeping; the host looks in only every few steps, to drop sequences that have ended. Graphs are
captured when first needed, one for each batch size of a coarse grid. Without a GPU the same steps are called.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.estimate.engine_buffers import PREFILL_TOKENS, SLOTS, drawing_bytes
from tinyzero_trainer.rollout.cuda_graph.batch_state import State, draw
from tinyzero_trainer.rollout.cuda_graph.graph_runner import GraphRunner
from tinyzero_trainer.rollout.cuda_graph.kv_capacity import Memory, present_memory, sequences
from tinyzero_trainer.rollout.cuda_graph.model import Cache, GraphModel
from tinyzero_trainer.rollout.cuda_graph.weights import GraphWeights
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.results import to_rollouts
from tinyzero_trainer.rollout.weight_sync import WeightSource
from tinyzero_trainer.types import Generation

LOOK_EVERY = 4
"""Steps between two looks of the host at what has ended."""

LOOK_LAG = 2
"""Steps between asking and looking, so that the device need not wait for the host."""

PREFILL_LOGITS = 2**27
"""Logits after which a part of the prompts ends too."""


def batch_levels(most: int) -> list[int]:
    """Batch sizes that graphs are captured for: powers of two and their three-quarters, up to `most`.

    Example:
        >>> batch_levels(100)
        [8, 12, 16, 24, 32, 48, 64, 96, 100]
    """
    levels = {most}
    power = 8
    while power < most:
        levels |= {power, min(most, power * 3 // 2)}
        power *= 2
    return sorted(levels)


def kernels_run(model: GraphModel, eos_ids: Collection[int], note: Callable[[str], None]) -> bool:
    """Whether Triton's kernels run for a model; where they do not on a GPU, the user is told why."""
    if model.device.type != "cuda":
        return False
    try:
        from tinyzero_trainer.rollout.cuda_graph import triton_kernels as step_kernels

        step_kernels.try_out(model, eos_ids)
    except Exception as error:  # of many types: no Triton, no C compiler, a card too old, too little shared memory
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        note(f"Triton's kernels do not run here ({why}); generation is slower without, and takes more memory")
        return False
    return True


class GraphEngine:
    """Generates with static buffers; for models that `FusedDecoder.fits`."""

    def __init__(
        self,
        model: PreTrainedModel,
        source: WeightSource,
        *,
        eos_ids: Collection[int],
        pad_id: int,
        max_num_seqs: int | None,
        dtype: torch.dtype,
        device: torch.device,
        keep_memory: bool = True,
        kernels: bool | None = None,
        memory: Callable[[], Memory] | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            model: gives its shape; of its weights nothing is read.
            source: gives the weights.
            eos_ids: every token that ends a completion.
            pad_id: any token; padding is seen by nobody.
            max_sequences: sequences generated at a time; None = as many as fit.
            dtype: what to compute in.
            device: what to compute on.
            keep_memory: whether `sleep` keeps what is not scarce, so that no graph has to be captured again.
            kernels: whether Triton's are used; None = on a GPU, if they run there.
            memory: what there is for the caches; None = asks the GPU, and on the CPU nobody.
            note: is told of what the user should know.
        """
        self._weights = GraphWeights(model.config, source, dtype=dtype, device=device)
        self._model = GraphModel(model, self._weights, dtype=dtype, device=device)
        self._device = device
        self._kernels = kernels_run(self._model, eos_ids, note) if kernels is None else kernels
        if self._kernels:
            self._model.use_kernels()
        self._eos_ids, self._pad_id, self._max_sequences = eos_ids, pad_id, max_num_seqs
        self._keep_memory, self._kept, self._noted = keep_memory, keep_memory, False
        self._own = 0  # bytes that the buffers take
        self._drawing = 0  # bytes a logit that they leave room for
        self._full = False  # whether there is no room for larger ones
        if memory is None and device.type == "cuda":
            memory = lambda: present_memory(device)  # noqa: E731
        self._memory, self._note = memory, note
        self._replayer = GraphRunner(device)
        self._state: State | None = None
        self._weights.load()

    def load_weights(self) -> None:
        """See `RolloutEngine`."""
        self._weights.load()

    def sleep(self) -> None:
        """See `RolloutEngine`; what others do not need is kept."""
        if not self._kept:
            self.close()

    def close(self) -> None:
        """See `RolloutEngine`."""
        self._drop_buffers()
        self._weights.drop()
        self._own = 0
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        """See `RolloutEngine`.

        Raises:
            KvCacheError: the GPU's memory does not hold even a few sequences.
        """
        if not self._weights.loaded:
            self._weights.load()
        rows = len(prompts) * samples
        if not rows:
            return [[] for _ in prompts]
        at_a_time = self._reserve(prompts, samples, params)
        at_a_time = -(-rows // -(-rows // at_a_time))  # as many batches, of about one size
        flat: list[Generation] = []
        for start in range(0, rows, at_a_time):
            batch = range(start, min(rows, start + at_a_time))
            flat += self._generate_batch(prompts, samples, batch, first, params, seed, on_progress or (lambda _: None))
        return [flat[row : row + samples] for row in range(0, rows, samples)]

    def _generate_batch(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        batch: range,
        first: int,
        params: SamplingParams,
        seed: int,
        on_progress: Callable[[int], None],
    ) -> list[Generation]:
        """Completions of the rows `batch` among all prompts × samples; the first prompt has the number `first`."""
        state, rows = self._buffers(), len(batch)
        owners = [row // samples for row in batch]  # the prompt of each row
        state.begin([len(prompts[owner]) for owner in owners], first * samples + batch.start, params, seed)
        self._prefill(prompts, owners, params)
        columns = torch.arange(rows)
        level = self._enter(columns, params)
        look = None
        for index in range(1, params.max_tokens):
            if look is not None and index % LOOK_EVERY == 0:
                going_on = columns[look.result()[columns] == 0]
                on_progress(len(columns) - len(going_on))
                columns = going_on
                if not len(columns):
                    break
                if self._level(len(columns)) < level:
                    level = self._enter(columns, params)
            self._replayer.run(_key(level, params))
            if index % LOOK_EVERY == LOOK_EVERY - LOOK_LAG and not params.ignore_eos:
                look = _Look(state.finished)
        on_progress(len(columns))
        tokens = state.tokens[: params.max_tokens, :rows]
        logprobs = state.logprobs[: params.max_tokens, :rows] if params.logprobs else None
        return to_rollouts(tokens, logprobs, state.lengths[:rows], state.finished[:rows])

    # ---- buffers -----------------------------------------------------------------------------------------------------

    def _reserve(self, prompts: Sequence[list[int]], samples: int, params: SamplingParams) -> int:
        """Make the buffers large enough; returns how many sequences may be generated at a time."""
        longest, steps, state = max(map(len, prompts)), params.max_tokens, self._state
        wanted, slots = min(len(prompts) * samples, self._max_sequences or 2**62), longest + steps
        drawing = self._drawing_bytes(params)
        large_enough = state is not None and slots <= state.slots and steps <= state.steps and drawing <= self._drawing
        self._drawing = max(drawing, self._drawing)
        if state is not None and large_enough and (wanted <= state.rows or self._full):
            return min(wanted, state.rows)
        if state is not None:
            slots, steps = max(slots, state.slots), max(steps, state.steps)
        slots = -(-slots // SLOTS) * SLOTS
        self._drop_buffers()
        read_at_a_time = min(longest * len(prompts), max(longest, PREFILL_TOKENS))
        wanted = self._fitting(wanted, slots, steps, self._model.prefill_bytes(read_at_a_time))
        self._state = State(wanted, slots, steps, self._eos_ids, self._device)
        self._cache = Cache(self._model, wanted + 1, slots)
        self._tables = self._model.tables(slots)
        self._levels = batch_levels(wanted)
        return wanted

    def _fitting(self, wanted: int, slots: int, steps: int, reading: int) -> int:
        """Of the sequences that are wanted, those that there is room for."""
        if self._memory is None:
            return wanted
        found, size = self._memory(), self._sequence_bytes(slots, steps)
        # What the last buffers took still counts as this process's.
        found = Memory(found.free + self._own - reading, max(0, found.reusable - self._own))
        fitting, self._kept = sequences(wanted, size, found, keep=self._keep_memory)
        self._own, self._full = fitting * size, fitting < wanted
        if fitting < wanted and not self._noted:
            self._noted = True
            self._note(
                f"the GPU has room for {fitting:,} sequences of {slots:,} tokens at a time; {wanted:,} are wanted"
            )
        return fitting

    def _sequence_bytes(self, slots: int, steps: int) -> int:
        """What each sequence takes while it is generated: cache, tokens, and what a step computes on the way."""
        model, cache = self._model, self._model.cache_bytes(slots)
        drawing = model.vocabulary * self._drawing
        gathered = 0 if self._kernels else cache // model.layers * (1 + model.heads // model.kv_heads)
        return cache + 12 * steps + 16 * model.mlp_size + max(drawing, gathered)

    def _drawing_bytes(self, params: SamplingParams) -> int:
        """Of each logit of a step."""
        by_kernel, greedy = self._draws_by_kernel(params), params.temperature == 0
        return drawing_bytes(self._model.dtype.itemsize, by_kernel=by_kernel, greedy=greedy)

    def _drop_buffers(self) -> None:
        self._state = None
        self._replayer.forget()
        for name in ("_cache", "_tables"):
            if hasattr(self, name):
                delattr(self, name)

    def _buffers(self) -> State:
        assert self._state is not None
        return self._state

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _prefill(self, prompts: Sequence[list[int]], owners: list[int], params: SamplingParams) -> None:
        """Read the prompts, and draw the first token of each row."""
        state, start = self._buffers(), 0
        # The rows' positions are those of the tokens before; drawing moves them on.
        while start < len(owners):
            end = _part_end(prompts, owners, start, self._model.vocabulary)
            distinct, copies = torch.tensor(owners[start:end]).unique_consecutive(return_counts=True)
            part = [prompts[owner] for owner in distinct.tolist()]
            longest = max(map(len, part))
            tokens = torch.tensor([prompt + [self._pad_id] * (longest - len(prompt)) for prompt in part])
            lengths = torch.tensor([len(prompt) for prompt in part])
            tokens, lengths, copies = (tensor.to(self._device) for tensor in (tokens, lengths, copies))
            logits = self._model.prefill(tokens, lengths, copies, slice(start, end), self._cache, self._tables)
            state.work_on(torch.arange(start, end), end - start)
            self._draw(logits, end - start, params)
            start = end

    def _enter(self, columns: Tensor, params: SamplingParams) -> int:
        """Let the next steps work on these columns; returns their batch size."""
        state, level = self._buffers(), self._level(len(columns))
        key = _key(level, params)
        if key not in self._replayer:
            state.work_on(None, level)  # making it ready changes the spare column only
            self._replayer.prepare(key, lambda: self._step(level, params))
        state.work_on(columns, level)
        return level

    def _step(self, level: int, params: SamplingParams) -> None:
        """One token for every sequence; reads and writes the buffers only."""
        logits = self._model.step(self._buffers(), level, self._cache, self._tables)
        self._draw(logits, level, params)

    def _draw(self, logits: Tensor, rows: int, params: SamplingParams) -> None:
        if self._draws_by_kernel(params):
            from tinyzero_trainer.rollout.cuda_graph import triton_kernels as step_kernels

            step_kernels.draw(logits, self._buffers(), rows, ends=not params.ignore_eos)
        else:
            draw(logits, self._buffers(), rows, params)

    def _draws_by_kernel(self, params: SamplingParams) -> bool:
        return self._kernels and params.temperature > 0 and params.top_p >= 1 and not params.top_k

    def _level(self, rows: int) -> int:
        return next(level for level in self._levels if level >= rows)


class _Look:
    """A copy of a tensor to the host, which need not be waited for at once."""

    def __init__(self, tensor: Tensor) -> None:
        self._event = None
        if not tensor.is_cuda:
            self._copy = tensor.clone()
            return
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def result(self) -> Tensor:
        """The tensor as it was when the look was begun, on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


def _key(level: int, params: SamplingParams) -> tuple[Any, ...]:
    """What is written into a graph; temperature and top-p themselves are read by it."""
    return (level, params.temperature == 0, params.top_p < 1, params.top_k, params.ignore_eos)


def _part_end(prompts: Sequence[list[int]], owners: list[int], start: int, vocabulary: int) -> int:
    """Where a part of the rows ends that is read at a time: at most so many tokens, and so many logits."""
    longest = count = 0
    most = max(1, PREFILL_LOGITS // vocabulary)
    for row in range(start, len(owners)):
        if row == start or owners[row] != owners[row - 1]:
            longest, count = max(longest, len(prompts[owners[row]])), count + 1
        if row > start and (longest * count > PREFILL_TOKENS or row - start >= most):
            return row
    return len(owners)
