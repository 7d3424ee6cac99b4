"""The guard around a task's scorer: the caller gets a valid `Score`, whatever a model's text makes the scorer do.

Valid means finite and in range; where the scorer raises or returns something else, the score is 0 with the reason
`error`, counted here.
"""

import itertools
import json
import math
import numbers
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tinyzero_sdk.errors import BrokenTaskError, describe_error
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import REASONS, TASK_PART, Completion, Json, RewardPart, Score, ScoreColumns
from tinyzero_sdk.text import strip_special_tokens

MOST_CHARACTERS = 2**20
"""Only the end of a longer completion is read, where the answer is, so that no text stalls the scorer."""

_END = slice(-MOST_CHARACTERS, None)
_MOST_KNOWN = 16
_FINITE = (-sys.float_info.max, sys.float_info.max)
_Known = tuple[Score | float, Mapping[str, float] | None, float, bool, str, bool, Score]
"""A result that was checked, what it contained (a number has no parts), and its score. Kept, it keeps its id."""


class ScoreGuard:
    """The SDK's `score_completion`: extract, score, check; never raises because of a task or a completion."""

    def __init__(
        self,
        task_name: str,
        extract_answer: Callable[[str], Any],
        score: Callable[[str, Json], Any],
        score_range: tuple[float, float],
        is_valid: Callable[[Json], Any] | None = None,
        parts: Mapping[str, RewardPart] | None = None,
    ) -> None:
        self.task_name = task_name
        self.error_count = 0
        self.first_error: str | None = None
        self._extract_answer = extract_answer
        self._score = score
        self._range = score_range
        self._is_valid = is_valid
        self._parts = parts or {}
        self._known: dict[int, _Known] = {}  # by id: a scorer that is fast returns the same few objects
        self._no_answer = Score(0.0, False, "no_answer", parts=dict.fromkeys(self._parts, 0.0))
        self._given_truth: Json = self  # the latest ground truth: those of a group are one object
        self._truth: Json = None  # as the task takes it
        self._is_wrapped = False
        self._hook = "score"  # whose result is being checked

    @hookimpl
    def score_completion(self, completion: Completion | str, ground_truth: Json) -> Score:
        """The score of a completion (plain text counts as a finished one)."""
        score, answer = self._judge(completion, ground_truth)
        if answer is not None:
            score = Score(score.value, score.correct, score.reason, answer, score.parts, score.masked)
        elif score is not self._no_answer:
            return score  # the scorer failed
        return score if not self._is_wrapped else replace(score, parts={**score.parts, TASK_PART: score.value})

    def score_into(self, columns: ScoreColumns, completion: Completion | str, ground_truth: Json) -> None:
        """Append what `score_completion` gives without wrappers, faster since no record is made of it."""
        score, answer = self._judge(completion, ground_truth)
        columns.add(score, answer)

    def _judge(self, completion: Completion | str, ground_truth: Json) -> tuple[Score, str | None]:
        """The score but for its answer, and the answer."""
        try:
            # What `extract_answer` does, without its call, which would cost 3 % of a fast scorer.
            if ground_truth is not self._given_truth:
                self._truth, self._given_truth = self.read_truth(ground_truth), ground_truth
            text = completion if isinstance(completion, str) else completion.text
            if len(text) > MOST_CHARACTERS:
                text = text[_END]
            answer = self._extract_answer(strip_special_tokens(text))
            if type(answer) is not str and self._checked_answer(answer) is None:
                return self._no_answer, None
            result = self.score_answer(answer, self._truth)
            if known := self._known.get(id(result)):
                # Its contents decide, since a scorer may fill the same object again.
                _, parts, value, correct, reason, masked, score = known
                if parts is None or (
                    result.parts == parts
                    and result.value is value
                    and result.correct is correct
                    and result.reason is reason
                    and result.masked is masked
                ):
                    return score, answer
            return self._check(result), answer
        except BaseException as error:  # a scorer may raise anything, SystemExit and RecursionError included
            return self._failure(error), None

    def around(self, shaped: Callable[[Completion, Json], Any]) -> Callable[[Completion | str, Json], Score]:
        """The same guarantee for `score_completion` inside wrappers, which may leave the task's range.

        The task's own value is then in `parts`.
        """
        self._is_wrapped = True

        def score_completion(completion: Completion | str, ground_truth: Json) -> Score:
            try:
                result = shaped(Completion(completion) if isinstance(completion, str) else completion, ground_truth)
                score = self._check_score(result, _FINITE)
                if score.answer is not None and not isinstance(score.answer, str):
                    raise self._refusal("answer=", score.answer, "str or None")
                return score
            except BaseException as error:  # as above: wrappers are plugins too
                return self._failure(error)

        return score_completion

    def extract_answer(self, text: str) -> str | None:
        """The task's answer in `text`, special tokens removed.

        Raises:
            BrokenTaskError: the task returned something other than text or None.
        """
        return self._checked_answer(self._extract_answer(strip_special_tokens(text[_END])))

    def _checked_answer(self, answer: Any) -> str | None:
        if answer is not None and not isinstance(answer, str):
            raise BrokenTaskError(
                f"task {self.task_name!r}: extract_answer returned {describe_value(answer)}; expected str or None"
            )
        return answer

    def check(self, result: Any, answer: str) -> Score:
        """The result of the task's `score` as a complete Score; where the task declares parts, with their sum.

        Otherwise accepts a Score and any real number, numpy's included. A bool is refused, because 1.0 is the maximum
        in some ranges only.

        Raises:
            BrokenTaskError: the result has another type, is not finite, is out of range or contradicts itself.
        """
        return replace(self._check(result), answer=answer)

    def _check(self, result: Any) -> Score:
        if self._parts:
            score = self._add_up(result)
        elif isinstance(result, Score):
            if result.parts and math.isnan(result.value):
                raise self._refusal("parts that info() does not declare: ", dict(result.parts), "TaskInfo(parts={…})")
            score = self._check_score(result, self._range)
        else:
            value = self._check_value(result, self._range)
            score = Score(value, True) if value == self._range[1] else Score(value, False, "wrong")
        if len(self._known) < _MOST_KNOWN:
            if type(result) is float:
                self._known[id(result)] = (result, None, result, False, "ok", False, score)
            elif type(result) is Score:
                contents = (dict(result.parts), result.value, result.correct, result.reason, result.masked)
                self._known[id(result)] = (result, *contents, score)
        return score

    def score_answer(self, answer: str, ground_truth: Json) -> Any:
        """What the task's `score` returns; where it fails on JSON text of an object or list, for what that says."""
        try:
            return self._score(answer, ground_truth)
        except Exception:
            is_json = isinstance(ground_truth, str) and ground_truth.lstrip().startswith(("{", "["))
            if self._is_valid is not None or not is_json or (form := next(truth_forms(ground_truth), None)) is None:
                raise
            return self._score(answer, form)

    def read_truth(self, ground_truth: Json) -> Json:
        """A ground truth as the task takes it: as it stands, or one of `truth_forms`.

        Raises:
            BrokenTaskError: no answer could be judged by it, whatever the completion says; or what `is_valid` raises.
        """
        if self._is_valid is None:
            return ground_truth
        failure: Exception | None = None
        for form in itertools.chain([ground_truth], truth_forms(ground_truth)):
            try:
                if self._is_valid(form):
                    return form
            except Exception as error:  # the hook may look for what only another form has
                failure = failure or error
        raise failure or BrokenTaskError(
            f"task {self.task_name!r} has no such ground truth: {describe_value(ground_truth)}"
        )

    def _add_up(self, score: Any) -> Score:
        if not isinstance(score, Score) or not math.isnan(score.value):
            raise self._refusal("", score, f"Score.of_parts with the parts {', '.join(self._parts)}")
        if unknown := score.parts.keys() - self._parts.keys():
            raise self._refusal("the part ", min(unknown), f"one of {', '.join(self._parts)}")
        parts, value = {}, 0.0
        for name, part in self._parts.items():
            parts[name] = self._check_value(score.parts.get(name, 0.0), part.range, f"{name}=")
            value += part.weight * parts[name]
        low, high = self._range  # rounding may lead out of it
        return self._check_score(replace(score, value=min(max(value, low), high), parts=parts), self._range)

    def _check_score(self, score: Any, bounds: tuple[float, float]) -> Score:
        if not isinstance(score, Score):
            raise self._refusal("", score, "a Score")
        value, correct, reason, parts = score.value, score.correct, score.reason, score.parts
        if type(value) is not float or not bounds[0] <= value <= bounds[1]:  # the same test, without a call
            value = self._check_value(value, bounds)
        if correct is not True and correct is not False:
            raise self._refusal("correct=", correct, "True or False")
        if reason not in REASONS or (correct and reason != "ok"):
            raise self._refusal("reason=", reason, f"one of {', '.join(REASONS)}, and ok where the answer is correct")
        if reason == "ok" and not correct:
            reason = "wrong"  # `ok` is only the default of the record
        if parts:
            parts = {name: self._check_value(part, _FINITE) for name, part in parts.items()}
        return Score(value, correct, reason, score.answer, parts, bool(score.masked))

    def _check_value(self, value: Any, bounds: tuple[float, float], what: str = "") -> float:
        if type(value) is not float:
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise self._refusal(what, value, "a number" if what else "a Score or a number")
            try:
                value = float(value)
            except OverflowError:
                raise self._refusal(what, value, "a number that a float can hold") from None
        if not bounds[0] <= value <= bounds[1]:  # so for NaN too
            raise self._refusal(what, value, f"a finite number from {bounds[0]:g} to {bounds[1]:g}")
        return value

    def _refusal(self, what: str, value: Any, expected: str) -> BrokenTaskError:
        return BrokenTaskError(
            f"task {self.task_name!r}: {self._hook} returned {what}{describe_value(value)}; expected {expected}"
        )

    def _failure(self, error: BaseException) -> Score:
        """The score where a task has raised, which is counted; Ctrl-C is none of its errors, and passes."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        self.error_count += 1
        if self.first_error is None:
            # As text: the exception itself keeps the scorer's frames alive and may not pickle.
            self.first_error = describe_error(error)
            if not isinstance(error, BrokenTaskError):
                frames = "".join(traceback.format_tb(error.__traceback__, limit=-16))
                self.first_error = f"Traceback (most recent call last):\n{frames}{self.first_error}"
        return Score(0.0, False, "error")


def truth_forms(truth: Json) -> Iterator[Json]:
    """What a ground truth that a task does not take may stand for: JSON text, a list of one, whole numbers as floats.

    Data files have them so: `reward_model` may hold text alone, and a table turns integers beside nulls into floats.

    Example:
        >>> list(truth_forms('["15.0"]')), list(truth_forms({"target": 15.0}))
        ([['15.0'], '15.0', 15.0, 15], [{'target': 15}])
    """
    while isinstance(truth, str) or (isinstance(truth, list) and len(truth) == 1):
        try:
            truth = json.loads(truth) if isinstance(truth, str) else truth[0]
        except (ValueError, RecursionError):
            return
        yield truth
    yield _with_integers(truth)


def _with_integers(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _with_integers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(_with_integers, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def describe_value(value: Any) -> str:
    """A value for a message: shortened, with its type."""
    try:
        return f"{reprlib.repr(value)} ({type(value).__name__})"
    except Exception:  # repr may fail: repr(10**5000) does
        return f"a {type(value).__name__}"
