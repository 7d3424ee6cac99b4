"""FlashAttention-4 as an operator: what it is given, its gradients, and that compiled code does not break at it."""

from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import pad

from tests.trainer.conftest import random_model
from tests.trainer.samples import mixed_lengths, states_by_completion
from tinyzero_flash_attention_4 import operator as fa4
from tinyzero_trainer.training import varlen_attention

LENGTHS = [3, 1, 7, 5]
SHARED = [0, 2, 3, 0]
"""Keys of each before its own."""


def plain(query, key, value, options):
    assert options["causal"]
    bounds = options["cu_seqlens_q"], options["cu_seqlens_k"]
    assert all(each.dtype == torch.int32 for each in bounds)
    assert options["max_seqlen_q"] == options["max_seqlen_k"] >= int(bounds[1].diff().max())
    left = options["window_size_left"]
    window, scale = -1 if left is None else left, options["softmax_scale"]
    return varlen_attention.one_after_another(query, key, value, *bounds, scale=scale, window=window)


def forward(query, key, value, *, return_lse, **options):
    """The package's function, in plain PyTorch; the rest of what it returns is not looked at."""
    assert return_lse
    sums = query.new_zeros(query.shape[1], query.shape[0], dtype=torch.float32)
    return plain(query, key, value, options).contiguous(), sums, None, None, None


def backward(query, key, value, attended, gradient, logsumexp, *, deterministic, **options):
    """As the paper has it (arXiv 2205.14135, appendix B.2): PyTorch does not differentiate within an operator."""
    assert not deterministic
    assert logsumexp.shape == (query.shape[1], query.shape[0])
    of_states = [torch.zeros_like(column) for column in (query, key, value)]
    shared = query.shape[1] // key.shape[1]
    scale = query.shape[2] ** -0.5 if options["softmax_scale"] is None else options["softmax_scale"]
    left = options["window_size_left"]
    bounds = (pairwise(options[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for (start, end), (first, last) in zip(*bounds, strict=True):
        positions = torch.arange(last - first)
        distance = positions[start - end :, None] - positions
        hidden = (distance < 0) | (distance > (last if left is None else left))
        for head in range(query.shape[1]):
            q, out, of_out = (column[start:end, head] for column in (query, attended, gradient))
            k, v = (column[first:last, head // shared] for column in (key, value))
            weights = (scale * q @ k.T).masked_fill(hidden, -torch.inf).softmax(-1)
            of_scores = scale * weights * (of_out @ v.T - (of_out * out).sum(-1, keepdim=True))
            of_states[0][start:end, head] += of_scores @ k
            of_states[1][first:last, head // shared] += of_scores.T @ q
            of_states[2][first:last, head // shared] += weights.T @ of_out
    return of_states


@pytest.fixture
def package(monkeypatch):
    monkeypatch.setattr(fa4, "_interface", lambda: SimpleNamespace(_flash_attn_fwd=forward, _flash_attn_bwd=backward))


def inputs(device="cpu", dtype=torch.float32, size=16):
    tokens, keys = sum(LENGTHS), sum(LENGTHS + SHARED)
    shapes = [(tokens, 4, size), (keys, 2, size), (keys, 2, size)]
    draw = torch.Generator().manual_seed(0)
    states = [torch.randn(shape, generator=draw).to(device, dtype).requires_grad_() for shape in shapes]
    lengths = torch.tensor([LENGTHS, [sum(each) for each in zip(LENGTHS, SHARED, strict=True)]], device=device)
    return states, *pad(lengths, (1, 0)).cumsum(1, dtype=torch.int32)


@pytest.mark.slow
def test_the_operator_is_whole(package):
    states, *bounds = inputs()
    torch.library.opcheck(fa4._forward, (*states, *bounds, 64, 0.3, 2))


@pytest.mark.parametrize("window", [-1, 2])
def test_its_gradients_are_right_and_compiled_code_does_not_break_at_it(window, package):
    states, *bounds = inputs()

    def attend(query, key, value):
        return fa4.flash_attention_4(2 * query, key, value, *bounds, 64, scale=None, window=window)

    def attend_plainly(query, key, value):
        return varlen_attention.one_after_another(2 * query, key, value, *bounds, scale=None, window=window)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    gradient = torch.randn_like(states[0])
    expected = torch.autograd.grad(attend_plainly(*states), states, gradient)
    for run in (attend, compiled):
        torch.testing.assert_close(torch.autograd.grad(run(*states), states, gradient), expected)


@pytest.mark.parametrize("kind", ["qwen2", "sliding"])
def test_a_model_attends_through_it(kind, package, monkeypatch):
    model, rollouts = random_model(kind), mixed_lengths()
    padded = states_by_completion(model, rollouts, "padded")
    size = model.config.hidden_size // model.config.num_attention_heads
    heads = model.config.num_attention_heads, model.config.num_key_value_heads, size
    kernel = SimpleNamespace(suits=lambda device, *asked: asked == heads, flash_attention_4=fa4.flash_attention_4)
    monkeypatch.setattr(varlen_attention, "hopper_kernel", kernel)
    monkeypatch.setattr(varlen_attention, "_has_kernel", lambda device, dtype: True)
    assert varlen_attention.use_kernel(model, torch.float32, torch.device("cpu"), or_plain=True)
    assert varlen_attention.has_kernel(model)
    assert model.config._attn_implementation == varlen_attention.HOPPER_KERNEL
    torch.testing.assert_close(states_by_completion(model, rollouts, "packed"), padded, rtol=1e-4, atol=1e-5)


def test_it_suits_no_cpu():
    assert not fa4.suits(torch.device("cpu"), 4, 2, 64)


@pytest.mark.filterwarnings("error")
def test_where_it_is_installed_and_fails_pytorchs_is_used(package, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    gpu = SimpleNamespace(type="cuda")
    on_cpu = partial(fa4._failure.__wrapped__, torch.device("cpu"))
    monkeypatch.setattr(fa4, "_failure", lambda device, *heads: on_cpu(*heads))
    assert fa4.suits(gpu, 4, 2, 64)
    monkeypatch.setattr(fa4, "_interface", lambda: SimpleNamespace(_flash_attn_fwd=forward))
    with pytest.warns(UserWarning, match=r"flash-attn-4 .*\(AttributeError: .*_flash_attn_bwd"):
        assert not fa4.suits(gpu, 4, 2, 64)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Argument aux_data:UserWarning")  # its own
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("window", [-1, 2])
def test_the_real_one_agrees_in_half_precision(window, size):
    if not fa4.suits(torch.device("cuda"), 4, 2, size):
        pytest.skip("needs Hopper and the package flash-attn-4")
    states, *bounds = inputs("cuda", torch.bfloat16, size)
    exact, *_ = inputs("cuda", torch.float32, size)
    found = fa4.flash_attention_4(*states, *bounds, 64, scale=None, window=window)
    expected = varlen_attention.one_after_another(*exact, *bounds, scale=None, window=window)
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    gradient = torch.randn_like(expected)
    of_found = torch.autograd.grad(found, states, gradient.to(torch.bfloat16))
    for one, other in zip(of_found, torch.autograd.grad(expected, exact, gradient), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)
