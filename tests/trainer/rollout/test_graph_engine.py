"""The graph engine on the CPU, its steps called rather than replayed, compared with `TorchEngine`."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer.conftest import random_model
from tests.trainer.rollout import reference_ops
from tests.trainer.rollout.engines import flat, graph, plain
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch import cuda_graph
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph import engine as graph_engine
from tinyzero_trainer.rollout.torch.cuda_graph import fp8_products
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import Fp8Weights
from tinyzero_trainer.rollout.torch.cuda_graph.kv_capacity import FreeMemory, KvCacheError
from tinyzero_trainer.types import Generation

PROMPTS = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9], [40, 41], [90, 3, 17, 17]]
ALL = SamplingParams(24, logprobs=True)


def assert_same(ours: list[list[Generation]], theirs: list[list[Generation]]) -> None:
    assert [len(group) for group in ours] == [len(group) for group in theirs]
    for left, right in zip(flat(ours), flat(theirs), strict=True):
        assert (left.token_ids, left.finished) == (right.token_ids, right.finished)
        assert left.logprobs == (None if right.logprobs is None else pytest.approx(right.logprobs, abs=1e-5))


def sizes_of(model: Any) -> tuple[int, int]:
    """Bytes of a sequence of 64 positions, 24 of them sampled, and of the prefill."""
    engine = graph(model)
    engine._sampling = engine._sampling_bytes(ALL)
    return engine._sequence_bytes(64, 24), engine._model.prefill_bytes(max(map(len, PROMPTS)) * len(PROMPTS))


@pytest.mark.parametrize(("tokens", "rows"), [(20, 99), (2, 99), (2**15, 3), (2**15, 5), (2**15, 99)])
@pytest.mark.parametrize("at_a_time", [7, 100])
def test_contexts_are_read_in_parts(tokens: int, rows: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may begin within a group."""
    model, prompts = random_model("qwen2"), [*PROMPTS[::-1], PROMPTS[1]]
    monkeypatch.setattr(graph_engine, "PREFILL_TOKENS", tokens)
    monkeypatch.setattr(graph_engine, "PREFILL_LOGITS", rows * 97)
    engine = graph(model, max_num_seqs=at_a_time)
    prefill = engine._model.prefill

    def read(padded: torch.Tensor, *others: Any) -> torch.Tensor:
        logits = prefill(padded, *others)
        assert len(padded) == 1 or padded.numel() <= tokens
        assert len(logits) <= rows
        return logits

    monkeypatch.setattr(engine._model, "prefill", read)
    ours = engine.generate(prompts, 4, ALL, seed=3)
    assert_same(ours, plain(model).generate(prompts, 4, ALL, seed=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        ALL,
        SamplingParams(24, 0.0, logprobs=True),
        SamplingParams(24, 1.3, top_p=0.8, logprobs=True),
        SamplingParams(24, top_k=5),
        SamplingParams(24, top_k=9, top_p=0.7, logprobs=True),
        SamplingParams(24, ignore_eos=True, logprobs=True),
        SamplingParams(1, logprobs=True),
        SamplingParams(2),
    ],
    ids=str,
)
def test_completions_are_those_of_the_torch_engine(any_model: Any, params: SamplingParams) -> None:
    ours, theirs = (engine(any_model).generate(PROMPTS, 4, params, seed=1) for engine in (graph, plain))
    assert_same(ours, theirs)


def test_biases_everywhere_and_an_untied_head() -> None:
    torch.manual_seed(1)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": False}
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=256)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    assert model.model.layers[0].self_attn.o_proj.bias.abs().sum() > 0
    assert_same(graph(model).generate(PROMPTS, 4, ALL, seed=2), plain(model).generate(PROMPTS, 4, ALL, seed=2))


@pytest.mark.parametrize("at_a_time", [3, 7, 100])
def test_sequences_that_share_a_prefix_may_read_it_in_its_slot(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does: here each slot's own copy is replaced, also after slots were refilled."""
    attend, replaced = reference_ops.attend, 0

    def from_prefix(fused: Any, tables: Any, state: BatchState, rows: int, cache: Any, *others: Any) -> Any:
        nonlocal replaced
        for slot in set(state.slot_ids[:rows].tolist()):
            first, length = int(state.prefix_slots[slot]), int(state.prefix_lengths[slot])
            replaced += first != slot
            for states in cache[:2]:
                states[slot, :, :length] = states[first, :, :length].clone()
        return attend(fused, tables, state, rows, cache, *others)

    monkeypatch.setattr(reference_ops, "attend", from_prefix)
    model = random_model("qwen2")
    ours = graph(model, max_num_seqs=at_a_time).generate([*PROMPTS, PROMPTS[1]], 4, ALL, seed=3)
    assert_same(ours, plain(model).generate([*PROMPTS, PROMPTS[1]], 4, ALL, seed=3))
    assert replaced > 20


@pytest.mark.slow
def test_weights_are_taken_over_when_they_are_loaded_and_not_before(any_model: Any) -> None:
    engine = graph(any_model)
    before = engine.generate(PROMPTS, 4, ALL, seed=6)
    with torch.no_grad():
        for parameter in any_model.parameters():
            parameter.mul_(1.1)
    assert_same(engine.generate(PROMPTS, 4, ALL, seed=6), before)
    addresses = {name: tensor.data_ptr() for name, tensor in engine._weights.items()}
    engine.load_weights()
    assert {name: tensor.data_ptr() for name, tensor in engine._weights.items()} == addresses
    after = engine.generate(PROMPTS, 4, ALL, seed=6)
    assert [rollout.token_ids for rollout in flat(after)] != [rollout.token_ids for rollout in flat(before)]
    assert_same(after, plain(any_model).generate(PROMPTS, 4, ALL, seed=6))


def test_a_cache_in_fp8_takes_a_quarter_of_float32s_memory_and_changes_log_probabilities_a_little(
    any_model: Any,
) -> None:
    exact, small = (graph(any_model, fp8_cache=fp8) for fp8 in (False, True))
    assert small._model.cache_bytes(64) / exact._model.cache_bytes(64) == 1 / 4  # exact: float32
    params = SamplingParams(2, 0.0, logprobs=True)  # the second token's log-probability comes from the cache
    errors = [
        left.logprobs[1] - right.logprobs[1]
        for left, right in zip(
            *(flat(engine.generate(PROMPTS, 1, params, seed=0)) for engine in (exact, small)), strict=True
        )
        if left.token_ids == right.token_ids and len(left.token_ids) == 2
    ]
    assert len(errors) >= 2
    assert 0 < max(map(abs, errors)) < 0.1


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("vocabulary", [96, 97])
def test_products_in_fp8_change_log_probabilities_a_little_and_follow_the_weights(kind: str, vocabulary: int) -> None:
    model = random_model(kind, vocab_size=vocabulary)
    engines = [graph(model, dtype=torch.bfloat16, fp8_products=fp8) for fp8 in (False, True)]
    addresses = {name: tensor.data_ptr() for name, tensor in engines[1]._weights.items()}
    for _ in range(2):
        found = [flat(engine.generate(PROMPTS, 32, SamplingParams(2, logprobs=True), seed=0)) for engine in engines]
        pairs = [
            (left.logprobs[1], right.logprobs[1])
            for left, right in zip(*found, strict=True)
            if left.token_ids == right.token_ids and len(left.token_ids) == 2
        ]
        assert len(pairs) > 50
        exact, rounded = torch.tensor(pairs).unbind(1)
        assert 0 < (exact - rounded).abs().mean() < 0.25 * exact.std()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        for engine in engines:
            engine.load_weights()
    assert addresses == {name: tensor.data_ptr() for name, tensor in engines[1]._weights.items()}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_without_rounding_products_in_fp8_are_the_models(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(left: Any, right: Any, left_scale: Any, right_scale: Any, *, bias: Any, **_: Any) -> torch.Tensor:
        found = left @ right * left_scale * right_scale
        return found if bias is None else found + bias

    for module in (reference_ops, fp8_products):
        monkeypatch.setattr(module, "to_fp8", lambda states, scales: states.float() / scales)
    monkeypatch.setattr(fp8_products, "FP8", torch.float32)
    monkeypatch.setattr(torch, "_scaled_mm", product)
    model = random_model(kind, vocab_size=96)
    ours = graph(model, fp8_products=True).generate(PROMPTS, 4, ALL, seed=4)
    assert_same(ours, graph(model).generate(PROMPTS, 4, ALL, seed=4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"model_type": "olmo2"}, "it normalizes a layer's output, not its input"),
        ({"hidden_size": 72, "head_dim": 16}, "its sizes are no multiples of 16"),
        ({"num_attention_heads": 3, "head_dim": 8}, "its sizes are no multiples of 16"),
    ],
)
def test_models_without_products_in_fp8(changes: dict[str, Any], reason: str | None) -> None:
    sizes = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    assert Fp8Weights.misfit(SimpleNamespace(**sizes | changes)) == reason


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "unused", "margin", "kept"),
    [(True, None, 0, True), (False, None, 0, False), (True, 60, 0, True), (True, 60, 10, False), (True, 5, 0, False)],
)
def test_sleep_keeps_memory_only_if_it_may_and_a_margin_stays_free(keep, unused, margin, kept):
    model = random_model("qwen2")
    size, prefill = sizes_of(model)
    memory = None if unused is None else lambda: FreeMemory(unused * size + prefill, 15 * size, margin * size)
    engine = graph(model, keep_memory=keep, memory=memory)
    before = engine.generate(PROMPTS, 10, ALL, seed=7)
    engine.sleep()
    assert (engine._reserved, bool(engine._weights)) == (kept, kept)
    assert_same(engine.generate(PROMPTS, 10, ALL, seed=7), before)


@pytest.mark.slow
def test_with_little_memory_batches_are_smaller_and_the_user_is_told_once() -> None:
    model, notes = random_model("qwen2"), []
    size, prefill = sizes_of(model)
    engine = graph(model, memory=lambda: FreeMemory(5 * size + prefill, 15 * size), report=notes.append)
    ours = engine.generate(PROMPTS, 10, ALL, seed=8)
    state = engine._state
    assert state.slots == 18  # of 20 that would fit to the last byte
    assert_same(ours, plain(model).generate(PROMPTS, 10, ALL, seed=8))
    engine.generate(PROMPTS, 10, ALL, seed=8)
    assert engine._state is state  # rather than to capture every graph again for as few
    assert notes == ["the GPU has room for 18 sequences of 64 tokens at a time; 50 are wanted"]


def test_too_little_memory_for_a_few_sequences_is_an_error() -> None:
    model = random_model("qwen2")
    size, prefill = sizes_of(model)
    engine = graph(model, memory=lambda: FreeMemory(4 * size + prefill, 4 * size))
    with pytest.raises(KvCacheError, match=r"expected room for 8\)"):
        engine.generate(PROMPTS, 10, ALL, seed=8)
    assert len(engine.generate(PROMPTS[:3], 2, ALL, seed=8)) == 3  # there is room for six


# ---- kernels and graphs ----------------------------------------------------------------------------------------------


def test_kernels_that_do_not_run_are_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def store_contexts(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC.")

    kernels = SimpleNamespace(store_contexts=store_contexts)
    monkeypatch.setattr(cuda_graph, "triton_kernels", kernels, raising=False)
    with pytest.raises(TinyZeroError, match=r"do not run here \(RuntimeError: Failed to find C compiler\.\); install"):
        graph(random_model("llama"), kernels=None)
