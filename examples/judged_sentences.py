"""A task whose answers a model grades: write a sentence with three given words. To copy.

    export TINYZERO_JUDGE_BASE_URL=http://localhost:8000/v1 TINYZERO_JUDGE_MODEL=Qwen/Qwen3-8B
    export TINYZERO_JUDGE_MAX_CALLS=20000
    tinyzero check examples/judged_sentences.py
    tinyzero train examples/judged_sentences.py --model Qwen/Qwen2.5-0.5B-Instruct run.steps=100

docs/tasks/judges.md explains each step.
"""

import random

from tinyzero_sdk import Item, RewardPart, ScorerLimits, TaskInfo, hookimpl
from tinyzero_sdk.judge import Judge
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.text import last_tagged

WORDS = (
    "anchor apple bridge candle castle clock cloud coat desert engine feather fire flute forest garden "
    "glass hammer honey island key ladder lamp market mirror mountain needle ocean orange piano pocket "
    "river rope school shadow silver snow storm table violin winter"
)

RUBRIC = {
    "words": RewardPart(
        0.8, description="1 if the answer is one sentence that uses each of the three words in a sensible way, else 0."
    ),
    "natural": RewardPart(0.2, description="How natural the sentence reads: 1 as if printed in a book, 0 word salad."),
}
JUDGE = Judge(RUBRIC, decisive="words")


@hookimpl
def info():
    limits = ScorerLimits(concurrency=16, deadline=60)
    return TaskInfo("Write a sentence with three words.", "writing", parts=RUBRIC, limits=limits, judge=JUDGE)


@hookimpl
def generate_dataset(split, size, seed, start):
    for index in range(start, start + size):
        words = random.Random(derive_seed("sentence", split, seed, index)).sample(WORDS.split(), 3)
        yield Item(sorted(words), {"words": words})


@hookimpl
def make_prompt(item, template):
    text = f"Write one sentence with the words {', '.join(item.data['words'])}, between <answer> and </answer>."
    return [{"role": "user", "content": text}] if template == "chat" else f"{text}\n"


@hookimpl
def extract_answer(completion):
    return last_tagged(completion)


@hookimpl
def is_valid(ground_truth):
    return isinstance(ground_truth, list) and len(ground_truth) == 3 and set(ground_truth) <= set(WORDS.split())


@hookimpl
async def score(answer, ground_truth):
    return await JUDGE.score(question=f"Write one sentence with the words {', '.join(ground_truth)}.", answer=answer)


@hookimpl
def solve(item):
    first, second, third = item.data["words"]
    return f"<answer>The {first} lay between the {second} and the {third}.</answer>"


@hookimpl
def difficulty(item):
    return sum(map(len, item.data["words"]))
