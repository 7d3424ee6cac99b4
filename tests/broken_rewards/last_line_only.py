"""A broken reward: only the last line of a completion is read.

A right answer with a line break after it scores 0: a hole of the other kind, which punishes honest work.
Everything else is countdown's own.
"""

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import hookimpl
from tinyzero_sdk.text import last_tagged


@hookimpl
def extract_answer(completion):
    return last_tagged(completion.split("\n")[-1])
