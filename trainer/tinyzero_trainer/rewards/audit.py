"""The audit of a run: a sample of its completions is judged by the task's oracle, in a process beside training.

`step` hands in the completions of a step and takes what has been judged since; nothing waits for the oracle but
`drain`, before a checkpoint. A task without an oracle has the signs of signs.py alone.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.console import percent
from tinyzero_sdk.errors import DataError, TinyZeroError
from tinyzero_sdk.records import SCORER_FAILURES, Reason
from tinyzero_sdk.scoring.oracle import has_oracle, oracle_pool
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.scoring.statistics import effective_size, interval_of_rate, wilson
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.workers.process import ClosesOnExit
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.rewards.signs import SIGNS, StepStatistics, signs
from tinyzero_trainer.types import Rollout

ALARM_Z = 3.0  # quantile of the alarm's interval, 99.7%: it is looked at hundreds of times in a run
FEWEST_FALSE = 4
"""Problems with a false reward that an alarm takes: one problem that the oracle misjudges is none."""

SAMPLE_SECONDS = 10.0  # for a sample; what is left then counts as not judged
MOST_BYTES = 4 << 20  # of a task's file of findings, beyond which they are only counted

_CHUNK = 8  # completions sent to the oracle's process at a time
_UNJUDGED: tuple[Reason, ...] = ("no_answer", "error", "timeout")

Side = Literal["positive", "negative"]  # rewarded, or not
Drawn = dict[str, list[tuple[Side, Rollout]]]
"""Completions of each task, in random order: of both sides some are judged, however little time there is."""

Problems = list[tuple[int, int]]
"""For each problem, the numbers of completions judged and of those whose score the oracle contradicts."""


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """What the oracle said about a sample of one task."""

    step: int
    positive: Problems
    negative: Problems


@dataclass(slots=True)
class AuditState:
    """The state of one task's audit, saved with the trainer's."""

    window: list[JudgedSample] = field(default_factory=list)  # the last samples, the newest at the end
    judged: dict[Side, int] = field(default_factory=lambda: {"positive": 0, "negative": 0})
    """Completions since the run began."""

    false: dict[Side, int] = field(default_factory=lambda: {"positive": 0, "negative": 0})
    unjudged: int = 0
    alarms: int = 0
    last_alarm: int = 0  # the last sample's step
    steps: list[StepStatistics] = field(default_factory=list)  # of the last steps
    reported: list[str] = field(default_factory=list)  # signs that have been reported


class AuditAlarm(TinyZeroError):
    """More of the rewarded completions are wrong than `audit.max_false_positive_rate`."""

    exit_code = 1


def is_rewarded(score: Score, task: Task) -> bool:
    """Whether a completion was paid as right: it is `correct`, or got the greatest reward by itself."""
    return score.correct or (not task.compares_completions and score.unshaped >= task.info.score_range[1])


def alarming(window: Sequence[JudgedSample], limit: float) -> list[JudgedSample]:
    """The shortest end of the window, of 1, 2, 4, … samples, that shows a rate above the limit; empty if none does."""
    size = 1
    while True:
        end = list(window[-size:])
        judged, false = _counts([problem for sample in end for problem in sample.positive])
        if np.count_nonzero(false) >= FEWEST_FALSE:
            rate, size_of_evidence = false.sum() / judged.sum(), effective_size(false, judged)
            if wilson(rate, size_of_evidence, ALARM_Z)[0] > limit:
                return end
        if size >= len(window):
            return []
        size *= 2


def _counts(problems: Problems) -> tuple[np.ndarray, np.ndarray]:
    judged, false = np.array(problems or [(0, 0)]).T
    return judged, false


class Audit(ClosesOnExit):
    """Draws samples, has them judged, counts, and raises the alarm."""

    def __init__(
        self,
        config: TrainConfig,
        tasks: Mapping[str, Task],
        states: dict[str, AuditState],
        directory: Path,
        warn: Callable[[str], None],
        *,
        waits: bool = False,
    ) -> None:
        """`states` are the trainer's and are kept up to date; findings go into files in `directory`.

        Where it `waits`, a step takes the sample of the one before: metrics do not depend on how busy the machine is.
        """
        self.config, self.tasks, self.directory, self.warn = config.audit, tasks, directory, warn
        self._seed, self._memory_limit_gb = config.run.seed, config.reward.memory_limit_gb
        self._judged = {name: task for name, task in tasks.items() if has_oracle(task)}
        self._states = states
        for name in tasks:
            states.setdefault(name, AuditState())
        self._pools: dict[str, ScoringPool] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._pending: tuple[int, Drawn, Future[dict[str, list[Score] | Exception]]] | None = None
        self._is_closing, self._waits = False, waits
        self.alarm: AuditAlarm | None = None  # what ends the run, with `audit.action=stop`

    def close(self) -> None:
        self._is_closing = True
        self._thread.shutdown()
        for pool in self._pools.values():
            pool.close()

    def step(self, step: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Take what has been judged, hand in a sample of a step, and return the metrics."""
        if not self.config.every:
            return {}
        started = time.perf_counter()
        self._collect(wait=self._waits)
        if step % self.config.every == 0 and self._pending is None:
            self._submit(step, rollouts)
        metrics: dict[str, float] = {}
        for name in self.tasks:
            prefix = "audit/" if len(self.tasks) == 1 else f"audit/{name}/"
            of_task = self._signs(name, step, rollouts) | self._rates(name)
            metrics |= {prefix + metric: value for metric, value in of_task.items()}
        return {**metrics, "timing_s/audit": time.perf_counter() - started}

    def drain(self) -> None:
        """Wait for the sample that is being judged: its counts belong to the checkpoint."""
        self._collect(wait=True)

    def summary(self) -> list[str]:
        """What the audit has found, a line for each task."""
        lines = []
        for name in self._judged:
            state, several = self._states[name], f" of {name}" if len(self.tasks) > 1 else ""
            counts = {side: f"{state.false[side]:,} of {state.judged[side]:,}" for side in state.judged}
            line = f"{counts['positive']} rewarded completions wrong, {counts['negative']} others right"
            if state.unjudged:
                line += f", {state.unjudged:,} not judged"
            if state.alarms:
                line += f"; {state.alarms:,} alarms, the last at step {state.last_alarm:,}"
            if self._file(name).exists():
                line += f"; findings: {self._file(name)}"
            if sum(state.judged.values()) or state.unjudged:
                lines.append(f"audit{several}: by the oracle {line}")
        return lines

    def _submit(self, step: int, rollouts: Sequence[Rollout]) -> None:
        chance, drawn = random.Random(derive_seed("audit", self._seed, step)), Drawn()
        for name, task in self._judged.items():
            sides: dict[Side, list[Rollout]] = {"positive": [], "negative": []}
            for rollout in rollouts:
                if rollout.prompt.task == name and rollout.score.reason not in SCORER_FAILURES:
                    sides["positive" if is_rewarded(rollout.score, task) else "negative"].append(rollout)
            most, drawn[name] = self.config.completions // 2, []
            for side, candidates in sides.items():
                drawn[name] += [(side, rollout) for rollout in chance.sample(candidates, min(most, len(candidates)))]
            chance.shuffle(drawn[name])
        if drawn:
            scores = self._thread.submit(lambda: {name: self._scores(name, sample) for name, sample in drawn.items()})
            self._pending = step, drawn, scores

    def _scores(self, name: str, sample: Sequence[tuple[Side, Rollout]]) -> list[Score] | Exception:
        """In the thread: the oracle's scores, as far as there was time, or why there are none."""
        scores = list[Score]()
        try:
            if name not in self._pools:
                limits = {"timeout": self.config.timeout, "memory_limit_gb": self._memory_limit_gb}
                self._pools[name] = oracle_pool(self._judged[name], **limits)
            until = time.monotonic() + SAMPLE_SECONDS
            for start in range(0, len(sample), _CHUNK):
                if time.monotonic() >= until or self._is_closing:
                    break
                chunk = [rollout for _, rollout in sample[start : start + _CHUNK]]
                truths = [rollout.prompt.item.ground_truth for rollout in chunk]
                scores += self._pools[name].score([Completion(rollout.text) for rollout in chunk], truths)
        except (TinyZeroError, OSError) as error:  # the task cannot be loaded there, or no process started
            return error
        return scores

    def _collect(self, *, wait: bool) -> None:
        if self._pending is None:
            return
        step, drawn, judged = self._pending
        if not (wait or judged.done()):
            return
        self._pending = None
        for name, scores in judged.result().items():
            if isinstance(scores, Exception):
                self.warn(f"the audit of {name} ends: {scores}")
                del self._judged[name]
            else:
                self._count(name, step, drawn[name], scores)

    def _count(self, name: str, step: int, drawn: Sequence[tuple[Side, Rollout]], scores: Sequence[Score]) -> None:
        """Add what the oracle said about a sample; the last of it may not have been judged."""
        state, findings = self._states[name], list[tuple[Side, Rollout]]()
        problems: dict[Side, dict[int, list[bool]]] = {"positive": defaultdict(list), "negative": defaultdict(list)}
        for (side, rollout), score in zip(drawn, scores, strict=False):
            if score.reason not in _UNJUDGED:
                is_false = score.value < 1 if side == "positive" else score.value > 0
                problems[side][id(rollout.prompt)].append(is_false)
                if is_false:
                    findings.append((side, rollout))
        state.unjudged += len(drawn)
        counts: dict[Side, Problems] = {}
        for side, verdicts in problems.items():
            counts[side] = [(len(is_false), sum(is_false)) for is_false in verdicts.values()]
            judged, false = (sum(column) for column in zip(*counts[side], strict=True)) if verdicts else (0, 0)
            state.judged[side] += judged
            state.false[side] += false
            state.unjudged -= judged
        state.window = [*state.window, JudgedSample(step, **counts)][-self.config.window :]
        self._keep(name, step, findings)
        self._raise_alarm(name, step, [rollout for side, rollout in findings if side == "positive"])

    def _keep(self, name: str, step: int, findings: Sequence[tuple[Side, Rollout]]) -> None:
        """Add findings to the task's file as labelled cases; a file that cannot be written costs them, not the run."""
        from tinyzero_sdk.testing.cases import Case, add_cases

        file = self._file(name)
        if not findings or (file.exists() and file.stat().st_size > MOST_BYTES):
            return
        cases = []
        for side, rollout in findings:
            score, correct = rollout.score, side == "negative"
            verdict = f"score {score.value:g} ({score.reason}), {'right' if correct else 'wrong'} by the oracle"
            cases.append(Case(rollout.text, rollout.prompt.item.ground_truth, correct, f"step {step}: {verdict}"))
        try:
            add_cases(file, cases)
        except DataError as error:
            self.warn(f"{error}; findings of the audit at step {step:,} are not kept")

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.cases.jsonl"

    def _raise_alarm(self, name: str, step: int, false: Sequence[Rollout]) -> None:
        """Warn, or stop the run, if what was judged since the last alarm shows a rate above the limit.

        `false` are the sample's own; without any it shows nothing new.
        """
        state, config = self._states[name], self.config
        fresh = [sample for sample in state.window if sample.step > state.last_alarm]
        end = alarming(fresh, config.max_false_positive_rate)
        is_repeated = state.alarms and step - state.last_alarm < config.window * config.every
        if not false or not end or (config.action == "warn" and is_repeated):
            return
        state.alarms, state.last_alarm = state.alarms + 1, step
        judged, wrong = _counts([problem for sample in end for problem in sample.positive])
        fraction = wrong.sum() / judged.sum()
        low, high = wilson(fraction, effective_size(wrong, judged), ALARM_Z)
        steps = f"step {step:,}" if len(end) == 1 else f"steps {end[0].step:,} to {step:,}"
        alarm = AuditAlarm(
            f"the reward of {name} pays for wrong answers: by its oracle, {wrong.sum():,} of {judged.sum():,} rewarded "
            f"completions judged at {steps} are wrong ({percent(fraction)}, 99.7% interval {percent(low)} to "
            f"{percent(high)}; audit.max_false_positive_rate={config.max_false_positive_rate:g}), such as "
            f"{false[-1].text[-100:]!r} for {false[-1].prompt.item.ground_truth!r:.100}; findings: {self._file(name)}"
        )
        if config.action == "warn":
            self.warn(str(alarm))
        else:
            self.alarm = alarm

    def _rates(self, name: str) -> dict[str, float]:
        if name not in self._judged:
            return {}
        state, metrics = self._states[name], dict[str, float]()
        for side in ("positive", "negative"):
            judged, false = _counts([problem for sample in state.window for problem in getattr(sample, side)])
            if judged.sum():
                low, high = interval_of_rate(false, judged)
                rate = f"false_{side}_rate"
                metrics |= {rate: float(false.sum() / judged.sum()), f"{rate}/low": low, f"{rate}/high": high}
        counts = {"judged": sum(state.judged.values()), "unjudged": state.unjudged, "alarms": state.alarms}
        return metrics | {metric: float(count) for metric, count in counts.items()}

    def _signs(self, name: str, step: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The signs; each is reported once, where no oracle tells more."""
        state, task = self._states[name], self.tasks[name]
        of_task = [rollout for rollout in rollouts if rollout.prompt.task == name]
        if not of_task:
            return {}
        rewarded = [rollout for rollout in of_task if is_rewarded(rollout.score, task)]
        now = StepStatistics.of(of_task, rewarded)
        values = signs(now, state.steps, rewarded)
        state.steps = [*state.steps, now][-self.config.window :]
        for sign, value in values.items():
            limit, text = SIGNS[sign]
            if value >= limit and name not in self._judged and sign not in state.reported:
                state.reported.append(sign)
                self.warn(
                    f"step {step:,}, a sign and no proof that the reward of {name} is gamed: {text.format(value)}"
                )
        return {f"sign/{sign}": value for sign, value in values.items()}
