"""The rollout engine for small models on a CUDA device: every decoding step is one replay of a CUDA graph.

A small model's step is over before Python has launched its kernels one by one. Here one graph holds the whole step:
layers, head, sampling and bookkeeping; the host looks in only every few steps, to drop sequences that have ended.
Graphs are captured when first needed, one for each batch size and cache length of a coarse grid.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.lora import merged_weight
from tinyzero_trainer.records import Rollout
from tinyzero_trainer.rollout.engine import SamplingParams
from tinyzero_trainer.rollout.sampling import sample_tokens

CHECK_EVERY = 8
"""Steps between two looks of the host at what has ended; each costs a synchronisation."""

SLOTS = 64
"""Grid of cache lengths."""


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


class _Weights:
    """The model's weights in the type they are used in, at addresses that stay: graphs keep pointers."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._model: Any = model
        self._tensors: dict[str, Tensor] = {}
        self.load()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        """The tensor, or None if the model has none of this name."""
        return self._tensors.get(name)

    @torch.no_grad()
    def load(self) -> None:
        """Take over the model's weights as they are now."""
        model = self._model
        self._set("embed", model.get_input_embeddings().weight)
        self._set("head", model.get_output_embeddings().weight)
        self._set("norm", model.model.norm.weight)
        for index, layer in enumerate(model.model.layers):
            attention, mlp = layer.self_attn, layer.mlp
            projections = [attention.q_proj, attention.k_proj, attention.v_proj]
            self._set(f"{index}.qkv", torch.cat([merged_weight(part) for part in projections]))
            if attention.q_proj.bias is not None:
                self._set(f"{index}.qkv_bias", torch.cat([part.bias for part in projections]))
            if attention.o_proj.bias is not None:
                self._set(f"{index}.out_bias", attention.o_proj.bias)
            self._set(f"{index}.out", merged_weight(attention.o_proj))
            self._set(f"{index}.gate_up", torch.cat([merged_weight(mlp.gate_proj), merged_weight(mlp.up_proj)]))
            self._set(f"{index}.down", merged_weight(mlp.down_proj))
            self._set(f"{index}.norm1", layer.input_layernorm.weight)
            self._set(f"{index}.norm2", layer.post_attention_layernorm.weight)
            for name in ("q_norm", "k_norm"):
                if hasattr(attention, name):
                    self._set(f"{index}.{name}", getattr(attention, name).weight)

    def _set(self, name: str, value: Tensor) -> None:
        if name in self._tensors:
            self._tensors[name].copy_(value)
        else:
            self._tensors[name] = value.detach().to(self._dtype, copy=True).contiguous()


class GraphEngine:
    """Generates on a CUDA device with static buffers; for models that `FusedDecoder.fits`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_ids: Collection[int],
        pad_id: int,
        max_sequences: int,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        config = model.config
        self._model: Any = model
        self._device, self._dtype = next(model.parameters()).device, dtype
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_size = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps, self._layers = config.rms_norm_eps, config.num_hidden_layers
        self._weights = _Weights(model, dtype)
        self._eos = torch.tensor(sorted(eos_ids), device=self._device)
        self._pad_id, self._max_sequences = pad_id, max_sequences
        self._rows = self._slots = self._steps = 0  # what the buffers are made for
        self._graphs: dict[tuple[Any, ...], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def load_weights(self) -> None:
        """See `RolloutEngine`."""
        self._weights.load()

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Rollout]]:
        """See `RolloutEngine`."""
        groups: list[list[Rollout]] = []
        at_a_time = max(1, self._max_sequences // samples)
        # On the CPU, so that a seed means the same on every device.
        generator = torch.Generator().manual_seed(seed & (2**63 - 1))
        with torch.inference_mode():
            for start in range(0, len(prompts), at_a_time):
                batch = prompts[start : start + at_a_time]
                rollouts = self._generate_batch(batch, samples, params, generator, on_progress)
                groups += [rollouts[row : row + samples] for row in range(0, len(rollouts), samples)]
        return groups

    def _generate_batch(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        generator: torch.Generator,
        on_progress: Callable[[int], None] | None,
    ) -> list[Rollout]:
        rows, longest = len(prompts) * samples, max(map(len, prompts))
        self._reserve(rows, longest + params.max_tokens, params.max_tokens)
        # One number for each row and step: what a row draws does not depend on the others.
        uniform = torch.rand(params.max_tokens, rows, generator=generator, dtype=torch.float64)
        self._uniform[: params.max_tokens, :rows] = uniform
        self._finished[:rows] = False
        self._finished[rows:] = True
        self._lengths.fill_(params.max_tokens)
        self._index.zero_()
        level = self._level(rows)
        self._row[:level] = torch.arange(level, device=self._device).clamp(max=self._rows)
        self._row[rows:level] = self._rows  # spare rows write where nobody reads
        logits = self._prefill(prompts, samples, longest)
        self._draw(logits, rows, params)
        active, unfinished = rows, rows
        for index in range(1, params.max_tokens):
            if index % CHECK_EVERY == 0:
                going_on = (~self._finished[self._row[:active]]).nonzero().squeeze(1)
                if on_progress is not None:
                    on_progress(unfinished - len(going_on))
                unfinished = len(going_on)
                if not unfinished:
                    break
                if self._level(unfinished) < level:
                    level, active = self._compact(going_on), unfinished
            self._replay(level, longest + index, params)
        if on_progress is not None:
            on_progress(unfinished)
        lengths = self._lengths[:rows].tolist()
        tokens = self._tokens[: params.max_tokens, :rows].T.tolist()
        values = self._logprobs[: params.max_tokens, :rows].T.tolist() if params.logprobs else [None] * rows
        ended = self._finished[:rows].tolist()
        return [
            Rollout(ids[:end], None if logprobs is None else logprobs[:end], done)
            for ids, logprobs, end, done in zip(tokens, values, lengths, ended, strict=True)
        ]

    # ---- buffers -----------------------------------------------------------------------------------------------------

    def _reserve(self, rows: int, slots: int, steps: int) -> None:
        """Buffers for a batch; graphs of smaller ones are forgotten."""
        if rows <= self._rows and slots <= self._slots and steps <= self._steps:
            return
        self._graphs.clear()
        self._rows, self._steps = max(rows, self._rows), max(steps, self._steps)
        self._slots = max(-(-slots // SLOTS) * SLOTS, self._slots)
        self._levels = batch_levels(self._rows)
        self._pool = torch.cuda.graph_pool_handle()
        with torch.inference_mode(False):
            make = lambda *shape, dtype: torch.zeros(shape, dtype=dtype, device=self._device)  # noqa: E731
            cache = (self._rows, self._kv_heads, self._slots, self._head_size)
            self._keys = [make(*cache, dtype=self._dtype) for _ in range(self._layers)]
            self._values = [make(*cache, dtype=self._dtype) for _ in range(self._layers)]
            wide = self._rows + 1  # the last is written by spare rows
            self._tokens = make(self._steps + 1, wide, dtype=torch.long)
            self._logprobs = make(self._steps + 1, wide, dtype=torch.float32)
            self._uniform = make(self._steps + 1, wide, dtype=torch.float64)
            self._finished = make(wide, dtype=torch.bool)
            self._lengths = make(wide, dtype=torch.long)
            self._row = make(self._rows, dtype=torch.long)
            self._token = make(self._rows, dtype=torch.long)
            self._position = make(self._rows, dtype=torch.long)
            self._first = make(self._rows, dtype=torch.long)
            self._slot = make(1, dtype=torch.long)
            self._index = make(1, dtype=torch.long)
            places = torch.arange(self._slots, device=self._device)
            cos, sin = self._model.model.rotary_emb(torch.zeros(1, 1, 1, device=self._device), places[None])
            self._cos, self._sin = cos[0].float().clone(), sin[0].float().clone()
            self._places = places

    def _level(self, rows: int) -> int:
        return next(level for level in self._levels if level >= rows)

    def _compact(self, rows: Tensor) -> int:
        """Keep the sequences at `rows`, at the front of the buffers; returns the new batch size."""
        count, level = len(rows), self._level(len(rows))
        end = int(self._slot)
        for cache in (*self._keys, *self._values):
            cache[:count, :, :end] = cache[rows, :, :end]
        for column in (self._row, self._token, self._position, self._first):
            column[:count] = column[rows]
        self._row[count:level] = self._rows
        return level

    # ---- the model ---------------------------------------------------------------------------------------------------

    def _prefill(self, prompts: Sequence[list[int]], samples: int, longest: int) -> Tensor:
        """Fill the caches; logits [rows, vocabulary] of the first token."""
        pad = [longest - len(prompt) for prompt in prompts]
        tokens = torch.tensor(
            [[self._pad_id] * count + prompt for count, prompt in zip(pad, prompts, strict=True)], device=self._device
        )
        first = torch.tensor(pad, device=self._device)
        places = self._places[:longest]
        positions = (places[None] - first[:, None]).clamp(min=0)
        seen = (places[None, :] <= places[:, None])[None] & (places[None, None, :] >= first[:, None, None])
        seen = seen | torch.eye(longest, dtype=torch.bool, device=self._device)
        hidden = F.embedding(tokens, self._weights["embed"])
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        rows = len(prompts) * samples
        for layer in range(self._layers):
            query, key, value = self._project(layer, hidden, cos, sin)
            self._keys[layer][:rows, :, :longest] = key.repeat_interleave(samples, dim=0)
            self._values[layer][:rows, :, :longest] = value.repeat_interleave(samples, dim=0)
            attended = F.scaled_dot_product_attention(
                query, key, value, attn_mask=seen[:, None], enable_gqa=self._heads != self._kv_heads
            )
            hidden = self._finish_layer(layer, hidden, attended.transpose(1, 2).flatten(2))
        self._first[:rows] = first.repeat_interleave(samples)
        self._position[:rows] = longest - self._first[:rows]
        self._slot.fill_(longest)
        return self._logits(hidden[:, -1]).repeat_interleave(samples, dim=0)

    def _step(self, level: int, slots: int, params: SamplingParams) -> None:
        """One token for every sequence; reads and writes the buffers only."""
        hidden = F.embedding(self._token[:level], self._weights["embed"])[:, None]
        positions = self._position[:level].clamp(max=self._slots - 1)
        cos, sin = self._cos[positions][:, None, None], self._sin[positions][:, None, None]
        places = self._places[:slots]
        unseen = (places[None] > self._slot) | (places[None] < self._first[:level, None])  # [level, slots]
        bias = torch.zeros(level, 1, 1, slots, device=self._device).masked_fill_(unseen[:, None, None], -torch.inf)
        for layer in range(self._layers):
            query, key, value = self._project(layer, hidden, cos, sin)
            keys, values = self._keys[layer][:level], self._values[layer][:level]
            keys.index_copy_(2, self._slot, key)
            values.index_copy_(2, self._slot, value)
            grouped = query.view(level, self._kv_heads, -1, self._head_size)  # [level, kv heads, group, head size]
            scores = torch.matmul(grouped, keys[:, :, :slots].transpose(2, 3)).float() * self._head_size**-0.5
            attended = torch.matmul((scores + bias).softmax(dim=-1).to(self._dtype), values[:, :, :slots])
            hidden = self._finish_layer(layer, hidden, attended.reshape(level, 1, -1))
        self._slot += 1
        self._position[:level] += 1
        self._draw(self._logits(hidden[:, -1]), level, params)

    def _project(self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key, rotated, and value: each [batch, heads, length, head size]."""
        weights = self._weights
        fused = F.linear(
            self._norm(hidden, f"{layer}.norm1"), weights[f"{layer}.qkv"], weights.get(f"{layer}.qkv_bias")
        )
        fused = fused.unflatten(-1, (-1, self._head_size)).transpose(1, 2)
        query, key, value = fused.split([self._heads, self._kv_heads, self._kv_heads], dim=1)
        if weights.get(f"{layer}.q_norm") is not None:
            query, key = self._norm(query, f"{layer}.q_norm"), self._norm(key, f"{layer}.k_norm")
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin), value

    def _finish_layer(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        weights = self._weights
        hidden = hidden + F.linear(attended, weights[f"{layer}.out"], weights.get(f"{layer}.out_bias"))
        gate, up = F.linear(self._norm(hidden, f"{layer}.norm2"), weights[f"{layer}.gate_up"]).chunk(2, dim=-1)
        return hidden + F.linear(F.silu(gate) * up, weights[f"{layer}.down"])

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._norm(hidden, "norm"), self._weights["head"])

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), self._weights[name], self._eps)

    def _rotate(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = states.float().chunk(2, dim=-1)
        return (states * cos + torch.cat([-right, left], dim=-1) * sin).to(self._dtype)

    # ---- sampling and graphs -----------------------------------------------------------------------------------------

    def _draw(self, logits: Tensor, rows: int, params: SamplingParams) -> None:
        """Draw a token for each of the first `rows`, and note what has ended."""
        owners = self._row[:rows]
        uniform = self._uniform.index_select(0, self._index)[0].gather(0, owners)
        drawn, logprobs = sample_tokens(logits, uniform, params)
        places = self._index.expand(rows)
        self._tokens.index_put_((places, owners), drawn)
        self._logprobs.index_put_((places, owners), logprobs)
        before = self._finished[owners]
        ends = torch.isin(drawn, self._eos) & ~before
        self._lengths.index_put_((owners,), torch.where(ends, self._index + 1, self._lengths[owners]))
        self._finished.index_put_((owners,), before | ends)
        self._token[:rows] = drawn
        self._index += 1

    def _replay(self, level: int, slots: int, params: SamplingParams) -> None:
        slots = min(-(-(slots + 1) // SLOTS) * SLOTS, self._slots)
        key = (level, slots, params.temperature, params.top_p, params.top_k)
        if key not in self._graphs:
            self._graphs[key] = self._capture(level, slots, params)
        self._graphs[key].replay()

    def _capture(self, level: int, slots: int, params: SamplingParams) -> torch.cuda.CUDAGraph:
        state = (self._slot, self._index, self._position, self._token, self._finished, self._lengths)
        saved = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(level, slots, params)  # warm-up: libraries choose their kernels and workspaces
        torch.cuda.current_stream().wait_stream(side)
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(level, slots, params)
        return graph
