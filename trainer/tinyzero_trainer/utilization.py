"""Model FLOPs utilisation: the share of the card's arithmetic that an update makes use of (arXiv 2204.02311, §4.1)."""

from collections.abc import Mapping

import torch

from tinyzero_trainer.cards import find_card

FLOPS_PER_PARAMETER = 6
"""Of a token that is trained on: 2 forward and 4 backward; attention's own and what is computed again do not count."""


def utilization(
    seconds: Mapping[str, float], tokens: int, *, parameters: Mapping[str, int], peak: float
) -> dict[str, float]:
    """`perf/mfu/ROLE` of each role that was updated in the step.

    Args:
        seconds: of the parts of the step, `update_ROLE` among them.
        tokens: prompt and completion tokens that went through each update, over all its epochs.
        parameters: of each role.
        peak: FLOP/s of all cards together.

    Example:
        >>> utilization({"update_actor": 2.0, "gen": 1.0}, 1000, parameters={"actor": 10**9, "critic": 5}, peak=6e12)
        {'perf/mfu/actor': 0.5}
    """
    work = {role: FLOPS_PER_PARAMETER * count * tokens for role, count in parameters.items()}
    return {
        f"perf/mfu/{role}": flops / seconds[f"update_{role}"] / peak
        for role, flops in work.items()
        if seconds.get(f"update_{role}")
    }


def peak_of(device: torch.device) -> float | None:
    """FLOP/s in bfloat16 of a card, by its data sheet; None for the CPU and unknown cards."""
    if device.type != "cuda":
        return None
    card = find_card(torch.cuda.get_device_name(device))
    return None if card is None else card.flops
