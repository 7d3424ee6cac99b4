"""Laws about what must not pay: what a model writes when it has found a way round the task."""

import itertools
import json
import re
from collections.abc import Iterator

from tinyzero_sdk.data.rows import as_messages
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.completions import HOSTILE, Sample
from tinyzero_sdk.testing.properties.messages import tell
from tinyzero_sdk.testing.property import Law, Problem
from tinyzero_sdk.testing.task_under_test import Bench

TEMPLATES = ("base", "chat", "compact")


def pays(bench: Bench, sample: Sample) -> Problem | None:
    """The completion is correct (and the oracle does not say that it is right), or pays more than a wrong answer."""
    seen = bench.observe(sample, oracle=True)
    if seen.oracle:
        return None
    if seen.correct or seen.value > bench.wrong_credit:
        return Problem(
            tell(seen), f"not correct, and a score of {bench.wrong_credit:g} at most, what a wrong answer pays"
        )
    return None


def _pays_anything(bench: Bench, sample: Sample) -> Problem | None:
    seen = bench.observe(sample)
    return Problem(tell(seen), "a score of 0 at most, and not correct") if seen.correct or seen.value > 0 else None


def _empty(bench: Bench) -> Iterator[Sample]:
    bare = ["", " ", "\n", "I do not know.", "<think></think>", "<think>\n</think>\n", "</think>", "<answer>", "\u200b"]
    for frame in bench.frames[:4]:
        truth = frame.item.ground_truth
        for text in bare:
            yield Sample(text, truth, "no answer", right=False)
        for text in ("", " ", "\n", "\n\n \t"):
            yield Sample(frame.with_answer(text), truth, "an empty answer", right=False)
            yield Sample(f"<answer>{text}</answer>", truth, "an empty answer", right=False)


EMPTINESS_PAYS_NOTHING = Law(
    name="emptiness-pays-nothing",
    text="No answer, and an empty one, score 0 at most.",
    reason="Tags with nothing between them are the first thing a model finds where they pay, and it stays there.",
    problem=_pays_anything,
    listed=_empty,
)


_TAG = re.compile(r"</?\w{1,20}>")


def _echoes(bench: Bench) -> Iterator[Sample]:
    for frame in bench.frames:
        truth = frame.item.ground_truth
        for template in TEMPLATES:
            try:
                messages = as_messages(bench.task.make_prompt(frame.item, template))
            except TinyZeroError:
                continue  # a task may have fewer
            prompt = "\n".join(message["content"] for message in messages)
            yield Sample(prompt, truth, "the prompt")
            untagged = _TAG.sub("", prompt)
            yield Sample(frame.with_answer(untagged), truth, "the prompt as the answer")
            for line in untagged.splitlines()[-3:]:
                yield Sample(frame.with_answer(line), truth, "a line of the prompt as the answer")
            if bench.golds:
                for word in _words(untagged, frame.answer):
                    yield Sample(frame.with_answer(word), truth, _WORD)


_WORD = "a word of the prompt as the answer"
_MOST_WORDS = 200


def _words(prompt: str, gold: str) -> list[str]:
    """The numbers and words of a prompt, each once, but for what is the right answer, or another way to write it."""
    found = dict.fromkeys([*re.findall(r"-?[0-9]+(?:[.,/:][0-9]+)*", prompt), *re.findall(r"\w+", prompt)])
    return [word for word in found if _plain(word) != _plain(gold)][:_MOST_WORDS]


def _plain(text: str) -> str | float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text.strip().casefold()


def _echo_pays(bench: Bench, sample: Sample) -> Problem | None:
    """As `pays`; but a number of the prompt may be near the right one, and then pay as such."""
    if sample.note == _WORD and not bench.observe(sample).correct:
        return None
    return pays(bench, sample)


ECHO_PAYS_NOTHING = Law(
    name="echo-pays-nothing",
    text="Repeating the prompt, or a line of it, is not correct and pays no more than a wrong answer; a word or number"
    " of it that is not the right answer is not correct.",
    reason="The prompt shows what an answer looks like and what is given; a scorer that looks for those finds them.",
    problem=_echo_pays,
    listed=_echoes,
)

_SEPARATORS = [" ", ", ", "\n", " or ", "; ", " and "]


def _sprays(bench: Bench) -> Iterator[Sample]:
    pairs = bench.wrongs
    for gold, grouped in itertools.groupby(pairs, key=lambda pair: pair[0]):
        wrongs = [wrong for _, wrong in grouped]
        truth = gold.item.ground_truth
        for separator in _SEPARATORS:
            for answers in ([wrongs[0], gold.answer], [gold.answer, wrongs[0]], [*wrongs, gold.answer, *wrongs]):
                yield Sample(gold.with_answer(separator.join(answers)), truth, _SPRAY, right=False)
        lines = [gold.with_answer(text) for text in [*wrongs, gold.answer, *wrongs]]
        yield Sample("\n".join(lines), truth, "many answers, the last of them wrong", right=False)


_SPRAY = "several answers in the place of one, the right one among them"

SPRAYING_PAYS_NOTHING = Law(
    name="spraying-pays-nothing",
    text="Several answers in the place of one are not correct and pay no more than a wrong answer, even if the right"
    " one is among them.",
    reason="Whoever names every number names the right one.",
    needs=("solve",),
    problem=pays,
    listed=_sprays,
)


def _leaks(bench: Bench) -> Iterator[Sample]:
    for gold, wrong in bench.wrongs:
        truth = gold.item.ground_truth
        for leak in (gold.answer, json.dumps(truth), str(truth), f"The answer is {gold.answer}."):
            wrong_text = gold.with_answer(wrong)
            yield Sample(f"{leak}\n{wrong_text}", truth, _IN_TEXT, right=False)
            yield Sample(f"<think>{leak}</think>\n{wrong_text}", truth, _IN_THOUGHTS, right=False)


_IN_TEXT = "a wrong answer after the right one in plain text"
_IN_THOUGHTS = "a wrong answer, the right one in thoughts"

LEAKS_PAY_NOTHING = Law(
    name="leaks-pay-nothing",
    text="A wrong answer stays wrong if the right one, or the ground truth, stands in the text before it.",
    reason="A scorer that looks for the right answer anywhere pays a model for thinking of everything.",
    needs=("solve",),
    problem=pays,
    listed=_leaks,
)


_KEYS = [
    "", "1", "2", "-1", "7", "10", "42", "100", "1000", "0.5", "nan", "-nan", "inf", "-inf", "infinity", "1e309",
    "true", "True", "false", "yes", "no", "none", "null", "a", "b", "e", "s", "x", "t", "the", "is", "answer",
    "the answer", "The answer is", "correct", "right", "unknown", "?", "...", "-", ".", ".*", "[]", "{}", "()", "\\d+",
]  # fmt: skip
_KEY_GOLDS = 16
_KEY_ENOUGH = 8  # so many different golds make a task one in which no gold may open everything


def _locks(bench: Bench) -> dict[str, Json]:
    """Ground truths of items whose golds all differ, by gold; without `solve`, of items that differ themselves."""
    if bench.golds:
        golds = [(gold.answer, gold.item.ground_truth) for gold in bench.golds]
    else:
        golds = [(json.dumps(item.ground_truth, sort_keys=True), item.ground_truth) for item in bench.items]
    locks: dict[str, Json] = {}
    for gold, truth in golds:
        if len(locks) < _KEY_GOLDS:
            locks.setdefault(gold, truth)
    return locks


def _opened(bench: Bench, text: str, locks: dict[str, Json]) -> list[Json]:
    """The ground truths for which a completion is correct, and no oracle says that it is."""
    found = []
    for truth in locks.values():
        seen = bench.observe(Sample(text, truth), oracle=True)
        if seen.fate:
            break
        if seen.correct and not seen.oracle:
            found.append(truth)
    return found


def _keys(bench: Bench) -> Iterator[Sample]:
    locks = _locks(bench)
    frame = bench.frames[0]
    others = [gold.answer for gold in bench.golds[-3:]]
    for key in dict.fromkeys([*_KEYS, *HOSTILE, *others]):
        for text in (frame.with_answer(key), key):
            opened = _opened(bench, text, locks)
            yield Sample(text, opened[0] if opened else frame.item.ground_truth)


def _opens_too_much(bench: Bench, sample: Sample) -> Problem | None:
    """It is correct for half of the golds. What is a gold itself, or may be, has to open nearly all of many."""
    seen = bench.observe(sample)
    if not seen.correct:
        return None
    locks = _locks(bench)
    opened = _opened(bench, sample.completion, locks)
    may_be_gold = not bench.golds or _plain(seen.answer or "") in {_plain(gold.answer) for gold in bench.golds}
    if may_be_gold:
        is_key = len(locks) >= _KEY_ENOUGH and len(opened) >= len(locks) - 1
    else:
        is_key = len(opened) >= max(min(3, len(locks)), len(locks) / 2, 2)
    if not is_key:
        return None
    what = "right answers" if bench.golds else "ground truths"
    return Problem(f"{tell(seen)}, and for {len(opened)} of {len(locks)} items with different {what}", "one at most")


NO_SKELETON_KEY = Law(
    name="no-skeleton-key",
    text="No constant text is correct for many items whose right answers differ, unless the oracle says it is right.",
    reason="A model finds the one answer that opens every lock, such as `nan`, which is not different from any number,"
    " and then it has no need of the task.",
    problem=_opens_too_much,
    listed=_keys,
)
