"""Work on processors, all measured: the controller's work per completion, pickles, and checksums."""

import hashlib
import pickle
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.executors.ray.remote_workers import without_scores
from tinyzero_trainer.types import Generation, Prompt, Rollout

HOST = {
    "reward": ((60, 32.4e-3 / 4096), (1024, 50.3e-3 / 1024)),
    "controller": ((60, 49.2e-3 / 4096), (1024, 80.4e-3 / 1024)),
}
"""The controller's seconds per completion at two lengths (`benchmarks/host.py`), interpolated linearly: decoding and
scoring; and sampling prompts, advantages, metrics and saved samples. Building micro-batches is in the plan's update."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A token of a completion in a pickle."""

    bytes: float
    dumps: float  # seconds to write it
    loads: float


FROM_ENGINES, TO_RANKS = Wire(4.0, 14.4e-9, 0.9e-9), Wire(12.0, 12.5e-9, 2.4e-9)
"""From engines without log-probabilities, to ranks with the text and advantages: `benchmarks/scaling.py --measure`, the
fastest of several runs on the machine of `HOST`, which was not idle."""

SHA256 = 1.6e9  # bytes per second of SHA-256 in one process, measured the same way


def host_seconds(work: str, lengths: Sequence[int]) -> float:
    """The controller's seconds of an entry of `HOST` for completions of these lengths."""
    (short, least), (long, most) = HOST[work]
    slope = (most - least) / (long - short)
    return (least - slope * short) * len(lengths) + slope * sum(lengths)


def measure(tokens: int = 1024, completions: int = 1024, block: int = 2**27) -> dict[str, str]:
    """`FROM_ENGINES`, `TO_RANKS` and `SHA256` on this machine; the best of five."""
    random, prompt, score = Random(0), Prompt(Item(None), "", [0] * 140), Score(0.0, False)
    made = [Generation(random.choices(range(152_064), k=tokens), None, True) for _ in range(completions)]
    rollouts = [Rollout(prompt, generation, "x" * 4 * tokens, score) for generation in made]
    batch = TrainingBatch.of(rollouts, 8, advantages=torch.zeros(tokens * completions))
    # Completions arrive as arrays, and are sent on as these.
    (received,) = pickle.loads(pickle.dumps([made]))
    arrived = [replace(one, generation=each) for one, each in zip(rollouts, received, strict=True)]
    sent = {"from engines": [made], "to ranks": replace(batch, rollouts=without_scores(arrived))}

    def best(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1))

    blank, count, found = bytes(block), tokens * completions, {}
    for way, each in sent.items():
        written = pickle.dumps(each)
        writing, reading = best(partial(pickle.dumps, each)), best(partial(pickle.loads, written))
        nanoseconds = (f"{1e9 * seconds / count:.1f} ns" for seconds in (writing, reading))
        found[f"a token {way}"] = f"{len(written) / count:.1f} bytes, {' and '.join(nanoseconds)} to write and to read"
    return found | {"SHA-256": f"{block / best(lambda: hashlib.sha256(blank)) / 1e9:.2f} GB/s"}
