"""Products in float8, the gate between them and the gradients of both, against the same in float32.

On a GPU: `pytest -m gpu tests/trainer/models/test_float8.py`, a quarter of a minute.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tinyzero_trainer.models.float8 import (
    Float8Linear,
    Float8Mlp,
    Rounded,
    gate,
    gate_backward,
    product,
    to_float8,
)
from tinyzero_trainer.models.float8_format import FP8, FP8_MAX
from tinyzero_trainer.models.fused_logprobs import _gradient, _scales, _statistics, token_statistics

WIDTHS = [64, 4864, 8960, 18944]
"""The third and fourth of models with 1.5B and 7B parameters."""

gpu = pytest.mark.gpu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device("cpu") if request.param == "cpu" else request.getfixturevalue("float8_gpu")


@pytest.fixture
def dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def exact(rounded: Rounded) -> Tensor:
    return rounded[0].float() * rounded[1]


def error(found: Tensor, expected: Tensor) -> float:
    """Relative to the norm."""
    expected = expected.float().cpu()
    return ((found.float().cpu() - expected).norm() / expected.norm()).item()


@given(st.integers(1, 9), st.integers(1, 40), st.floats(-20, 20), st.integers(0, 999))
def test_a_row_is_rounded_by_itself_and_to_three_bits(rows: int, columns: int, size: float, seed: int) -> None:
    numbers = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0**size
    rounded = to_float8(numbers)
    assert to_float8(numbers[:1])[0].float().equal(rounded[0][:1].float())
    largest = numbers.abs().amax(1, keepdim=True)
    # Half of the last of three bits, and of numbers under 2^-6 of the scale half of 2^-9.
    bound = torch.maximum(numbers.abs() * 2**-4, largest / 448 * 2**-10) * (1 + 1e-5)
    assert ((exact(rounded) - numbers).abs() <= bound).all()


def test_a_row_of_zeros_stays_zero_and_what_is_not_finite_becomes_nan(device: torch.device) -> None:
    numbers = torch.tensor([[0.0, 0.0], [torch.inf, 1.0], [torch.nan, 1.0]], device=device)
    assert exact(to_float8(numbers)).isnan().any(1).tolist() == [False, True, True]
    ones = torch.ones(3, 4, device=device)
    for rounded in (gate(torch.cat([numbers, numbers], 1)), gate_backward(numbers, ones)[2:]):
        found = exact((rounded[0], rounded[1]))
        assert found.isnan().any(1).tolist() == [False, True, True]
        assert not found[0].any()


def gated_mlp(hidden: int, width: int) -> nn.Module:
    mlp = nn.Module()
    for name, sizes in (("gate_proj", (hidden, width)), ("up_proj", (hidden, width)), ("down_proj", (width, hidden))):
        setattr(mlp, name, nn.Linear(*sizes, bias=False))
    mlp.__class__ = Float8Mlp
    return mlp


@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
def test_an_mlp_and_its_gradients_are_near_those_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    """On a GPU in compiled code, as in an update."""
    torch.manual_seed(0)
    mlp = gated_mlp(256, 1024).to(device)
    states, upstream = torch.randn(2, 1, 77, 256, device=device)
    inputs = [states, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight]
    inputs = [one.detach().clone().requires_grad_() for one in inputs]
    plain = F.linear(F.silu(F.linear(inputs[0], inputs[1])) * F.linear(inputs[0], inputs[2]), inputs[3])
    expected = torch.autograd.grad(plain, inputs, upstream)
    states = states.to(dtype).requires_grad_()
    mlp.to(dtype)
    result = (torch.compile(mlp, dynamic=True) if device.type == "cuda" else mlp)(states)
    found = torch.autograd.grad(result, [states, *mlp.parameters()], upstream.to(dtype))
    for ours, theirs in zip((result.detach(), *found), (plain.detach(), *expected), strict=True):
        assert 1e-3 < error(ours, theirs) < 0.1


def test_a_linear_layer_with_a_bias_and_its_gradients() -> None:
    torch.manual_seed(0)
    linear, states, upstream = nn.Linear(64, 32), torch.randn(3, 5, 64, requires_grad=True), torch.randn(3, 5, 32)
    plain = linear(states)
    inputs = [states, linear.weight, linear.bias]
    expected = torch.autograd.grad(plain, inputs, upstream)
    linear.__class__ = Float8Linear
    result = linear(states)
    of_states, of_weight, of_bias = torch.autograd.grad(result, inputs, upstream)
    for ours, theirs in ((result.detach(), plain.detach()), (of_states, expected[0])):
        assert 1e-3 < error(ours, theirs) < 0.08
    torch.testing.assert_close((of_weight, of_bias), expected[1:])  # not in float8


def test_gradients_of_an_mlps_weights_are_products_of_numbers_that_are_not_rounded() -> None:
    torch.manual_seed(0)
    mlp, states, upstream = gated_mlp(64, 128), torch.randn(7, 64), torch.randn(7, 64)
    weights = [mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight]
    found = torch.autograd.grad(mlp(states), weights, upstream)
    gate_up = product(to_float8(states), to_float8(torch.cat(weights[:2])), states.dtype)
    of_gated = product(to_float8(upstream), to_float8(weights[2].t()), states.dtype)
    gated, of_gate_up, *_ = gate_backward(of_gated, gate_up.detach())
    expected = *(of_gate_up.t() @ states).chunk(2), upstream.t() @ gated
    torch.testing.assert_close(found, expected)


def logprob_gradients(states: Tensor, weight: Tensor, targets: Tensor, **options: object) -> list[Tensor]:
    """Log-probabilities and entropies, and the gradients of a random sum of both."""
    generator = torch.Generator().manual_seed(1)
    logprobs, entropies = token_statistics(states, weight, targets, temperature=0.7, **options)
    of_logprobs, of_entropies = torch.randn(2, len(states), generator=generator).to(states.device)
    total = (of_logprobs * logprobs + 0.1 * of_entropies * entropies).sum()
    return [logprobs.detach(), entropies.detach(), *torch.autograd.grad(total, [states, weight])]


@pytest.mark.parametrize("recompute", [False, True])
def test_logprobs_and_their_gradients_are_near_those_in_float32(
    device: torch.device, dtype: torch.dtype, recompute: bool
) -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(50, 64, device=device).to(dtype), (0.2 * torch.randn(96, 64, device=device)).to(dtype)
    targets = torch.randint(0, 96, (50,), device=device)
    expected = logprob_gradients(states.float().requires_grad_(), weight.float().requires_grad_(), targets)
    given = states.requires_grad_(), weight.requires_grad_()
    found = logprob_gradients(*given, targets, float8=True, recompute=recompute, chunk_elements=96 * 20)
    for ours, theirs in zip(found, expected, strict=True):
        assert 1e-3 < error(ours, theirs) < 0.08


@given(
    st.sampled_from([0.1, 3.0, 30.0]),
    st.sampled_from([0.0, 1.0, -5.0]),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(),
)
def test_gradients_of_logits_are_rounded_by_their_size(
    sharpness: float, bonus: float, temperature: float, seed: int
) -> None:
    """No larger than float8 can be, and where one token has nearly all probability not much smaller either."""
    generator = torch.Generator().manual_seed(seed % 2**32)
    logits, targets = (
        sharpness * torch.randn(9, 50, generator=generator),
        torch.randint(0, 50, (9,), generator=generator),
    )
    logits[:5].scatter_(1, targets[:5, None], 10 * temperature + 3 * sharpness)
    columns = _statistics(logits, None, targets, temperature)
    upstream = [torch.randn(9, generator=generator) * (torch.arange(9) % 3 > 0), torch.full((9,), bonus)]
    scales = _scales(*upstream, columns, temperature)
    rounded = torch.empty_like(logits, dtype=FP8), scales
    found = _gradient(logits, None, targets, columns, upstream, temperature, rounded)
    largest = found.abs().amax(1, keepdim=True)
    assert (largest <= FP8_MAX * scales * (1 + 1e-4)).all()
    assert not exact(rounded).isnan().any()
    if not bonus:
        allowed = 1.001 * largest + 1.1e-4 * upstream[0].abs()[:, None] / temperature
        assert (FP8_MAX * scales <= allowed + 1e-20).all()
    assert ((exact(rounded) - found).abs() <= torch.maximum(found.abs() * 2**-4, scales * 2**-10) * (1 + 1e-4)).all()


def test_the_gradient_with_a_reference_is_not_in_float8() -> None:
    torch.manual_seed(0)
    states, weight, anchors = torch.randn(9, 64, requires_grad=True), torch.randn(48, 64), torch.randn(9, 64)
    given = states, weight, torch.zeros(9, dtype=torch.long), (anchors, weight)
    found = token_statistics(*given, temperature=0.7, float8=True)
    (of_states,) = torch.autograd.grad(sum(one.sum() for one in found), [states])
    own, other = (product(to_float8(one.detach()), to_float8(weight), weight.dtype) for one in (states, anchors))
    columns = _statistics(own, other, given[2], 0.7)
    torch.testing.assert_close(torch.stack(found).detach(), columns[[0, 1, 3]])
    torch.testing.assert_close(of_states, _gradient(own, other, given[2], columns, [torch.ones(9)] * 3, 0.7) @ weight)


def test_the_divergence_to_an_equal_reference_is_zero_in_float8_too(device: torch.device, dtype: torch.dtype) -> None:
    states, weight = (torch.randn(rows, 64, device=device).to(dtype) for rows in (9, 48))
    given = states.requires_grad_(), weight, torch.zeros(9, dtype=torch.long, device=device)
    *_, divergence = token_statistics(*given, (states.detach(), weight), temperature=0.7, float8=True)
    divergence.sum().backward()
    assert divergence.tolist() == [0.0] * 9
    assert states.grad is not None
    assert not states.grad.any()


@gpu
@pytest.mark.parametrize("rows", [1, 2, 5, 17, 100, 7067])
@pytest.mark.parametrize(("inner", "columns"), [(896, 9728), (151936, 896)])
def test_a_product_of_any_number_of_rows(rows: int, inner: int, columns: int, float8_gpu: torch.device) -> None:
    left, right = (to_float8(torch.randn(count, inner, device=float8_gpu).bfloat16()) for count in (rows, columns))
    # Hopper's tensor cores add up with fewer bits than float32, which shows in long sums.
    assert error(product(left, right, torch.bfloat16), exact(left) @ exact(right).t()) < 0.015


@gpu
@pytest.mark.parametrize(("width", "rows"), [*((width, 33) for width in (16, 100, *WIDTHS)), (4864, 4097)])
def test_the_gates_kernels_compute_what_pytorch_does(width: int, rows: int, float8_gpu: torch.device) -> None:
    gate_up, gradient = torch.randn(rows, 2 * width).bfloat16(), torch.randn(rows, width).bfloat16()
    found, expected = gate(gate_up.to(float8_gpu)), gate(gate_up)
    assert error(exact(found), exact(expected)) < 1e-3
    found, expected = gate_backward(gradient.to(float8_gpu), gate_up.to(float8_gpu)), gate_backward(gradient, gate_up)
    assert [error(*pair) < 1e-3 for pair in zip(found[:2], expected[:2], strict=True)] == [True, True]
    assert error(exact(found[2:]), exact(expected[2:])) < 1e-3
