"""Work on processors, all measured: the controller's work per completion, pickles, and checksums."""

import hashlib
import pickle
import timeit
from collections.abc import Callable, Sequence
from random import Random

from tinyzero_trainer.types import Generation

HOST = {
    "reward": ((60, 65.4e-3 / 4096), (1024, 154.1e-3 / 1024)),
    "controller": ((60, 37.0e-3 / 4096), (1024, 61.2e-3 / 1024)),
}
"""The controller's seconds per completion at two lengths (`benchmarks/host.py`), interpolated linearly: decoding and
scoring; and sampling prompts, advantages, metrics and saved samples. Building micro-batches is in the plan's update."""

WIRE_BYTES, DUMPS, LOADS = 8.2, 27e-9, 60e-9
"""Bytes of a generated token with its text in a pickle, and seconds to write and read it, without log-probabilities:
`benchmarks/scaling.py --measure`, the fastest of several runs on the machine of `HOST`, which was not idle."""

SHA256 = 1.6e9  # bytes per second of SHA-256 in one process, measured the same way


def host_seconds(work: str, lengths: Sequence[int]) -> float:
    """The controller's seconds of an entry of `HOST` for completions of these lengths."""
    (short, least), (long, most) = HOST[work]
    slope = (most - least) / (long - short)
    return (least - slope * short) * len(lengths) + slope * sum(lengths)


def measure(tokens: int = 1024, completions: int = 1024, block: int = 2**27) -> dict[str, str]:
    """`WIRE_BYTES`, `DUMPS`, `LOADS` and `SHA256` on this machine; the best of five."""
    random = Random(0)
    made = [
        (Generation([random.randrange(152_064) for _ in range(tokens)], None, True), "x" * 4 * tokens)
        for _ in range(completions)
    ]

    def best(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1))

    written, blank, count = pickle.dumps(made, 5), bytes(block), tokens * completions
    return {
        "a token and its text in a pickle": f"{len(written) / count:.1f} bytes",
        "writing it": f"{1e9 * best(lambda: pickle.dumps(made, 5)) / count:.0f} ns",
        "reading it": f"{1e9 * best(lambda: pickle.loads(written)) / count:.0f} ns",
        "SHA-256": f"{block / best(lambda: hashlib.sha256(blank)) / 1e9:.2f} GB/s",
    }
