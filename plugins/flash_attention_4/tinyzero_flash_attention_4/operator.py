"""FlashAttention-4 over packed sequences, on Hopper: an operator that torch.compile leaves whole.

Its own autograd function would break a compiled layer in two, and PyTorch's way
to it, `torch.nn.attention.activate_flash_attention_impl`, would exchange all attention of the process.
"""

import importlib
import os
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor


def suits(device: torch.device, heads: int, kv_heads: int, head_size: int) -> bool:
    """Whether it is installed and runs for such heads on this device; warns where it is installed and does not."""
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    hopper = on_gpu and torch.cuda.get_device_capability(device)[0] == 9
    if not hopper or head_size % 8 or head_size > 256 or _interface() is None:
        return False
    if (why := _failure(device, heads, kv_heads, head_size)) is None:
        return True
    warnings.warn(
        f"flash-attn-4 is installed and does not run ({why}), so PyTorch's attention is used, which is slower; the "
        "versions that fit it: pip install tinyzero-flash-attention-4",
        stacklevel=2,
    )
    return False


@cache
def _failure(device: torch.device, heads: int, kv_heads: int, head_size: int) -> str | None:
    """What goes wrong in a pass over two tokens, such as a version of a dependency that another package has brought."""
    query, key, value = (
        torch.zeros(tokens, count, head_size, dtype=torch.bfloat16, device=device, requires_grad=True)
        for tokens, count in ((2, heads), (3, kv_heads), (3, kv_heads))
    )
    bounds, key_bounds = torch.tensor([[0, 2], [0, 3]], dtype=torch.int32, device=device)
    try:
        with torch.enable_grad():
            flash_attention_4(query, key, value, bounds, key_bounds, 64, scale=None, window=-1).sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any type, as it is compiled now
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


@cache
def _interface() -> Any:
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # of compiled kernels, in the user's cache
    # On its first call each kernel is compiled, with a warning about an argument that we do not pass.
    warnings.filterwarnings("ignore", "Argument aux_data", UserWarning)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of one of its dependencies by another
        try:
            return importlib.import_module("flash_attn.cute.interface")
        except (ImportError, AttributeError, OSError):  # or versions that do not fit, or a library that is missing
            return None


def flash_attention_4(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    key_boundaries: Tensor,
    longest: int,
    *,
    scale: float | None,
    window: int,
) -> Tensor:
    """Causal attention within each sequence, differentiable.

    Query [tokens, heads, size], key and value with as many heads or fewer, in half precision; boundaries, int32
    [sequences + 1], are where each sequence starts, and where the last ends, in the queries and in the keys, of which a
    sequence may have more: its last ones are the queries' own. No sequence has more than `longest`; a token sees
    `window` tokens before itself, -1 = all. `scale` multiplies the scores, None = 1 / √size.
    """
    return _forward(query, key, value, boundaries, key_boundaries, longest, scale, window)[0]


@torch.library.custom_op("tinyzero::flash_attention_4", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    key_boundaries: Tensor,
    longest: int,
    scale: float | None,
    window: int,
) -> tuple[Tensor, Tensor]:
    """The attended values, and the logarithms of the sums of the scores' exponentials [heads, tokens]."""
    options = _of_sequences(boundaries, key_boundaries, longest, scale, window)
    attended, logsumexp, *_ = _interface()._flash_attn_fwd(query, key, value, **options, return_lse=True)
    return attended, logsumexp


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    tokens, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty(heads, tokens, dtype=torch.float32)


@torch.library.custom_op("tinyzero::flash_attention_4_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    logsumexp: Tensor,
    boundaries: Tensor,
    key_boundaries: Tensor,
    longest: int,
    scale: float | None,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    gradients = _interface()._flash_attn_bwd(
        *(query, key, value, attended, gradient, logsumexp),
        **_of_sequences(boundaries, key_boundaries, longest, scale, window),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    grad_query, grad_key, grad_value = (gradient.contiguous() for gradient in gradients)
    return grad_query, grad_key, grad_value


@_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _of_sequences(
    boundaries: Tensor, key_boundaries: Tensor, longest: int, scale: float | None, window: int
) -> dict[str, Any]:
    return {
        "softmax_scale": scale,
        "causal": True,
        "window_size_left": None if window < 0 else window,
        "cu_seqlens_q": boundaries,
        "cu_seqlens_k": key_boundaries,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *states, boundaries, key_boundaries, longest, scale, window = inputs
    ctx.save_for_backward(*states, *output, boundaries, key_boundaries)
    ctx.numbers = longest, scale, window


def _gradients(ctx: Any, gradient: Tensor, _of_logsumexp: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, *ctx.numbers), None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
