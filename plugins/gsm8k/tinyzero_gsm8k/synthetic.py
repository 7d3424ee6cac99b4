"""Word problems from templates, solvable by construction: they make every command work without files and network.

They are no substitute for GSM8K: a model that solves them knows a few dozen sentences. The templates are in `stories/`.
"""

import random

from tinyzero_gsm8k.problems import MARKER, Problem
from tinyzero_gsm8k.stories import TEMPLATES
from tinyzero_gsm8k.stories.telling import Story, show


def synthetic_problem(seed: int) -> tuple[Problem, str]:
    """The problem of this seed, and its signature: the template and all numbers that matter.

    Two problems that differ in names, things and idle facts alone have one signature.
    """
    story = Story(random.Random(seed))
    template = story.choose(TEMPLATES)
    result = template(story)
    solution = "\n".join([*story.steps, f"{MARKER} {show(result)}"])
    signature = " ".join([template.__name__, *map(str, story.numbers)])
    return Problem(story.question(), solution, show(result)), signature
