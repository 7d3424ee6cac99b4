"""Groups that are admitted and not trained on: how many there may be, and which of them make the next batch.

For `rollout.max_async_level` k ≥ 1. A batch is the first whole groups to be complete, but none is ever dropped and no
token becomes older than k steps: a batch waits for groups that would be too old for the one after it. As in AReaL
(arXiv 2505.24298, §5.1), admission keeps this rare: after v updates, at most (v + 1 + k) batches are admitted.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.length_control import LengthControlState
from tinyzero_trainer.data.mixture import Mixture
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.engine import EMPTY, Group, OnProgress
from tinyzero_trainer.rollout.generation import check_context
from tinyzero_trainer.types import Generation, Prompt

IN_FLIGHT_FILE = "in_flight.json"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group in flight."""

    prompt: Prompt
    version: int  # the weights' version when it was admitted; no token of it is older
    group: Group  # as far as it is sampled


@dataclass(frozen=True, slots=True)
class InFlight:
    """The groups in flight in a checkpoint, and the state of streams and length limit after admitting them."""

    groups: list[Admitted]
    progress: dict[str, StreamState]
    length_control: LengthControlState


_IN_FLIGHT = TypeAdapter(InFlight)


def save_in_flight(in_flight: InFlight, directory: Path) -> None:
    """Write groups to a checkpoint's state directory."""
    # Not dump_json, which refuses a text with half a surrogate pair and turns NaN into null.
    content = json.dumps(_IN_FLIGHT.dump_python(in_flight), default=list)
    (directory / IN_FLIGHT_FILE).write_text(content, encoding="utf-8")


def load_in_flight(file: Path) -> InFlight | None:
    """The groups in a file; None if there is no file."""
    with damage_in_one_line(file):
        return _IN_FLIGHT.validate_python(json.loads(file.read_bytes())) if file.exists() else None


def room(level: int, prompts_per_step: int, *, in_flight: int, training: int) -> int:
    """How many groups may be admitted, with so many in flight and `training` batches that are taken and not trained."""
    return (1 + level - training) * prompts_per_step - in_flight


def choose(
    complete: Sequence[Admitted],
    others: Sequence[Admitted],
    *,
    step: int,
    count: int,
    prompts_per_step: int,
    level: int,
) -> list[Admitted] | None:
    """`count` of the complete groups for the batch of a step (1-based); None if it has to wait for more.

    Those come first whose last possible step, at which their tokens may be `level` steps old, is nearest. What is left,
    of these and of the `others`, must fit into the batches up to the last possible step of each.
    """
    if len(complete) < count:
        return None
    ordered = sorted(complete, key=lambda admitted: (admitted.version, admitted.group.number))
    left = sorted(admitted.version + 1 + level for admitted in (*ordered[count:], *others))  # last steps
    if any(place >= (last - step) * prompts_per_step for place, last in enumerate(left)):
        return None
    return sorted(ordered[:count], key=lambda admitted: admitted.group.number)


class GroupsInFlight:
    """Admits groups to an engine and takes batches of them, in the order of the steps."""

    def __init__(self, config: TrainConfig, workers: Workers, problems: Mixture, version: int, saved: InFlight | None):
        """`version` is that of the policy's weights; `saved` are a checkpoint's groups, which go on."""
        self._config, self._model, self._problems = config, workers.language_model, problems
        self.engine = workers.engine
        self._version = version
        self._admitted = {} if saved is None else {entry.group.number: entry for entry in saved.groups}
        self._complete, self._taken = list[Admitted](), list[Admitted]()
        self._before: tuple[list[Admitted], dict[str, StreamState]] | None = None
        if version:
            self.engine.load_weights(version)
        self.engine.submit([entry.group for entry in self._admitted.values()])

    def __len__(self) -> int:
        return len(self._admitted)

    def load_weights(self, version: int) -> None:
        """Let the engine take over the policy's weights; from any thread."""
        self.engine.load_weights(version)
        self._version = version

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within, what is taken belongs to one batch; if the block raises, it is in flight again."""
        # What samples only when it is asked to repeats the same from here, to the bit.
        self._taken, self._before = [], None if self.engine.concurrent else (self._now(), self._problems.progress())
        try:
            yield
        except BaseException:
            self._complete += self._taken
            self._admitted |= {entry.group.number: entry for entry in self._taken}
            raise
        self._taken, self._before = [], None

    def snapshot(self, length_control: LengthControlState) -> InFlight:
        """The groups in flight, for a checkpoint; if collecting a batch was interrupted, as it found them."""
        groups, progress = self._before or (self._now(), self._problems.progress())
        return InFlight(groups, progress, length_control)

    def _now(self) -> list[Admitted]:
        groups = {group.number: group for group in self.engine.unfinished()}
        groups |= {entry.group.number: entry.group for entry in self._complete}
        # An engine that has died with others may not know a group any more: it is sampled again from where it began.
        admitted = sorted(self._admitted.items())
        return [replace(entry, group=groups.get(number, entry.group)) for number, entry in admitted]

    def take(
        self, count: int, step: int, params: SamplingParams, on_progress: OnProgress
    ) -> list[tuple[Prompt, Generation]]:
        """`count` groups for the batch of a step (1-based), as soon as they are complete.

        From now on tokens are sampled with `params`, whose limit of lengths is that of groups admitted from now on.
        `on_progress` may raise to stop waiting.
        """
        prompts_per_step, level = self._config.data.prompts_per_step, self._config.rollout.max_async_level
        while True:
            self._admit(count, step, params.max_tokens)
            numbers = {entry.group.number for entry in self._complete}
            others = [entry for number, entry in self._admitted.items() if number not in numbers]
            limits = {"step": step, "count": count, "prompts_per_step": prompts_per_step, "level": level}
            if (chosen := choose(self._complete, others, **limits)) is not None:
                break
            for group in self.engine.advance(params, on_progress):
                self._complete.append(replace(self._admitted[group.number], group=group))
        self._taken += chosen
        for entry in chosen:
            self._complete.remove(entry)
            del self._admitted[entry.group.number]
        return [(entry.prompt, completion) for entry in chosen for completion in entry.group.completions]

    def _admit(self, count: int, step: int, max_tokens: int) -> None:
        """Admit as many groups as there may be, and as the run still needs."""
        config, version, size = self._config, self._version, self._config.data.prompts_per_step
        in_flight = len(self._admitted) + size - count
        allowed = room(config.rollout.max_async_level, size, in_flight=in_flight, training=step - 1 - version)
        needed = (config.run.steps - step) * size + count - len(self._admitted)
        admitted = list[Admitted]()
        for _ in range(min(allowed, needed)):
            number = sum(stream.taken for stream in self._problems.progress().values())
            prompt = next(self._problems)
            # As in the step that it would belong to if none were in flight.
            seed = derive_seed("rollout", config.run.seed, number // size + 1)
            completions = (EMPTY,) * config.rollout.group_size
            group = Group(number, prompt.token_ids, completions, max_tokens, seed, number % size)
            admitted.append(Admitted(prompt, version, group))
        if admitted:
            check_context(self._model, [entry.prompt for entry in admitted], max_tokens)
            self._admitted |= {entry.group.number: entry for entry in admitted}
            self.engine.submit([entry.group for entry in admitted])
