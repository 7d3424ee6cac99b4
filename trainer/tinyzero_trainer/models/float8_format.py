"""The 8-bit floating point of products and caches: e4m3, with four bits of exponent and three of mantissa."""

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
SMALLEST_SCALE = 1e-30
"""That of a row of zeros."""
