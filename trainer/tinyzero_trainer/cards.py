"""What well-known GPUs can do, by their makers' data sheets, found by the name that the driver gives them.

For planning and for the share of the peak that an update reaches. Whether torch has kernels for a card is the
doctor's to say. No torch in here.

Sources: NVIDIA's data sheets of the data-centre cards, dense (half of what they print "with sparsity"); of the GeForce
and RTX cards the architecture whitepapers of Ampere (GA102), Ada and Blackwell, with accumulation in float32.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU."""

    name: str
    """How people call it."""

    memory: float
    """GiB that the driver shows, at the most."""

    tflops: float
    """Dense bfloat16 TFLOP/s with accumulation in float32; of cards without bfloat16, float16."""

    bandwidth: float
    """GB/s of its memory."""

    @property
    def flops(self) -> float:
        """FLOP/s."""
        return self.tflops * 1e12


_CARDS = (
    # The first pattern that is found in the driver's name counts, so that a special kind stands before the plain one.
    (r"GB300|B300", Card("B300", 268, 2250, 8000)),
    (r"GB200|B200", Card("B200", 179, 2250, 8000)),
    (r"H200 NVL", Card("H200 NVL", 140.4, 835, 4800)),
    (r"H200", Card("H200", 140.4, 989, 4800)),
    (r"GH200", Card("GH200", 95.0, 989, 4000)),
    (r"H100 NVL", Card("H100 NVL", 93.6, 835, 3900)),
    (r"H100 PCIe", Card("H100 PCIe", 79.6, 756, 2000)),
    (r"H[18]00", Card("H100", 79.6, 989, 3350)),
    (r"H20\b", Card("H20", 95.6, 148, 4000)),
    (r"A[18]00.*40 ?GB", Card("A100 40GB", 40.0, 312, 1555)),
    (r"A[18]00.*PCI", Card("A100 PCIe", 80.0, 312, 1935)),
    (r"A[18]00(?!0)", Card("A100", 80.0, 312, 2039)),
    (r"L40S", Card("L40S", 45.0, 362, 864)),
    (r"L40\b", Card("L40", 45.0, 181, 864)),
    (r"L4\b", Card("L4", 22.5, 121, 300)),
    (r"A40\b", Card("A40", 45.0, 150, 696)),
    (r"A30\b", Card("A30", 24.0, 165, 933)),
    (r"A10G", Card("A10G", 22.5, 70, 600)),
    (r"A10\b", Card("A10", 22.5, 125, 600)),
    (r"V100.*32 ?GB", Card("V100 32GB", 32.0, 125, 900)),
    (r"V100", Card("V100", 16.0, 125, 900)),
    (r"T4\b", Card("T4", 15.0, 65, 320)),
    (r"RTX PRO 6000", Card("RTX PRO 6000 Blackwell", 95.6, 503, 1792)),
    (r"RTX 6000 Ada", Card("RTX 6000 Ada", 48.0, 364, 960)),
    (r"RTX A6000", Card("RTX A6000", 48.0, 155, 768)),
    (r"RTX A5000", Card("RTX A5000", 24.0, 111, 768)),
    (r"RTX 5090", Card("RTX 5090", 31.8, 210, 1792)),
    (r"RTX 5080", Card("RTX 5080", 15.9, 113, 960)),
    (r"RTX 5070 Ti", Card("RTX 5070 Ti", 15.9, 88, 896)),
    (r"RTX 4090", Card("RTX 4090", 24.0, 165, 1008)),
    (r"RTX 4080", Card("RTX 4080", 16.0, 97, 717)),
    (r"RTX 4070", Card("RTX 4070", 12.0, 58, 504)),
    (r"RTX 4060 Ti", Card("RTX 4060 Ti", 16.0, 44, 288)),
    (r"RTX 3090", Card("RTX 3090", 24.0, 71, 936)),
    (r"RTX 3080", Card("RTX 3080", 10.0, 60, 760)),
    (r"RTX 3060", Card("RTX 3060", 12.0, 26, 360)),
)


def known_cards() -> tuple[Card, ...]:
    """All of them."""
    return tuple(card for _, card in _CARDS)


def find_card(name: str) -> Card | None:
    """The card of a name that a driver, or a person, gives.

    Returns:
        None if it is not known.

    Example:
        >>> find_card("NVIDIA A100-SXM4-80GB").tflops
        312
        >>> find_card("Quadro 6000") is None
        True
    """
    return next((card for pattern, card in _CARDS if re.search(rf"(?<![A-Za-z0-9]){pattern}", name, re.I)), None)
