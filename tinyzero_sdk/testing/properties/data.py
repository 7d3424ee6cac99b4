"""Laws about the data: the same from the same seed, splits apart, and nothing missing from an item."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from tinyzero_sdk.data.files import JsonLinesWriter, ParquetWriter, read_rows
from tinyzero_sdk.data.rows import as_messages, item_to_row, row_to_item
from tinyzero_sdk.errors import BrokenTaskError, DataError, TinyZeroError
from tinyzero_sdk.records import Item, Json, Split
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.testing.completions import Sample, near_miss
from tinyzero_sdk.testing.properties.messages import short, tell
from tinyzero_sdk.testing.properties.reward_hacking import TEMPLATES
from tinyzero_sdk.testing.property import Failure, Law, NotChecked
from tinyzero_sdk.testing.sandbox_child import show_item
from tinyzero_sdk.testing.task_under_test import Bench

_SIZE = 96
_SPLITS: tuple[Split, ...] = ("train", "test")


def _candidates(bench: Bench, split: Split, size: int, seed: int, start: int = 0) -> list[str]:
    return [show_item(item) for item in islice(bench.task.generate(split, size, seed=seed, start=start), size)]


def _examine_same_seed(bench: Bench) -> Failure | None:
    for split in _SPLITS:
        first = _candidates(bench, split, _SIZE, bench.seed)
        bench.tried += len(first)
        ways = {
            "a second time": _candidates(bench, split, _SIZE, bench.seed),
            "in blocks of 7": [
                text
                for start in range(0, _SIZE, 7)
                for text in _candidates(bench, split, min(7, _SIZE - start), bench.seed, start)
            ],
            "in another process": bench.other_judge.candidates(split, _SIZE, seed=bench.seed, start=0),
        }
        for way, other in ways.items():
            if other != first:
                where, old, new = _difference(first, other)
                got = f"{split} item {where} was {old}, and {way} it is {new}"
                return Failure(got, "the same items from the same seed, however they are asked for")
    return None


def _difference(first: Sequence[str], other: Sequence[str]) -> tuple[int, str, str]:
    for place, (old, new) in enumerate(zip(first, other, strict=False)):
        if old != new:
            return place, old, new
    place = min(len(first), len(other))
    return place, *("missing" if place >= len(items) else items[place] for items in (first, other))  # type: ignore[return-value]


SAME_SEED_SAME_DATA = Law(
    name="same-seed-same-data",
    text="The same seed gives the same items: again, in blocks of another size, and in another process.",
    reason="Worker processes each make a block; if an item depends on anything but split, seed and its number, the data"
    " change with the machine, and no result can be repeated.",
    examine=_examine_same_seed,
)


def test_items(bench: Bench) -> list[Item]:
    """The test items; none where all problems of a small task fell to the training split."""
    try:
        return bench.test_items
    except BrokenTaskError:
        raise
    except DataError:
        return []


def _examine_other_seed(bench: Bench) -> Failure | None:
    expected = "other items from another seed (derive what is random by seeds.derive_seed)"
    first = _candidates(bench, "train", _SIZE, bench.seed)
    bench.tried += len(first)
    other = _candidates(bench, "train", _SIZE, bench.seed + 1)
    if len(set(first)) < len(first) and set(first) == set(other):
        raise NotChecked(f"too few items to tell: there are only {len(set(first))} different ones")
    if first == other:
        return Failure(f"seeds {bench.seed} and {bench.seed + 1} give the same {len(first)} items", expected)
    for shift in (1, 2):
        pairs = list(zip(first[shift:], other, strict=False))
        if len(pairs) > 8 and sum(left == right for left, right in pairs) > len(pairs) / 2:
            got = f"seed {bench.seed + 1} gives the items of seed {bench.seed}, {shift} further on"
            return Failure(got, expected)
    return None


OTHER_SEED_OTHER_DATA = Law(
    name="other-seed-other-data",
    text="Another seed gives other items, or another order, and not the same ones shifted.",
    reason="Where the number of an item is added to the seed, runs with the seeds 1 and 2 share all but one of their"
    " items.",
    examine=_examine_other_seed,
)


def _examine_splits(bench: Bench) -> Failure | None:
    task = bench.task
    trained = {task.item_key(item): item for item in bench.items}
    shown = {show_item(item): item for item in bench.items}
    tested = test_items(bench)
    if not tested:
        raise NotChecked(f"no test items: the {len(trained)} problems there are fell to the training split")
    for item in tested:
        bench.tried += 1
        key = task.item_key(item)
        if key in trained:
            return Failure(f"the key {short(key)} is in train and in test", "no problem in both splits")
        if show_item(item) in shown:
            keys = f"{short(task.item_key(shown[show_item(item)]))} and {short(key)}"
            got = f"{show_item(item)} is in train and in test, with the keys {keys}"
            return Failure(got, "one key for one problem")
    return None


SPLITS_DISJOINT = Law(
    name="splits-disjoint",
    text="No problem is in the training and in the test split.",
    reason="A model that is tested on what it was trained on is not tested.",
    examine=_examine_splits,
)


def _prompts(bench: Bench, item: Item) -> dict[str, str]:
    """The prompts of an item by template, as JSON; templates that the task lacks are left out."""
    prompts = {}
    for template in TEMPLATES:
        try:
            prompts[template] = json.dumps(as_messages(bench.task.make_prompt(item, template)))
        except BrokenTaskError:
            raise
        except TinyZeroError:
            continue  # the way to say that there is no such template
    return prompts


def _examine_prompts(bench: Bench) -> Failure | None:
    seen: dict[str, Item] = {}
    for item in [*bench.items, *test_items(bench)]:
        bench.tried += 1
        prompts = _prompts(bench, item)
        if not prompts:
            return Failure(f"no prompt for {item}", f"one in at least one of the templates {', '.join(TEMPLATES)}")
        for template, prompt in prompts.items():
            if not any(message["content"].strip() for message in json.loads(prompt)):
                return Failure(f"an empty prompt in the template {template} for {item}", "a prompt that asks something")
            other = seen.setdefault(prompt, item)
            if other.ground_truth != item.ground_truth:
                got = f"one {template} prompt, {short(prompt)}, for {other.ground_truth} and {item.ground_truth}"
                return Failure(got, "another prompt for another ground truth")
    return None


PROMPTS_COMPLETE = Law(
    name="prompts-complete",
    text="Every item has a prompt in at least one template, and items with other ground truths have other prompts.",
    reason="A prompt that leaves out what the answer depends on asks for a guess.",
    examine=_examine_prompts,
)


def _examine_difficulty(bench: Bench) -> Failure | None:
    task = bench.task
    for item in [*bench.items, *test_items(bench)]:
        bench.tried += 1
        task.difficulty(item)  # raises for what is not finite
    batch = task.generate("train", _SIZE, seed=bench.seed)
    if isinstance(batch, ItemColumns):
        together = [float(value) for value in task.difficulties(batch)]
        for item, value in zip(batch, together, strict=True):
            if value != task.difficulty(item):
                got = f"`difficulties` says {value:g}, `difficulty` {task.difficulty(item):g} for {item}"
                return Failure(got, "the same number from both")
    return None


DIFFICULTY_DEFINED = Law(
    name="difficulty-defined",
    text="Every item has a finite difficulty, and `difficulties` gives the same as `difficulty`.",
    reason="Results are listed by difficulty, and curricula go by it; an item without one is in none of them.",
    examine=_examine_difficulty,
)


def _to_be_stored(bench: Bench) -> Iterator[Sample]:
    others = [frame.answer for frame in bench.frames]
    choices = iter(range(10**9))
    for frame in bench.frames:
        truth = frame.item.ground_truth
        yield Sample(frame.completion, truth, "gold")
        for _ in range(3):
            answer = near_miss(frame.answer, others, lambda count: next(choices) * 7 % count)
            yield Sample(frame.with_answer(answer), truth, "near gold")


def _examine_storage(bench: Bench) -> Failure | None:
    samples = list(_to_be_stored(bench))
    items = [frame.item for frame in bench.frames]
    for ending in ("jsonl", "parquet"):
        try:
            stored = _through_file(bench, items, ending)
        except (DataError, pa.ArrowException) as error:
            if ending == "parquet" and isinstance(error, pa.ArrowException):
                continue  # Parquet has no such type; `tinyzero data` says so and offers JSON Lines
            return Failure(f"{ending}: {error}", "items that a file can hold")
        truths = dict(zip([json.dumps(item.ground_truth, sort_keys=True) for item in items], stored, strict=True))
        for sample in samples:
            bench.tried += 1
            old = bench.observe(sample)
            truth = truths[json.dumps(sample.ground_truth, sort_keys=True)]
            new = bench.observe_anew(Sample(sample.completion, truth))  # as JSON the two are the same
            if old.verdict != new.verdict:
                got = f"{tell(new)}, once its ground truth was in {ending} and came back as {truth}"
                return Failure(got, f"as before: {tell(old)}", sample)
    return None


def _through_file(bench: Bench, items: Sequence[Item], ending: str) -> list[Json]:
    """The ground truths of items after they were written to a file and read."""
    rows = [item_to_row(bench.task, item, index=place, split="train", template=_template(bench, item))
            for place, item in enumerate(items)]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"items.{ending}"
        if ending == "jsonl":
            with JsonLinesWriter(path) as lines:
                lines.write(rows)
        else:
            with ParquetWriter(path) as table:
                table.write(pa.Table.from_pylist(rows))
        return [row_to_item(row).ground_truth for row in read_rows(path)]


def _template(bench: Bench, item: Item) -> str:
    return next(iter(_prompts(bench, item)), TEMPLATES[0])


TRUTH_SURVIVES_FILES = Law(
    name="truth-survives-files",
    text="A ground truth that was in JSON Lines or Parquet gives the same verdicts as one that was not.",
    reason="Training reads data files: a tuple that becomes a list, or an integer that becomes a float, must not turn"
    " right answers into wrong ones.",
    examine=_examine_storage,
)
