"""Properties of the data: the same seed gives the same, the splits are disjoint, and items are complete."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from random import Random

import pyarrow as pa

from tinyzero_sdk.data.files import JsonLinesWriter, ParquetWriter, read_rows
from tinyzero_sdk.data.rows import as_messages, item_to_row, row_to_item
from tinyzero_sdk.errors import BrokenTaskError, DataError, TinyZeroError
from tinyzero_sdk.records import Item, Json, Split
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.tasks.task import TEMPLATES
from tinyzero_sdk.testing.completions import near_miss
from tinyzero_sdk.testing.gold import Gold, TestCompletion
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox_child import short, show_item
from tinyzero_sdk.testing.task_under_test import TaskUnderTest

_SIZE = 96
_SPLITS: tuple[Split, ...] = ("train", "test")


def _candidates(subject: TaskUnderTest, split: Split, size: int, seed: int, start: int = 0) -> list[str]:
    assert subject.items  # raises if there are none
    return [show_item(item) for item in islice(subject.task.generate(split, size, seed=seed, start=start), size)]


def _examine_same_seed(subject: TaskUnderTest) -> Failure | None:
    for split in _SPLITS:
        first = _candidates(subject, split, _SIZE, subject.seed)
        subject.tried += len(first)
        ways = {
            "a second time": _candidates(subject, split, _SIZE, subject.seed),
            "in blocks of 7": [
                text
                for start in range(0, _SIZE, 7)
                for text in _candidates(subject, split, min(7, _SIZE - start), subject.seed, start)
            ],
            "in another process": subject.other_sandbox.candidates(split, _SIZE, seed=subject.seed, start=0),
        }
        for way, other in ways.items():
            if other != first:
                where, old, new = _difference(first, other)
                got = f"{split} item {where} was {old}, and {way} it is {new}"
                return Failure(got, "the same items from the same seed, however they are requested")
    return None


def _difference(first: Sequence[str], other: Sequence[str]) -> tuple[int, str, str]:
    pairs = enumerate(zip_longest(first, other, fillvalue="missing"))
    return next((place, old, new) for place, (old, new) in pairs if old != new)


SAME_SEED_SAME_DATA = Property(
    name="same-seed-same-data",
    text="The same seed gives the same items: again, in blocks of another size, and in another process.",
    reason="Worker processes each make a block; if an item depends on anything but split, seed and its index, the data"
    " change with the machine, and no result can be reproduced.",
    examine=_examine_same_seed,
)


def _examine_other_seed(subject: TaskUnderTest) -> Failure | None:
    expected = "other items from another seed (derive randomness with seeds.derive_seed)"
    first = _candidates(subject, "train", _SIZE, subject.seed)
    subject.tried += len(first)
    other = _candidates(subject, "train", _SIZE, subject.seed + 1)
    if len(set(first)) < len(first) and set(first) == set(other):
        raise NotChecked(f"too few items: only {len(set(first))} are different")
    if first == other:
        return Failure(f"seeds {subject.seed} and {subject.seed + 1} give the same {len(first)} items", expected)
    for shift in (1, 2):
        pairs = list(zip(first[shift:], other, strict=False))
        if len(pairs) > 8 and sum(left == right for left, right in pairs) > len(pairs) / 2:
            got = f"seed {subject.seed + 1} gives the items of seed {subject.seed}, shifted by {shift}"
            return Failure(got, expected)
    return None


OTHER_SEED_OTHER_DATA = Property(
    name="other-seed-other-data",
    text="Another seed gives other items, or another order, and not the same items shifted.",
    reason="If an item's index is added to the seed, runs with the seeds 1 and 2 share all but one of their items.",
    examine=_examine_other_seed,
)


def _examine_splits(subject: TaskUnderTest) -> Failure | None:
    task = subject.task
    trained = {task.item_key(item): item for item in subject.items}
    shown = {show_item(item): item for item in subject.items}
    if not subject.test_items:
        got = f"no problem is held out: the task has {len(trained)} in all, in the training split"
        return Failure(got, "enough different problems for both splits (vary them with the index and the seed)")
    for item in subject.test_items:
        subject.tried += 1
        key = task.item_key(item)
        if key in trained:
            return Failure(f"the key {short(key)} is in train and in test", "no problem in both splits")
        if show_item(item) in shown:
            keys = f"{short(task.item_key(shown[show_item(item)]))} and {short(key)}"
            got = f"{show_item(item)} is in train and in test, with the keys {keys}"
            return Failure(got, "one key for one problem")
    return None


SPLITS_DISJOINT = Property(
    name="splits-disjoint",
    text="Both splits have problems, and no problem is in both.",
    reason="Testing a model on its training problems tests nothing, and without held-out ones nothing is tested.",
    examine=_examine_splits,
)


def _prompts(subject: TaskUnderTest, item: Item) -> dict[str, str]:
    """The prompts of an item by template, as JSON; templates that the task lacks are ignored."""
    prompts = {}
    for template in TEMPLATES:
        try:
            prompts[template] = json.dumps(as_messages(subject.task.make_prompt(item, template)))
        except TinyZeroError as error:  # a task says so that it has no such template
            if isinstance(error, BrokenTaskError):
                raise
    return prompts


def _examine_prompts(subject: TaskUnderTest) -> Failure | None:
    seen: dict[str, Item] = {}
    for item in [*subject.items, *subject.test_items]:
        subject.tried += 1
        prompts = _prompts(subject, item)
        if not prompts:
            return Failure(f"no prompt for {item}", f"one in at least one of the templates {', '.join(TEMPLATES)}")
        for template, prompt in prompts.items():
            if not any(message["content"].strip() for message in json.loads(prompt)):
                return Failure(f"an empty prompt in the template {template} for {item}", "a prompt with text")
            other = seen.setdefault(prompt, item)
            if other.ground_truth != item.ground_truth:
                got = f"one {template} prompt, {short(prompt)}, for {other.ground_truth} and {item.ground_truth}"
                return Failure(got, "different prompts for different ground truths")
    return None


PROMPTS_COMPLETE = Property(
    name="prompts-complete",
    text="Every item has a prompt in at least one template, and items with different ground truths have different"
    " prompts.",
    reason="A prompt that omits what the answer depends on asks for a guess.",
    examine=_examine_prompts,
)


def _examine_difficulty(subject: TaskUnderTest) -> Failure | None:
    task = subject.task
    for item in [*subject.items, *subject.test_items]:
        subject.tried += 1
        task.difficulty(item)  # raises for what is not finite
    batch = task.generate("train", _SIZE, seed=subject.seed)
    if isinstance(batch, ItemColumns):
        together = [float(value) for value in task.difficulties(batch)]
        for item, value in zip(batch, together, strict=True):
            if value != task.difficulty(item):
                got = f"`difficulties` says {value:g}, `difficulty` {task.difficulty(item):g} for {item}"
                return Failure(got, "the same number from both")
    return None


DIFFICULTY_DEFINED = Property(
    name="difficulty-defined",
    text="Every item has a finite difficulty, and `difficulties` gives the same as `difficulty`.",
    reason="Results and curricula are grouped by difficulty; an item without one is in no group.",
    examine=_examine_difficulty,
)


def _to_be_stored(golds: Sequence[Gold]) -> Iterator[TestCompletion]:
    others = [gold.answer for gold in golds]
    choose = Random(0).randrange
    for gold in golds:
        yield gold.sample(gold.completion, "gold")
        for _ in range(3):
            answer = near_miss(gold.answer, others, choose)
            yield gold.sample(gold.with_answer(answer), "near gold")


def _examine_storage(subject: TaskUnderTest) -> Failure | None:
    samples = list(_to_be_stored(subject.presentations))
    items = [gold.item for gold in subject.presentations]
    for ending in ("jsonl", "parquet"):
        try:
            stored = _through_file(subject, items, ending)
        except (DataError, pa.ArrowException) as error:
            if ending == "parquet" and isinstance(error, pa.ArrowException):
                continue  # Parquet has no such type; `tinyzero data` says so and offers JSON Lines
            return Failure(f"{ending}: {error}", "items that a file can hold")
        truths = dict(zip([json.dumps(item.ground_truth, sort_keys=True) for item in items], stored, strict=True))
        subject.tried += len(samples)
        restored = [TestCompletion(sample.completion, truths[sample.key[1]]) for sample in samples]
        before, after = subject.observe_all(samples), subject.observe_anew(restored)  # as JSON the truths are the same
        for sample, other, old, new in zip(samples, restored, before, after, strict=True):
            if old.score != new.score:
                got = f"{new.describe()}, after its ground truth was read from {ending} as {other.ground_truth}"
                return Failure(got, f"as before: {old.describe()}", sample)
    return None


def _through_file(subject: TaskUnderTest, items: Sequence[Item], ending: str) -> list[Json]:
    """The ground truths of items after a file was written and read."""
    templates = [next(iter(_prompts(subject, item)), TEMPLATES[0]) for item in items]
    rows = [
        item_to_row(subject.task, item, index=place, split="train", template=template)
        for place, (item, template) in enumerate(zip(items, templates, strict=True))
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"items.{ending}"
        if ending == "jsonl":
            with JsonLinesWriter(path) as lines:
                lines.write(rows)
        else:
            with ParquetWriter(path) as table:
                table.write(pa.Table.from_pylist(rows))
        return [row_to_item(row).ground_truth for row in read_rows(path)]


TRUTH_SURVIVES_FILES = Property(
    name="truth-survives-files",
    text="A ground truth read from JSON Lines or Parquet gives the same scores as the original.",
    reason="Training reads data files: a tuple that becomes a list, or an integer that becomes a float, must not turn"
    " right answers into wrong ones.",
    examine=_examine_storage,
)
