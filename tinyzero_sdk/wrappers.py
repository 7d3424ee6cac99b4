"""Score wrappers: plugins put around `score_completion` of any task, chosen by name.

That a score is finite and in range needs no wrapper: `guards.py` checks it always. Extensions add wrappers
through the hook `score_wrappers`.
"""

import difflib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping
from dataclasses import is_dataclass
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.extensions import load_extensions
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import Completion, Json, Score
from tinyzero_sdk.settings import build
from tinyzero_sdk.shaping import CosineLength, FormatScore, MaskTruncated, RepetitionPenalty, SoftOverlong


class Trace:
    """`trace`: one JSON line on stderr for each score, to watch what a reward does."""

    @hookimpl(wrapper=True)
    def score_completion(self, completion: Completion, ground_truth: Json) -> Generator[None, Score, Score]:
        score = yield
        line = {
            "value": score.value,
            "reason": score.reason,
            "answer": score.answer,
            "ground_truth": ground_truth,
            "completion": completion.text,
        }
        print(json.dumps(line, default=repr), file=sys.stderr)
        return score


BUILT_IN: Mapping[str, Callable[..., object]] = {
    "trace": Trace,
    "format": FormatScore,
    "cosine": CosineLength,
    "overlong": SoftOverlong,
    "mask_truncated": MaskTruncated,
    "repetition": RepetitionPenalty,
}

_SPEC = re.compile(r"(?P<name>[\w.-]+)\s*(?:\((?P<settings>.*)\))?", re.DOTALL)


def make_wrapper(spec: str) -> object:
    """The plugin that a wrapper stands for: its name, and its settings in brackets where it has any.

    Raises:
        SettingsError: no wrapper of this name, which lists what there is; or a setting that does not fit.

    Example:
        >>> make_wrapper("overlong(limit=1024, buffer=128)")
        SoftOverlong(limit=1024, buffer=128)
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise SettingsError(f"got the score wrapper {spec!r}, expected name or name(key=value, …)")
    name, text = match["name"], match["settings"] or ""
    make = _find(name)
    if isinstance(make, type) and is_dataclass(make):
        return build(make, _parse_settings(spec, text), prefix=f"{name}.")
    if text.strip():
        raise SettingsError(f"the score wrapper {name!r} has no settings, got {text}")
    return make()


def _parse_settings(spec: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(f"settings = {{{text}}}")["settings"]
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f"cannot read the settings of the score wrapper {spec!r} ({error}); expected key=value, key=value, …"
        ) from error


def _find(name: str) -> Callable[..., object]:
    known: dict[str, Any] = dict(BUILT_IN)
    if name not in known:
        for extension in load_extensions():
            known |= extension.call("score_wrappers") or {}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingsError(f"no score wrapper {name!r}; {hint}known: {', '.join(sorted(known))}")
    return known[name]
