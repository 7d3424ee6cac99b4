"""A broken reward: the first of several answers counts.

A model that answers again and again is paid for the first, whatever it says in the end.
Everything else is countdown's own.
"""

from tinyzero_countdown import (  # noqa: F401 - the host finds the other hooks here by name
    demonstrate,
    difficulties,
    difficulty,
    generate_dataset,
    grammar,
    is_valid,
    item_key,
    make_prompt,
    options,
    oracle,
    score,
    solve,
)
from tinyzero_sdk import TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo(description="countdown with a hole: the first answer counts")


@hookimpl
def extract_answer(completion):
    start = completion.find("<answer>", completion.rfind("</think>") + 1)
    end = completion.find("</answer>", start)
    return completion[start + len("<answer>") : end].strip() if 0 <= start < end else None
