"""The templates of synthetic problems, each a function that tells a story and returns its answer.

A template draws its numbers, tells the facts, works each step, and asks; see `telling.Story`.
"""

from tinyzero_gsm8k.stories.journeys import TEMPLATES as JOURNEYS
from tinyzero_gsm8k.stories.money import TEMPLATES as MONEY
from tinyzero_gsm8k.stories.people import TEMPLATES as PEOPLE
from tinyzero_gsm8k.stories.stock import TEMPLATES as STOCK
from tinyzero_gsm8k.stories.work import TEMPLATES as WORK

TEMPLATES = (*STOCK, *MONEY, *PEOPLE, *JOURNEYS, *WORK)
