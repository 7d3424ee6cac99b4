"""Attention of a decoding step over each sequence's own length, and filling the KV cache with prompts, in Triton."""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.models.common_triton import LARGEST_FP8, LEAST_SCALE, early, round_to_fp8, wait
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph.model import HEADROOM, LayerCache, Tables

ENOUGH_PROGRAMS = 2048  # of one warp each, that keep a GPU busy
SMALLEST_PIECE = 128  # positions of a piece of a context, at least, where there are several
MOST_PIECES = 64  # of a context: the program that finishes last adds them up, one after another
FEWEST_HEADS = 8  # query heads of a product at least, padded with zeros

_UNPACKED_UNIT = tl.constexpr(2.0**8)  # by which the exponents of float16 are further from 0
_HEADROOM = tl.constexpr(HEADROOM)


def store_contexts(
    fused: Tensor, tables: Tables, cache: LayerCache, slots: Tensor, rows: Tensor, lengths: Tensor
) -> None:
    """Rotate queries and keys of contexts, in place, and store keys and values.

    Args:
        fused: [contexts, longest, heads + 2 × kv heads, head size] query, key and value; the first two are overwritten.
        slots: [slots] to fill.
        rows: [slots] the context of each.
        lengths: [contexts], after which there is padding.
    """
    contexts, longest, heads, size = fused.shape
    _, kv_heads, cache_length, _ = cache.keys.shape
    scaled = cache.key_scales is not None
    sizes: dict[str, Any] = {"KV_HEADS": kv_heads, "SIZE": size, "SCALED": scaled}
    largest = torch.zeros((contexts, 2, kv_heads), dtype=torch.float32, device=fused.device) if scaled else None
    _rotate_contexts[(contexts * longest,)](
        fused, largest, *tables, lengths, longest,
        HEADS=heads, HEADS_BLOCK=triton.next_power_of_2(heads), HALF_BLOCK=triton.next_power_of_2(size // 2),
        **sizes, **early(fused),
    )  # fmt: skip
    block = 32
    _store_contexts[(len(slots), triton.cdiv(longest, block))](
        fused, largest, *cache, slots, rows, longest, cache_length,
        HEADS=heads, BLOCK=block, SIZE_BLOCK=triton.next_power_of_2(size), **sizes, **early(fused),
    )  # fmt: skip


class Pieces(NamedTuple):
    """What each program of a step's attention reads: a context much longer than others is split, as in Flash-Decoding.

    A step would otherwise wait for the longest, and few contexts would not keep a GPU busy.
    """

    table: Tensor
    """int32 [6 × limit + 1]: of each piece row, slot, position of the newest token, first position of the piece, its
    size, and the number of the context's first piece; then how many pieces there are."""

    done: Tensor  # int32 [rows × kv heads] how many pieces of each are done, 0 between two layers
    limit: int  # how many pieces there may be


def split(state: BatchState, rows: int, kv_heads: int, length: int) -> Pieces:
    """Split the contexts of a step's rows, of at most `length` positions."""
    pieces = min(MOST_PIECES, triton.cdiv(length, SMALLEST_PIECE))
    limit = min(max(rows + rows // 2, ENOUGH_PROGRAMS // kv_heads), rows * pieces)
    table = torch.empty(6 * limit + 1, dtype=torch.int32, device=state.slot_ids.device)
    done = torch.empty(rows * kv_heads, dtype=torch.int32, device=table.device)
    _split[(1,)](
        table, done, state.slot_ids, state.positions, rows, limit,
        KV_HEADS=kv_heads, ROWS=triton.next_power_of_2(max(rows, 1024)), SMALLEST=SMALLEST_PIECE, MOST=MOST_PIECES,
        **early(table),
    )  # fmt: skip
    return Pieces(table, done, limit)


def attend(
    fused: Tensor, tables: Tables, state: BatchState, rows: int, cache: LayerCache, heads: int, pieces: Pieces
) -> Tensor:
    """Write the newest key and value of each sequence to the cache, and attend over the sequence.

    Args:
        fused: [rows, (heads + 2 × kv heads) × head size] query, key and value, not rotated yet.
        state: gives each row's slot and position in the cache.
        heads: query heads.
        pieces: what `split` gives for the step, for all of its layers.

    Returns:
        [rows, heads × head size].
    """
    _, kv_heads, cache_length, size = cache.keys.shape
    group, size_block = heads // kv_heads, max(32, triton.next_power_of_2(size))
    group_block = max(FEWEST_HEADS, triton.next_power_of_2(group))
    out = torch.empty((rows, heads * size), dtype=fused.dtype, device=fused.device)
    sums = torch.empty((pieces.limit, kv_heads, size_block + 2, group_block), dtype=torch.float32, device=fused.device)
    in_bytes = size_block * cache.keys.itemsize
    if in_bytes > 256:
        block, warps = 2**14 // in_bytes, 4  # with shared memory as small GPUs have it
    elif cache.keys.itemsize == 1:
        # Two numbers of the newest key a thread: of four, ptxas 12.9 mixes up bytes where they are stored and also
        # exchanged between threads (triton-lang/triton#11111).
        block, warps = 32, max(1, size_block // 64)
    else:  # many small programs hide each other's waiting
        block, warps = 16, 1
    _attend[(pieces.limit * kv_heads,)](
        fused, out, sums, *pieces, *cache, *tables, state.prefix_slots, state.prefix_lengths,
        size**-0.5 / math.log(2), cache_length,
        GROUP=group, GROUP_BLOCK=group_block, KV_HEADS=kv_heads, SIZE=size,
        SIZE_BLOCK=size_block, BLOCK=block, SCALED=cache.key_scales is not None,
        num_warps=warps, num_stages=3, **early(out),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["longest"])
def _rotate_contexts(  # type: ignore[no-untyped-def]
    fused, largest, cos, sin, lengths, longest,
    HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Query and key of a context's position, and the largest key and value of each head so far."""
    wait(EARLY)
    context, position = tl.program_id(0) // longest, tl.program_id(0) % longest
    half: tl.constexpr = SIZE // 2
    h, e = tl.arange(0, HEADS_BLOCK)[:, None], tl.arange(0, HALF_BLOCK)[None, :]
    known, width = (h < HEADS) & (e < half), e < half
    left_place = fused + tl.program_id(0).to(tl.int64) * (HEADS * SIZE) + h * SIZE + e
    is_value = h >= HEADS - KV_HEADS
    c = tl.where(is_value, 1.0, tl.load(cos + position * half + e, mask=width, other=0.0))
    s = tl.where(is_value, 0.0, tl.load(sin + position * half + e, mask=width, other=0.0))
    left = tl.load(left_place, mask=known, other=0.0).to(tl.float32)
    right = tl.load(left_place + half, mask=known, other=0.0).to(tl.float32)
    dtype = fused.dtype.element_ty
    new_left, new_right = (left * c - right * s).to(dtype), (right * c + left * s).to(dtype)
    tl.store(left_place, new_left, mask=known & ~is_value)
    tl.store(left_place + half, new_right, mask=known & ~is_value)
    if SCALED:
        most = tl.max(tl.maximum(tl.abs(new_left.to(tl.float32)), tl.abs(new_right.to(tl.float32))), axis=1)
        kept = tl.arange(0, HEADS_BLOCK) - (HEADS - 2 * KV_HEADS)
        counts = (kept >= 0) & (kept < 2 * KV_HEADS) & (position < tl.load(lengths + context))
        tl.atomic_max(largest + context * 2 * KV_HEADS + kept, most, mask=counts, sem="relaxed")


@triton.jit(do_not_specialize=["longest"])
def _store_contexts(  # type: ignore[no-untyped-def]
    fused, largest, keys, values, key_scales, value_scales, slots, rows, longest, cache_length,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, SIZE_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Keys and values of some positions of a slot's context."""
    wait(EARLY)
    slot, context = tl.load(slots + tl.program_id(0)), tl.load(rows + tl.program_id(0))
    t, e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None], tl.arange(0, SIZE_BLOCK)[None, :]
    inside = (t < longest) & (e < SIZE)
    line = fused + (context * longest + t) * (HEADS * SIZE) + (HEADS - 2 * KV_HEADS) * SIZE + e
    for head in tl.static_range(KV_HEADS):
        head_slot = slot * KV_HEADS + head
        place = head_slot * cache_length * SIZE + t * SIZE + e
        key = tl.load(line + head * SIZE, mask=inside)
        value = tl.load(line + (KV_HEADS + head) * SIZE, mask=inside)
        if SCALED:
            most = largest + context * 2 * KV_HEADS + head
            key_scale = tl.maximum(tl.load(most) * (_HEADROOM / LARGEST_FP8), LEAST_SCALE)
            value_scale = tl.maximum(tl.load(most + KV_HEADS) * (_HEADROOM / LARGEST_FP8), LEAST_SCALE)
            tl.store(key_scales + head_slot, key_scale)
            tl.store(value_scales + head_slot, value_scale)
            key, value = round_to_fp8(key, key_scale), round_to_fp8(value, value_scale)
        tl.store(keys + place, key, mask=inside)
        tl.store(values + place, value, mask=inside)


@triton.jit(do_not_specialize=["rows", "limit"])
def _split(  # type: ignore[no-untyped-def]
    table, done, slot_ids, positions, rows, limit,
    KV_HEADS: tl.constexpr, ROWS: tl.constexpr, SMALLEST: tl.constexpr, MOST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Pieces of equal size of each context, so many that there are no more than `limit` in all."""
    wait(EARLY)
    row = tl.arange(0, ROWS)
    real = row < rows
    for head in tl.static_range(KV_HEADS):
        tl.store(done + row * KV_HEADS + head, tl.zeros_like(row), mask=real)
    slot = tl.load(slot_ids + row, mask=real, other=0)
    position = tl.load(positions + slot, mask=real, other=0).to(tl.int32)
    # Each context has at most one piece more than this size fits into it.
    size = tl.maximum(tl.cdiv(tl.sum(position, axis=0), tl.maximum(limit - rows, 1)), SMALLEST)
    size = tl.maximum(size, tl.cdiv(tl.max(position, axis=0), MOST))
    size = tl.cdiv(position, tl.maximum(tl.cdiv(position, size), 1))
    size = tl.maximum(tl.cdiv(size, 32), 1) * 32
    count = tl.where(real, tl.maximum(tl.cdiv(position, size), 1), 0)
    first = tl.cumsum(count, axis=0) - count
    for index in range(tl.max(count, axis=0)):
        piece, has = table + first + index, index < count
        tl.store(piece, row, mask=has)
        tl.store(piece + limit, slot.to(tl.int32), mask=has)
        tl.store(piece + 2 * limit, position, mask=has)
        tl.store(piece + 3 * limit, index * size, mask=has)
        tl.store(piece + 4 * limit, size, mask=has)
        tl.store(piece + 5 * limit, first, mask=has)
    tl.store(table + 6 * limit, tl.sum(count, axis=0))


@triton.jit(do_not_specialize=["limit"])
def _attend(  # type: ignore[no-untyped-def]
    fused, out, sums, table, done, limit, keys, values, key_scales, value_scales, cos, sin, prefix_slots,
    prefix_lengths, scale, cache_length,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """All query heads of one key-value head and piece of a context; `scale` is in powers of two."""
    wait(EARLY)
    # The first programs start first: those of the first rows, whose contexts are the oldest and longest.
    piece, head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    row, slot = tl.load(table + piece), tl.load(table + limit + piece).to(tl.int64)
    position, start = tl.load(table + 2 * limit + piece), tl.load(table + 3 * limit + piece)
    piece_size, first_piece = tl.load(table + 4 * limit + piece), tl.load(table + 5 * limit + piece)
    if piece >= tl.load(table + 6 * limit):
        return
    is_first = start == 0
    g, e = tl.arange(0, GROUP_BLOCK), tl.arange(0, SIZE_BLOCK)
    width = e < SIZE
    known = width[:, None] & (g < GROUP)[None, :]

    half: tl.constexpr = SIZE // 2
    partner = (e + half) % SIZE
    c = tl.load(cos + position * half + e % half, mask=width, other=0.0)
    s = tl.load(sin + position * half + e % half, mask=width, other=0.0)
    s = tl.where(e < half, -s, s)
    line = fused + row.to(tl.int64) * ((GROUP + 2) * KV_HEADS * SIZE)
    heads = line + (head * GROUP + g[None, :]) * SIZE
    query = _rotated(heads + e[:, None], heads + partner[:, None], c[:, None], s[:, None], known)  # [size, group]
    line += (GROUP * KV_HEADS + head) * SIZE
    key = _rotated(line + e, line + partner, c, s, width)
    value = tl.load(line + KV_HEADS * SIZE + e, mask=width, other=0.0)

    stored = cache_length.to(tl.int64) * SIZE  # numbers of one slot's head
    head_slot = slot * KV_HEADS + head
    own = head_slot * stored
    here = own + position * SIZE + e
    value_scale = 1.0
    if SCALED:
        key_scale, value_scale = tl.load(key_scales + head_slot), tl.load(value_scales + head_slot)
        key, value = round_to_fp8(key, key_scale), round_to_fp8(value, value_scale)
        query = query.to(tl.float16)  # as `_unpack` gives keys
        scale *= key_scale
    tl.store(keys + here, key, mask=width & is_first)
    tl.store(values + here, value, mask=width & is_first)
    own_score = tl.sum(query.to(tl.float32) * key.to(tl.float32)[:, None], axis=0) * scale  # [group]
    own_score = tl.where(is_first, own_score, -float("inf"))  # it counts once
    # Completions of one prompt read it in the same place, so that it comes from the cache of the GPU.
    prefix = (tl.load(prefix_slots + slot) * KV_HEADS + head) * stored
    common = tl.load(prefix_lengths + slot).to(tl.int32)
    sum_of, highest, total = _attend_to_past(
        query, keys, values, own, prefix, common, start, tl.minimum(start + piece_size, position), own_score, scale,
        SIZE, SIZE_BLOCK, BLOCK, SCALED,
    )  # fmt: skip
    sum_of += tl.exp2(own_score - highest)[None, :] * value.to(tl.float32)[:, None]
    is_last = True
    if piece_size < position:
        place = sums + (piece * KV_HEADS + head) * ((SIZE_BLOCK + 2) * GROUP_BLOCK)
        tl.store(place + e[:, None] * GROUP_BLOCK + g[None, :], sum_of)
        tl.store(place + SIZE_BLOCK * GROUP_BLOCK + g, highest)
        tl.store(place + (SIZE_BLOCK + 1) * GROUP_BLOCK + g, total)
        tl.debug_barrier()  # all threads have stored
        pieces = tl.cdiv(position, piece_size)
        counter = done + row * KV_HEADS + head
        is_last = tl.atomic_add(counter, 1) == pieces - 1
        if is_last:
            tl.store(counter, 0)
            sum_of, total = _added_up(
                sums + (first_piece * KV_HEADS + head) * ((SIZE_BLOCK + 2) * GROUP_BLOCK), pieces,
                KV_HEADS, SIZE_BLOCK, GROUP_BLOCK,
            )  # fmt: skip
    if is_last:
        result = out + row.to(tl.int64) * (GROUP * KV_HEADS * SIZE) + (head * GROUP + g[None, :]) * SIZE
        tl.store(result + e[:, None], (sum_of * (value_scale / total)[None, :]).to(out.dtype.element_ty), mask=known)


@triton.jit
def _added_up(  # type: ignore[no-untyped-def]
    place, pieces, KV_HEADS: tl.constexpr, SIZE_BLOCK: tl.constexpr, GROUP_BLOCK: tl.constexpr
):
    """The weighted sum [size, group] and the sum of the weights [group] of all pieces of a context."""
    g, e = tl.arange(0, GROUP_BLOCK), tl.arange(0, SIZE_BLOCK)
    highest = tl.full((GROUP_BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP_BLOCK,), tl.float32)
    sum_of = tl.zeros((SIZE_BLOCK, GROUP_BLOCK), tl.float32)
    for _ in range(pieces):
        # From the cache that all processors share: others have written it.
        score = tl.load(place + SIZE_BLOCK * GROUP_BLOCK + g, cache_modifier=".cg")
        weight = tl.load(place + (SIZE_BLOCK + 1) * GROUP_BLOCK + g, cache_modifier=".cg")
        part = tl.load(place + e[:, None] * GROUP_BLOCK + g[None, :], cache_modifier=".cg")
        higher = tl.maximum(highest, score)
        shrink, grow = tl.exp2(highest - higher), tl.exp2(score - higher)
        total = total * shrink + weight * grow
        sum_of = sum_of * shrink[None, :] + part * grow[None, :]
        highest = higher
        place += KV_HEADS * (SIZE_BLOCK + 2) * GROUP_BLOCK
    return sum_of, total


@triton.jit
def _attend_to_past(  # type: ignore[no-untyped-def]
    query, keys, values, own, prefix, common, begin, end, highest, scale,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Values from `begin` to `end`, in the place `prefix` up to `common` and then in `own`, weighted and added up.

    `highest` is the score of the newest token, whose value is not in the sum. Returns the sum [size, group], the
    highest score of all and the sum of the weights [group], its own among them.
    """
    e, half = tl.arange(0, SIZE_BLOCK), tl.arange(0, SIZE_BLOCK // 2)
    width, half_width = e < SIZE, half < SIZE // 2
    total = tl.full(highest.shape, 1.0, tl.float32)
    if SCALED:  # numbers in even places, and those in odd ones
        even_query, odd_query = tl.split(
            tl.permute(tl.reshape(query, (SIZE_BLOCK // 2, 2, highest.shape[0])), (0, 2, 1))
        )
        even = tl.zeros((SIZE_BLOCK // 2, highest.shape[0]), tl.float32)
        odd = tl.zeros((SIZE_BLOCK // 2, highest.shape[0]), tl.float32)
        keys, values = keys.to(tl.pointer_type(tl.uint16)), values.to(tl.pointer_type(tl.uint16))
        scale *= _UNPACKED_UNIT
    else:
        sum_of = tl.zeros((SIZE_BLOCK, highest.shape[0]), tl.float32)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        inside = t < end
        place = tl.where(t < common, prefix, own) + t * SIZE
        # Positions are the rows of both products: a tensor core takes 16 rows and 8 columns, and queries are few.
        if SCALED:
            # Rows of single bytes would be read from shared memory byte by byte, rows of pairs are not.
            pairs = tl.load(keys + (place // 2)[:, None] + half[None, :], mask=half_width[None, :], other=0)
            first, second = _unpack(pairs)
            score = tl.dot(second, odd_query, tl.dot(first, even_query))
        else:
            past = tl.load(keys + place[:, None] + e[None, :], mask=width[None, :], other=0.0)
            score = tl.dot(past, query, input_precision="ieee")
        score = tl.where(inside[:, None], score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, axis=0) * scale)
        shrink, weight = tl.exp2(highest - higher), tl.exp2(score * scale - higher[None, :])
        total = total * shrink + tl.sum(weight, axis=0)
        weight = weight.to(query.dtype)
        if SCALED:
            known = half_width[:, None] & inside[None, :]
            first, second = _unpack(tl.load(values + (place // 2)[None, :] + half[:, None], mask=known, other=0))
            even = tl.dot(first, weight, even * shrink[None, :])
            odd = tl.dot(second, weight, odd * shrink[None, :])
        else:
            past = tl.load(values + place[None, :] + e[:, None], mask=width[:, None] & inside[None, :], other=0.0)
            sum_of = tl.dot(past, weight, sum_of * shrink[None, :], input_precision="ieee")
        highest = higher
    if SCALED:
        sum_of = tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 1)), (SIZE_BLOCK, highest.shape[0])) * _UNPACKED_UNIT
    return sum_of, highest, total


@triton.jit
def _rotated(numbers, partners, c, s, mask):  # type: ignore[no-untyped-def]
    """Rotary position embedding: each number with its partner in the other half."""
    left = tl.load(numbers, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(partners, mask=mask, other=0.0).to(tl.float32)
    return (left * c + right * s).to(numbers.dtype.element_ty)


@triton.jit
def _unpack(pairs):  # type: ignore[no-untyped-def]
    """The lower and the higher of two numbers in fp8 as float16, divided by _UNPACKED_UNIT.

    Sign, exponent and the rest only move to where float16 has them, two numbers at a time: a conversion takes four
    times as long. NaN becomes 480, which hides nothing: the step that stored it attended to it as NaN, and so gave a
    log-probability that is NaN.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 moved, sign, rest;
        shl.b32 moved, $2, 8;
        and.b32 sign, moved, 0x80008000;
        shr.b32 rest, moved, 1;
        and.b32 rest, rest, 0x3f803f80;
        or.b32 $0, sign, rest;
        and.b32 sign, $2, 0x80008000;
        shr.b32 rest, $2, 1;
        and.b32 rest, rest, 0x3f803f80;
        or.b32 $1, sign, rest;
        }""",
        "=&r,=&r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
    )  # fmt: skip
