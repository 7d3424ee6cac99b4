"""The graph engine on a GPU: captured steps and Triton kernels, compared with plain torch."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.trainer.conftest import random_model
from tests.trainer.rollout import reference_ops
from tests.trainer.rollout.engines import flat, graph, plain
from tinyzero_trainer.config import NewModelConfig, TrainConfig
from tinyzero_trainer.models.float8_format import FP8
from tinyzero_trainer.models.loading import from_parts
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import to_fp8
from tinyzero_trainer.rollout.torch.cuda_graph.model import LayerCache
from tinyzero_trainer.rollout.torch.sampling import streams
from tinyzero_trainer.types import Generation

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
ENDS = range(0, 97, 31)
PROMPTS = [[(7 * place + length) % 97 for place in range(length)] for length in (1, 3, 9, 30, 2, 17)]
SAMPLED = SamplingParams(90, logprobs=True)


def assert_almost_all_same(ours: list[list[Generation]], theirs: list[list[Generation]]) -> None:
    """Sums in another order may change a token, and with it the rest of that completion."""
    pairs = list(zip(flat(ours), flat(theirs), strict=True))
    same = [(left, right) for left, right in pairs if left.token_ids == right.token_ids]
    assert len(same) >= 0.97 * len(pairs)
    for left, right in same:
        assert left.finished == right.finished
        assert left.logprobs == (None if right.logprobs is None else pytest.approx(right.logprobs, abs=2e-3))


def begin(state: BatchState, prompt_lengths: Sequence[int], params: SamplingParams, seed: int) -> None:
    """Let sequences with prompts of these lengths be in the first slots."""
    rows = len(prompt_lengths)
    state.clear()
    state.positions[:rows] = torch.tensor(prompt_lengths, device=GPU) - 1  # sampling advances it
    state.streams[:rows] = streams(seed, torch.arange(rows, device=GPU))
    state.lengths[:rows] = params.max_tokens
    state.set_params(params)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(
    "params",
    [
        SAMPLED,
        SamplingParams(90, 0.0, logprobs=True),
        SamplingParams(60, 1.3, top_p=0.8, logprobs=True),
        SamplingParams(60, 0.7, top_k=9),
        SamplingParams(60, ignore_eos=True),
        SamplingParams(1),
    ],
    ids=str,
)
def test_completions_are_those_of_the_torch_engine(kind: str, params: SamplingParams) -> None:
    model = random_model(kind).to(GPU)
    ours = graph(model, ENDS).generate(PROMPTS, 32, params, seed=1)
    assert_almost_all_same(ours, plain(model, ENDS, max_num_seqs=4096).generate(PROMPTS, 32, params, seed=1))


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 6, 64), (14, 2, 64), (7, 1, 128), (4, 4, 96), (4, 2, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
@pytest.mark.parametrize("least", [32, 1024], ids=["in pieces", "whole"])
def test_attention_kernel(
    heads: int, kv_heads: int, size: int, dtype: torch.dtype, fp8: bool, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

    monkeypatch.setattr("tinyzero_trainer.rollout.torch.cuda_graph.attention_triton.SMALLEST_PIECE", least)
    torch.manual_seed(0)
    positions, length = [0, 1, 63, 64, 65, 130, 255], 256
    state = BatchState(len(positions), 4, ENDS, GPU)
    begin(state, [position + 1 for position in positions], SAMPLED, 0)
    rows = len(positions)
    state.set_rows(torch.tensor([6, 1, 3, 0, 5, 4, 2]), rows)
    fused = torch.randn(rows, (heads + 2 * kv_heads) * size, device=GPU, dtype=dtype)
    past = [torch.randn(rows + 1, kv_heads, length, size, device=GPU, dtype=dtype) for _ in range(2)]
    for states in past:
        states[5:7, :, :60] = states[4, :, :60]
    cache = LayerCache(*past)
    if fp8:
        scales = [reference_ops.fp8_scales(states[:, :, :60]) for states in past]
        numbers = [to_fp8(states, scale[..., None, None]) for states, scale in zip(past, scales, strict=True)]
        cache = LayerCache(*numbers, *scales)
    copy = LayerCache(*(part if part is None else part.clone() for part in cache))
    # Two sequences begin like another one: what they have in common is not read in their own slots.
    state.share_prefixes(*(torch.tensor(column, device=GPU) for column in ([5, 6], [4, 4], [60, 60])))
    for part in copy[:2]:
        part[5:7, :, :60] = 1.0
    angles = 6 * torch.rand(length, size // 2, device=GPU)
    tables = angles.cos(), angles.sin()
    expected = reference_ops.attend(fused, tables, state, rows, cache, heads)
    pieces = triton_kernels.split(state, rows, kv_heads, length)
    assert (int(pieces.table[-1]) > 2 * rows) == (least == 32)
    for _ in range(2):  # as in two layers
        found = triton_kernels.attend(fused, tables, state, rows, copy, heads, pieces)
    near = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 4e-2, "rtol": 2e-2}
    if fp8:  # where sums in another order round to the next number in fp8
        near = {"atol": 0.1, "rtol": 1 / 8}
    torch.testing.assert_close(found, expected, **near)
    slots = torch.arange(5, device=GPU)
    torch.testing.assert_close(*(reference_ops.read(each, slots, dtype) for each in (copy, cache)), **near)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(14, 2, 64), (7, 1, 128), (4, 4, 96), (4, 2, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
def test_contexts_are_stored(heads: int, kv_heads: int, size: int, dtype: torch.dtype, fp8: bool) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

    torch.manual_seed(0)
    fused = torch.randn(3, 70, heads + 2 * kv_heads, size, device=GPU, dtype=dtype)
    fused[1, 9:] *= 100  # padding, which scales must not depend on
    slots, rows, lengths = (
        torch.tensor(column, device=GPU) for column in ([5, 2, 9, 0, 1, 7, 8], [0, 0, 0, 1, 1, 2, 2], [70, 9, 33])
    )
    angles = 6 * torch.rand(128, size // 2, device=GPU)
    results = []
    for ops in (reference_ops, triton_kernels):
        states = [torch.zeros(11, kv_heads, 128, size, device=GPU, dtype=dtype) for _ in range(2)]
        cache = LayerCache(*states)
        if fp8:
            numbers = [part.to(FP8) for part in states]
            cache = LayerCache(*numbers, *(torch.zeros(11, kv_heads, device=GPU) for _ in range(2)))
        copy = fused.clone()
        ops.store_contexts(copy, (angles.cos(), angles.sin()), cache, slots, rows, lengths)
        results.append([copy, *(part.float() for part in cache if part is not None)])
    for expected, found in zip(*results, strict=True):  # rotations may be rounded to the next number
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1 / 7 if fp8 else 1e-2)
        assert torch.isclose(found, expected, atol=1e-5, rtol=1e-5).float().mean() > 0.99


@pytest.mark.parametrize(("rows", "longest"), [(1, 1000), (7, 1), (100, 100), (1000, 1000), (3000, 1000)])
def test_pieces_are_all_of_each_context(rows: int, longest: int) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

    state = BatchState(rows, 4, ENDS, GPU)
    positions = torch.randint(longest // 2, longest, (rows,))
    positions[max(1, rows // 10) :] //= 10  # few are long
    begin(state, (positions + 1).tolist(), SAMPLED, 0)
    slots = torch.randperm(rows)
    state.set_rows(slots, rows)
    pieces = triton_kernels.split(state, rows, 2, 1024)
    *table, count = pieces.table.tolist()
    assert rows <= count <= pieces.limit
    assert (count > rows) == (longest == 1000)
    parts: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    columns = (table[column * pieces.limit :][:count] for column in range(6))
    for row, slot, position, start, size, first in zip(*columns, strict=True):
        assert slot == slots[row]
        assert position == positions[slot]
        assert first + len(parts[row]) < count
        parts[row].append((start, min(start + size, position)))
    for row, found in enumerate(parts):
        ends = [0, *(end for _, end in found)]
        assert [start for start, _ in found] == ends[:-1]
        assert ends[-1] == positions[slots[row]]
    assert not pieces.done.any()


@pytest.mark.parametrize("width", [96, 896, 4864, 18_944])
def test_kernels_that_round_to_fp8(width: int) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

    torch.manual_seed(0)
    gate_up = (torch.logspace(-3, 3, 9, device=GPU)[:, None] * torch.randn(9, 2 * width, device=GPU)).bfloat16()
    gate_up[0] = 0
    near = {"atol": 0.0, "rtol": 1 / 7}  # a sum in another order may round to the next number
    (found, scales), (expected, exact) = triton_kernels.gated_fp8(gate_up), reference_ops.gated_fp8(gate_up)
    torch.testing.assert_close(scales, exact, atol=0.0, rtol=1e-5)
    torch.testing.assert_close(found.float(), expected.float(), **near)
    assert (found.float() == expected.float()).float().mean() > 0.99
    hidden = torch.randn(9, width, device=GPU, dtype=torch.bfloat16)
    hidden[0, 1:] = 0
    parts = torch.randn(3, *hidden.shape, device=GPU)
    for more in ((), (torch.randn_like(hidden),), (torch.randn_like(hidden), scales), (parts, scales)):
        copies = hidden.clone(), hidden.clone()
        found, expected = (
            ops.normalize_fp8(copy, 1e-6, *more).float()
            for ops, copy in zip((triton_kernels, reference_ops), copies, strict=True)
        )
        torch.testing.assert_close(*copies, atol=0.0, rtol=1e-2)
        torch.testing.assert_close(found, expected, **near)
        assert (found == expected).float().mean() > 0.99
        assert found.isfinite().all()
    for broken in (torch.nan, torch.inf):
        hidden[3, 5] = gate_up[3, 5] = broken
        assert triton_kernels.normalize_fp8(hidden, 1e-6)[3].float().isnan().any()
        numbers, scales = triton_kernels.gated_fp8(gate_up)
        assert (numbers[3].float() * scales[3]).isnan().any()


@pytest.mark.parametrize(
    ("rows", "width", "depth"), [(1, 64, 128), (20, 128, 384), (64, 1152, 896), (70, 896, 4864), (256, 896, 896)]
)
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
def test_products_of_few_rows(
    rows: int, width: int, depth: int, in_parts: bool, fp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import products_triton

    monkeypatch.setattr(products_triton, "suits", lambda *_: True)
    torch.manual_seed(0)
    states, weight = (torch.randn(count, depth, device=GPU) for count in (rows, width))
    states, weight = (each.to(FP8 if fp8 else torch.bfloat16) for each in (states, weight))
    scale = torch.tensor(0.3, device=GPU) if fp8 else None
    for bias in (None, torch.randn(width, device=GPU).bfloat16()):
        found = products_triton.product(states, weight, scale, bias, torch.bfloat16, in_parts=in_parts)
        assert found.shape[-2:] == (rows, width)
        assert found.dtype == (torch.bfloat16 if found.dim() == 2 else torch.float32)
        assert found.dim() == 2 or in_parts
        exact = states.float() @ weight.float().T * (0.3 if fp8 else 1.0) + (0.0 if bias is None else bias.float())
        found = found.float().view(-1, rows, width).sum(dim=0)
        torch.testing.assert_close(found, exact, atol=3e-3 * depth**0.5, rtol=1e-2)
    states[rows - 1, 0] = torch.nan
    found = products_triton.product(states, weight, scale, None, torch.bfloat16, in_parts=in_parts)
    found = found.float().view(-1, rows, width).sum(dim=0)
    assert found[rows - 1].isnan().all()
    assert not found[: rows - 1].isnan().any()


@pytest.mark.parametrize("vocabulary", [50, 1252, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sampling_kernel(vocabulary: int, dtype: torch.dtype) -> None:
    from tinyzero_trainer.rollout.torch.cuda_graph import triton_kernels

    rows, params = 512, SamplingParams(8, 0.8)
    logits = (3 * torch.randn(rows, vocabulary, device=GPU)).to(dtype)
    logits[0, 1:] = -torch.inf
    logits[1, : vocabulary - 1] = -torch.inf
    states = [BatchState(rows, 8, {1, 2, 3}, GPU) for _ in range(2)]
    for state in states:
        begin(state, [5] * rows, params, 9)
        state.set_rows(torch.arange(rows - 4), rows)
    for _ in range(8):
        states[0].sample(logits, rows, params)
        triton_kernels.sample(logits, states[1], rows, ends=True)
    expected, found = ({**vars(state)} for state in states)
    real = rows - 4
    same = expected["tokens"][:, :real] == found["tokens"][:, :real]
    # Sums in float32 differ by 1e-8, and so do the boundaries between tokens: of 4,064 draws, some fall between them.
    assert same.float().mean() > 1 - max(1e-3, 2e-8 * vocabulary)
    error = (expected["logprobs"] - found["logprobs"])[:, :real][same].abs()
    assert error.max() < 1e-4
    for name in ("counts", "positions"):
        assert torch.equal(expected[name], found[name])
    assert (found["tokens"][:, 0] == 0).all()
    assert (found["tokens"][:, 1] == vocabulary - 1).all()


@pytest.mark.parametrize(
    ("fp8", "most"),
    [({}, 0.02), ({"fp8_cache": True}, 0.05), ({"fp8_products": True}, 0.03)],
    ids=str,
)
def test_logprobs_are_close_to_the_policys(fp8: dict[str, bool], most: float) -> None:
    tokenizer = build_tokenizer()
    sizes = NewModelConfig(hidden_size=128, layers=3, head_size=32, mlp_size=256)
    model: Any = build_model(sizes, tokenizer, 0).to(GPU)
    model.resize_token_embeddings(1264)  # so that products in fp8 include the head's
    rollouts = graph(model, ends={1}, dtype=torch.bfloat16, **fp8).generate(
        [[5, 6, 7]], 64, SamplingParams(64, logprobs=True), seed=0
    )
    errors = []
    for rollout in flat(rollouts):
        sequence = torch.tensor([[5, 6, 7, *rollout.token_ids]], device=GPU)
        with torch.no_grad():
            logprobs = model(sequence).logits[0, 2:-1].log_softmax(dim=-1)
        errors.append(logprobs.gather(1, sequence[0, 3:, None])[:, 0].cpu() - torch.tensor(rollout.logprobs))
    error = torch.cat(errors)
    assert error.abs().mean() < most
    assert abs(error.mean()) < 0.005


def test_weights_are_taken_over_without_new_graphs() -> None:
    model = random_model("qwen2").to(GPU)
    engine = graph(model, ENDS)
    before = engine.generate(PROMPTS, 32, SAMPLED, seed=2)
    keys = set(engine._runner.steps)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.load_weights()
    after = engine.generate(PROMPTS, 32, SAMPLED, seed=2)
    assert [rollout.token_ids for rollout in flat(after)] != [rollout.token_ids for rollout in flat(before)]
    assert_almost_all_same(after, plain(model, ENDS, max_num_seqs=4096).generate(PROMPTS, 32, SAMPLED, seed=2))
    assert keys <= set(engine._runner.steps)


def test_the_same_again_in_larger_and_smaller_batches_and_after_sleep() -> None:
    model = random_model("qwen3").to(GPU)
    engine = graph(model, ENDS, keep_memory=False)
    first = engine.generate(PROMPTS, 32, SAMPLED, seed=3)
    engine.generate(PROMPTS, 2, SamplingParams(5), seed=3)
    engine.generate(PROMPTS, 100, SamplingParams(120), seed=3)
    assert_almost_all_same(engine.generate(PROMPTS, 32, SAMPLED, seed=3), first)
    used = torch.cuda.memory_reserved()
    engine.sleep()
    assert torch.cuda.memory_reserved() < used
    assert_almost_all_same(engine.generate(PROMPTS, 32, SAMPLED, seed=3), first)


def test_memory_is_as_estimated() -> None:
    tokenizer = build_tokenizer()
    model = build_model(NewModelConfig(hidden_size=256, layers=4, head_size=64, mlp_size=512), tokenizer, 0).to(GPU)
    engine = graph(model, ENDS, dtype=torch.bfloat16)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    engine.generate([[1, 2, 3]] * 64, 32, SamplingParams(200), seed=0)
    expected = 2048 * engine._sequence_bytes(256, 200) + engine._model.prefill_bytes(192)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * expected


def test_this_is_the_engine_of_a_run_on_a_gpu() -> None:
    tokenizer = build_tokenizer()
    model = build_model(NewModelConfig(), tokenizer, 0).to(GPU)
    engine = build_engine(TrainConfig(), from_parts("toy", model, tokenizer))
    assert isinstance(engine, GraphEngine)
    assert len(engine.generate([[5, 6]], 4, SamplingParams(20), seed=0)[0]) == 4
