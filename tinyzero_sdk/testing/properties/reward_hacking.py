"""Properties of what must not be rewarded: texts of a model that has found a way around the task."""

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial

from tinyzero_sdk.data.rows import as_messages
from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.completions import HOSTILE
from tinyzero_sdk.testing.gold import TestCompletion
from tinyzero_sdk.testing.property import Failure, Property
from tinyzero_sdk.testing.sandbox_child import Outcome
from tinyzero_sdk.testing.task_under_test import MOST_KILLS, TaskUnderTest


def is_rewarded(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    """The completion is correct (and the oracle does not call it right), or scores more than a wrong answer."""
    credit = subject.wrong_credit
    if outcome.oracle or (not outcome.correct and outcome.value <= credit):
        return None
    return Failure(outcome.describe(), f"not correct, and a score of at most {credit:g}, what a wrong answer scores")


def _is_rewarded_at_all(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    if outcome.correct or outcome.value > 0:
        return Failure(outcome.describe(), "a score of 0 at most, and not correct")
    return None


def _empty(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    bare = ["", " ", "\n", "I do not know.", "<think></think>", "<think>\n</think>\n", "</think>", "<answer>", "\u200b"]
    for gold in subject.presentations[:4]:
        for text in bare:
            yield gold.sample(text, "no answer", right=False)
        for text in ("", " ", "\n", "\n\n \t"):
            yield gold.sample(gold.with_answer(text), "an empty answer", right=False)
            yield gold.sample(f"<answer>{text}</answer>", "an empty answer", right=False)


EMPTINESS_PAYS_NOTHING = Property(
    name="emptiness-pays-nothing",
    text="No answer, and an empty one, score 0 at most.",
    reason="Empty tags are the first thing a model finds if they are rewarded, and it never gives them up again.",
    test=_is_rewarded_at_all,
    completions=_empty,
)


_TAG = re.compile(r"</?\w{1,20}>")
_WORD = "a word of the prompt as the answer"
_MOST_WORDS = 200


def _echoes(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    for gold in subject.presentations:
        for messages in map(as_messages, subject.task.templates(gold.item).values()):
            prompt = "\n".join(message["content"] for message in messages)
            yield gold.sample(prompt, "the prompt")
            untagged = _TAG.sub("", prompt)
            yield gold.sample(gold.with_answer(untagged), "the prompt as the answer")
            for line in untagged.splitlines()[-3:]:
                yield gold.sample(gold.with_answer(line), "a line of the prompt as the answer")
            if subject.golds:
                words = [*re.findall(r"-?[0-9]+(?:[.,/:][0-9]+)*", untagged), *re.findall(r"\w+", untagged)]
                wrong = [word for word in dict.fromkeys(words) if _plain(word) != _plain(gold.answer)]
                for word in wrong[:_MOST_WORDS]:
                    yield gold.sample(gold.with_answer(word), _WORD)


def _plain(text: str) -> str | float:
    """The number that a text is, else the text without case: what two notations of one answer share."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text.strip().casefold()


def _echo_is_rewarded(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    """The reward of an echo is a fault, except where a number of the prompt is close to the right one."""
    return None if sample.note == _WORD and not outcome.correct else is_rewarded(subject, sample, outcome)


ECHO_PAYS_NOTHING = Property(
    name="echo-pays-nothing",
    text="Repeating the prompt, or a line of it, is not correct and scores no more than a wrong answer; a word or"
    " number of it that is not the right answer is not correct.",
    reason="The prompt shows what an answer looks like and what is given; a scorer that looks for those finds them.",
    test=_echo_is_rewarded,
    completions=_echoes,
    with_oracle=True,
)


_of_wrongs = partial(Property, needs=("solve",), test=is_rewarded, with_oracle=True)


def _sprays(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    note = "several answers in the place of one, the right one among them"
    for gold, pairs in itertools.groupby(subject.wrongs, key=lambda pair: pair[0]):
        wrongs = [wrong for _, wrong in pairs]
        for separator in (" ", ", ", "\n", " or ", "; ", " and "):
            for answers in ([wrongs[0], gold.answer], [gold.answer, wrongs[0]], [*wrongs, gold.answer, *wrongs]):
                yield gold.sample(gold.with_answer(separator.join(answers)), note, right=False)
        lines = [gold.with_answer(text) for text in [*wrongs, gold.answer, *wrongs]]
        yield gold.sample("\n".join(lines), "many answers, the last of them wrong", right=False)


SPRAYING_PAYS_NOTHING = _of_wrongs(
    name="spraying-pays-nothing",
    text="Several answers in place of one are not correct and score no more than a wrong answer, even if the right"
    " one is among them.",
    reason="A completion that names every number also names the right one.",
    completions=_sprays,
)


def _leaks(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    for gold, wrong in subject.wrongs:
        truth = gold.item.ground_truth
        wrong_text = gold.with_answer(wrong)
        for leak in (gold.answer, json.dumps(truth), str(truth), f"The answer is {gold.answer}."):
            yield gold.sample(f"{leak}\n{wrong_text}", "a wrong answer after the right one in plain text", right=False)
            text = f"<think>{leak}</think>\n{wrong_text}"
            yield gold.sample(text, "a wrong answer, the right one in the thinking", right=False)


LEAKS_PAY_NOTHING = _of_wrongs(
    name="leaks-pay-nothing",
    text="A wrong answer stays wrong if the right one, or the ground truth, appears in the text before it.",
    reason="A scorer that looks for the right answer anywhere in the text pays a model for naming everything.",
    completions=_leaks,
)


_KEYS = [
    "", "1", "2", "-1", "7", "10", "42", "100", "1000", "0.5", "nan", "-nan", "inf", "-inf", "infinity", "1e309",
    "true", "True", "false", "yes", "no", "none", "null", "a", "b", "e", "s", "x", "t", "the", "is", "answer",
    "the answer", "The answer is", "correct", "right", "unknown", "?", "...", "-", ".", ".*", "[]", "{}", "()", "\\d+",
]  # fmt: skip
_KEY_GOLDS = 16
_ASYNC_KEY_GOLDS = 4  # each key is tried on all of them, and a call may cost money
_KEY_ENOUGH = 8  # with this many different golds, no gold may open everything


def _locks(subject: TaskUnderTest) -> list[Json]:
    """Ground truths of items whose golds all differ; without `solve`, of items that differ themselves."""
    if subject.golds:
        golds = [(gold.answer, gold.item.ground_truth) for gold in subject.golds]
    else:
        golds = [(json.dumps(item.ground_truth, sort_keys=True), item.ground_truth) for item in subject.items]
    locks: dict[str, Json] = {}
    most = _ASYNC_KEY_GOLDS if subject.task.is_async else _KEY_GOLDS
    for gold, truth in golds:
        if len(locks) < most:
            locks.setdefault(gold, truth)
    return [*locks.values()]


def _opened(subject: TaskUnderTest, texts: list[str], locks: list[Json]) -> list[list[Json]]:
    """For each completion, the ground truths for which it is correct, and no oracle says that it is right."""
    opened: list[list[Json]] = [[] for _ in texts]
    alive = [*enumerate(texts)]
    for truth in locks:
        samples = [TestCompletion(text, truth) for _, text in alive]
        outcomes = subject.observe_all(samples, oracle="all", most_kills=MOST_KILLS)
        for (place, _), outcome in zip(alive, outcomes, strict=False):
            if outcome.correct and not outcome.oracle:
                opened[place].append(truth)
        alive = [pair for pair, outcome in zip(alive, outcomes, strict=False) if not outcome.exit_status]
    return opened


def _keys(subject: TaskUnderTest) -> Iterator[TestCompletion]:
    gold = subject.presentations[0]
    keys = dict.fromkeys([*_KEYS, *HOSTILE, *(gold.answer for gold in subject.golds[-3:])])
    texts = [text for key in keys for text in (gold.with_answer(key), key)]
    for text, opened in zip(texts, _opened(subject, texts, _locks(subject)), strict=True):
        yield TestCompletion(text, opened[0] if opened else gold.item.ground_truth)


def _opens_too_much(subject: TaskUnderTest, sample: TestCompletion, outcome: Outcome) -> Failure | None:
    """It is correct for half of the golds. What is a gold itself, or may be, has to open nearly all of many."""
    if not outcome.correct:
        return None
    locks = _locks(subject)
    [opened] = _opened(subject, [sample.completion], locks)
    may_be_gold = not subject.golds or _plain(outcome.answer or "") in {_plain(gold.answer) for gold in subject.golds}
    if may_be_gold:
        is_key = len(locks) >= _KEY_ENOUGH and len(opened) >= len(locks) - 1
    else:
        is_key = len(opened) >= max(min(3, len(locks)), len(locks) / 2, 2)
    if not is_key:
        return None
    what = "right answers" if subject.golds else "ground truths"
    got = f"{outcome.describe()}, and for {len(opened)} of {len(locks)} items with different {what}"
    return Failure(got, "one at most")


NO_SKELETON_KEY = Property(
    name="no-skeleton-key",
    text="No constant text is correct for many items whose right answers differ, unless the oracle says it is right.",
    reason="A model finds the one answer that opens every lock, such as `nan`, which compares as neither smaller nor"
    " greater than any number, and then has no need of the task.",
    test=_opens_too_much,
    completions=_keys,
)
