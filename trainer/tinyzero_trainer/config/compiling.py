"""When the layers of a network are compiled: one rule for distributed/fsdp.py and for planning. No torch."""

COMPILED_FROM = 100_000_000
"""Parameters from which compiling pays, where the configuration leaves it open."""


def compiles(wanted: bool | None, parameters: int, *, gpu: bool = True) -> bool:
    """Whether a network's layers are compiled.

    Args:
        wanted: `model.compile`.
        parameters: of the network.
        gpu: whether it is on one.
    """
    return gpu and parameters >= COMPILED_FROM if wanted is None else wanted
