"""Score wrappers by name: hooks around `score_completion` of any task, such as `overlong(limit=1024)`.

`tasks/score_guard.py` checks that scores are finite and in range, with or without wrappers. Plugins add wrappers
through the hook `score_wrappers`.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from tinyzero_sdk.errors import SettingsError, did_you_mean
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.plugins.registry import load_plugins
from tinyzero_sdk.records import Completion, Json, Score
from tinyzero_sdk.rewards.shaping import CosineLength, FormatScore, MaskTruncated, RepetitionPenalty, SoftOverlong
from tinyzero_sdk.settings import build, check_keys


class Trace:
    """`trace`: print one JSON line on stderr for each score."""

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
    """Make the wrapper of a name, with settings in parentheses if it has any.

    Raises:
        SettingsError: no wrapper has this name, or a setting is invalid.

    Example:
        >>> make_wrapper("overlong(limit=1024, buffer=128)")
        SoftOverlong(limit=1024, buffer=128)
    """
    name, text = _split(spec)
    make = _find(name)
    if isinstance(make, type) and is_dataclass(make):
        settings = _parse_settings(spec, text)
        check_keys(make, settings, prefix=f"{name}.")
        if missing := [setting for setting in _required(make) if setting not in settings]:
            hint = "; in a run it is rollout.max_completion_tokens" if missing == ["limit"] else ""
            raise SettingsError(f"the score wrapper {name!r} needs {', '.join(missing)}: {name}({missing[0]}=…){hint}")
        return build(make, settings, prefix=f"{name}.")
    if text.strip():
        raise SettingsError(f"the score wrapper {name!r} has no settings, got {text}")
    return make()


def with_limit(specs: Sequence[str], limit: int) -> tuple[str, ...]:
    """The wrappers, with `limit`, the longest completion in tokens, added where one requires it and has none.

    Example:
        >>> with_limit(["format", "overlong(buffer=9)", "cosine(limit=50)"], 100)
        ('format', 'overlong(limit=100, buffer=9)', 'cosine(limit=50)')
    """
    limited = []
    for spec in specs:
        name, text = _split(spec)
        make = _find(name)
        if isinstance(make, type) and "limit" in _required(make) and "limit" not in _parse_settings(spec, text):
            spec = f"{name}({', '.join(filter(None, (f'limit={limit}', text.strip())))})"
        limited.append(spec)
    return tuple(limited)


def columns_needed(specs: Sequence[str]) -> dict[str, str]:
    """The columns that wrappers require in a file of outputs, each with the wrapper that needs it.

    Example:
        >>> columns_needed(["format", "mask_truncated"])
        {'finished': 'mask_truncated'}
    """
    names = [_split(spec)[0] for spec in specs]
    return {column: name for name in names for column in getattr(_find(name), "needs", ())}


def term_of(spec: str) -> str:
    """Under which name a wrapper's term is in `Score.parts`.

    Example:
        >>> [term_of("format"), term_of("overlong(limit=9)")]
        ['format_score', 'overlong']
    """
    name, _ = _split(spec)
    return getattr(_find(name), "term", name)


def _split(spec: str) -> tuple[str, str]:
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise SettingsError(f"got the score wrapper {spec!r}, expected name or name(key=value, …)")
    return match["name"], match["settings"] or ""


def _required(make: type) -> list[str]:
    settings = fields(make) if is_dataclass(make) else ()
    return [field.name for field in settings if field.default is MISSING and field.default_factory is MISSING]


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
        for plugin in load_plugins():
            known |= plugin.call("score_wrappers") or {}
    if name not in known:
        hint = did_you_mean(name, known, show=repr)
        raise SettingsError(f"no score wrapper {name!r}; {hint}known: {', '.join(sorted(known))}")
    return known[name]
