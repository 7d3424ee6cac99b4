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
