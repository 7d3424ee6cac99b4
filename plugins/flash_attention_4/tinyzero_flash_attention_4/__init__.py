"""FlashAttention-4 over packed sequences, which tinyzero-trainer uses on Hopper GPUs where this is installed."""

from tinyzero_flash_attention_4.operator import flash_attention_4, suits

__all__ = ["flash_attention_4", "suits"]
