"""Score wrappers: plugins put around `score_completion` of any task, chosen by name.

That a score is finite and in range needs no wrapper: `guards.py` checks it always. Extensions add wrappers
through the hook `score_wrappers`.
"""

import difflib
import json
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.extensions import load_extensions
from tinyzero_sdk.hookspecs import hookimpl
from tinyzero_sdk.records import Completion, Json, Score


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


BUILT_IN: Mapping[str, Callable[[], object]] = {"trace": Trace}


def make_wrapper(name: str) -> object:
    """The plugin that the wrapper `name` stands for.

    Raises:
        SettingsError: no wrapper of this name; the message lists what there is.
    """
    known: dict[str, Any] = dict(BUILT_IN)
    if name not in known:
        for extension in load_extensions():
            known |= extension.call("score_wrappers") or {}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingsError(f"no score wrapper {name!r}; {hint}known: {', '.join(sorted(known))}")
    return known[name]()
