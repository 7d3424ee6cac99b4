"""A broken reward: the first of several answers counts.

A model that answers again and again is rewarded for the first, whatever it says in the end.
Everything else is countdown's own.
"""

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import hookimpl


@hookimpl
def extract_answer(completion):
    start = completion.find("<answer>", completion.rfind("</think>") + 1)
    end = completion.find("</answer>", start)
    return completion[start + len("<answer>") : end].strip() if 0 <= start < end else None
