"""The summary: what identifies a prompt, what a length is, and that blocks and formats make no difference."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinyzero_sdk import Score
from tinyzero_sdk.data.arrow import to_list
from tinyzero_sdk.data.column_hash import hash_array, hash_values
from tinyzero_sdk.data.table import Block
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.scoring.outputs import read_outputs
from tinyzero_sdk.scoring.provenance import accept_any
from tinyzero_sdk.scoring.summary import SummaryBuilder


def summarised(rows, *, cut=0, tables=False, by=None, greedy=False):
    """The summary of rows that carry their score: `value` and `answer`."""
    builder = SummaryBuilder(by, greedy=greedy)
    for part in (rows[:cut], rows[cut:]):
        data = pa.Table.from_pylist(part) if tables else part
        blocks = [Block(list(range(len(part))), data, [], 1.0)] if part else []
        for batch in read_outputs(blocks, Path("rows"), accept_any):
            scores = ScoreColumns()
            for row in part:
                correct = row["value"] == 1.0
                reason: Any = "no_answer" if row["answer"] is None else "ok" if correct else "wrong"
                scores.add(Score(row["value"], correct, reason), row["answer"])
            builder.add(batch, scores)
    summary = builder.result()
    assert summary is not None
    return summary


def row(key, answer, value, **columns):
    output = {"prompt": key, "completion": f"say {answer}", "ground_truth": "1"}
    return output | {"answer": answer, "value": value} | columns


@pytest.mark.slow
def test_cuts_and_formats_make_no_difference():
    dice = random.Random(0)
    rows = [
        row(
            f"prompt {dice.randrange(12)}",
            dice.choice([None, "1", "2", "3"]),
            dice.choice([0.0, 0.1, 1.0]),
            extra_info={"difficulty": dice.randrange(20) / 10},
            token_count=dice.randrange(100),
        )
        for _ in range(200)
    ]
    whole = summarised(rows)
    assert whole.prompts == 12
    assert whole.length_unit == "tokens"
    assert sum(bucket.rows for bucket in whole.by_difficulty) == 200
    assert sum(outcome.rows for outcome in whole.by_reason) == 200
    assert all(bucket.low in {n / 10 for n in range(20)} for bucket in whole.by_difficulty)
    for cut, tables in ((70, False), (0, True), (70, True)):
        assert rounded(summarised(rows, cut=cut, tables=tables)) == rounded(whole)


def rounded(summary):
    """As JSON, up to the order in which floats were added."""
    return json.loads(json.dumps(summary.as_json(), allow_nan=False), parse_float=lambda text: round(float(text), 9))


@pytest.mark.parametrize("tables", [False, True])
def test_rows_without_a_key_count_alone(tables):
    rows = [row(key, "1", 1.0) for key in ("a", "a", None, None)]
    assert summarised(rows, tables=tables).prompts == 3
    assert summarised(rows, tables=tables, by="value").prompts == 1


def test_prompts_of_unlike_size_count_where_they_have_enough():
    rows = [row("a", "1", 1.0), row("b", "1", 1.0), row("b", "2", 0.0), row("b", "2", 0.5)]
    at_k = {entry.k: entry for entry in summarised(rows).at_k}
    assert list(at_k) == [1, 2, 3]
    assert (at_k[1].prompts, at_k[1].pass_at_k) == (2, pytest.approx(2 / 3))
    assert (at_k[3].prompts, at_k[3].pass_at_k, at_k[3].majority_at_k, at_k[3].best_at_k) == (1, 1.0, 0.0, 1.0)


@pytest.mark.parametrize("tables", [False, True])
def test_lengths_are_of_tokens_where_the_file_has_them(tables):
    (outcome,) = summarised(
        [row("a", "1", 1.0, tokens=[1, 2, 3]), row("a", "1", 1.0, tokens=[])], tables=tables
    ).by_reason
    assert (outcome.mean_length, outcome.max_length) == (1.5, 3)
    summary = summarised([row("a", "é", 1.0)], tables=tables)
    assert (summary.length_unit, summary.by_reason[0].mean_length) == ("characters", len("say é"))


def test_pass_at_1_of_equally_many_completions_is_the_accuracy_with_its_interval():
    rows = [row(str(place % 9), "1", float(place % 4 == 0)) for place in range(45)]
    summary = summarised(rows)
    assert summary.at_k[0].interval == pytest.approx(summary.interval, abs=1e-12)
    bounds = [entry.interval for entry in summary.at_k]
    assert all(low <= entry.pass_at_k <= high for entry, (low, high) in zip(summary.at_k, bounds, strict=True))


def test_greedy_completions_of_a_prompt_are_alike_without_being_a_fault():
    rows = [row(f"prompt {g}", "1", float(g % 2)) for g in range(100) for _ in range(4)]
    assert summarised(rows).signal.fault == "zero_std"
    greedy = summarised(rows, greedy=True).signal
    assert (greedy.fault, greedy.zero_std_frac, greedy.accuracy, greedy.completions) == (None, None, 0.5, 100)
    never = [one | {"answer": None, "value": 0.0} for one in rows]
    assert summarised(never, greedy=True).signal.fault == "no_answer"


def test_mean_of_the_known_lengths_and_error_over_prompts():
    counts, values = [2, 4, None, 9], [1.0, 0.0, 0.0, 0.0]
    pairs = zip(["a", "a", "b", "c"], values, counts, strict=True)
    summary = summarised([row(key, "1", value, token_count=count) for key, value, count in pairs])
    assert (summary.mean_length, summary.length_unit, summary.accuracy) == (5.0, "tokens", 0.25)
    assert summary.standard_error == pytest.approx(np.std([0.5, 0.0, 0.0], ddof=1) / np.sqrt(3))
    assert summarised([row("a", "1", 1.0, token_count=-1)]).mean_length is None


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_numbers_too_great_for_a_float_are_unknown(huge):
    rows = [row("a", "1", 1.0, extra_info={"difficulty": n}, token_count=n) for n in (huge, 7)]
    summary = summarised(rows)
    assert [(bucket.low, bucket.high, bucket.rows) for bucket in summary.by_difficulty] == [(7, 7, 1)]
    assert summary.by_reason[0].max_length == 7


def test_integers_that_a_float_cannot_hold_exactly_are_numbers_too():
    rows = [row("a", "1", 1.0, extra_info={"difficulty": n}) for n in (2**60 + 1, 1)]
    assert [bucket.rows for bucket in summarised(rows, tables=True).by_difficulty] == [1, 1]


CELLS = st.one_of(
    st.lists(st.none() | st.text("abé\0", max_size=3), max_size=6),
    st.lists(st.none() | st.integers(-3, 3), max_size=6),
    st.lists(st.none() | st.booleans(), max_size=6),
    st.lists(st.none() | st.lists(st.none() | st.text("ab", max_size=1), max_size=3), max_size=6),
    st.lists(
        st.none()
        | st.fixed_dictionaries({"a": st.none() | st.lists(st.integers(0, 2), max_size=2), "b": st.text("x")}),
        max_size=6,
    ),
    st.lists(st.floats(allow_nan=False), max_size=6),
)


@given(cells=CELLS, start=st.integers(0, 3))
@example(cells=[-1, -2, -1], start=0)
@example(cells=[None, [], [None]], start=0)
def test_columns_become_lists_and_hashes_are_equal_where_values_are(cells, start):
    array = pa.array(cells)[start:]
    values = cells[start:]
    assert to_list(array) == array.to_pylist() == values
    for hashes in (hash_array(array), hash_values(values)):
        assert hashes.dtype == np.uint64
        for one, first in zip(hashes.tolist(), values, strict=True):
            for other, second in zip(hashes.tolist(), values, strict=True):
                assert (one == other) == (first == second), (first, second)
