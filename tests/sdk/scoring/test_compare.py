"""Comparing scored files: intervals equal to statsmodels' and scipy's, symmetry, and what cannot be compared."""

import json
import shutil
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dummy_runs import write_run
from tests.sdk.rows import write_rows
from tinyzero_sdk.errors import DataError
from tinyzero_sdk.scoring.compare import CompareOptions, compare_files

SCORER = {"task": "say", "task_version": "1", "task_options": '{"top": 9}', "task_wrappers": "[]"}


def rows_of(correct, **columns):
    """Scored rows: problem g has a completion for each entry of correct[g]."""
    return [
        {"extra_info": {"key": f"problem {g}", "difficulty": g % 3}, "completion": "text", "sample": s}
        | {"score": float(right), "correct": bool(right), "reason": "ok" if right else "wrong", "answer": None}
        | SCORER
        | {"finished": bool(right), "token_count": 10 + g + s}
        | columns
        for g, flags in enumerate(correct)
        for s, right in enumerate(flags)
    ]


@pytest.fixture
def compare(tmp_path):
    """Compare lists of rows, each written to a file of its own."""

    def compare(*files, ending="jsonl", **options):
        paths = [tmp_path / f"{place}.{ending}" for place in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            write_rows(path, rows)
        return compare_files(paths, CompareOptions(**options))

    return compare


def two_models(problems):
    g, s = np.meshgrid(np.arange(problems), np.arange(4), indexing="ij")
    return (g * g + 3 * s) % 7 < 3, (g * g + g + 5 * s) % 11 < 5


# By statsmodels 0.15.0, for the problems' means d = b.mean(1) - a.mean(1) of `two_models`:
#     DescrStatsW(d).tconfint_mean()
# and, equal to these, for each completion, clustered by problem:
#     OLS((b * 1.0 - a).ravel(), np.ones(4 * problems)).fit(
#         cov_type="cluster", cov_kwds={"groups": np.repeat(np.arange(problems), 4)}, use_t=True).conf_int()
STATSMODELS = {40: (-0.01860499379297636, 0.06860499379297635), 150: (0.0027712699921388084, 0.05056206334119453)}
# By scipy 1.17.1:
#     scipy.stats.bootstrap((d,), np.mean, n_resamples=999, method="percentile", rng=np.random.default_rng(0))
SCIPY = {40: (-0.0125, 0.06875), 150: (0.005000000000000001, 0.051666666666666666)}


@pytest.mark.parametrize("problems", [40, 150])
def test_intervals_equal_statsmodels_and_scipy(compare, problems):
    a, b = map(rows_of, two_models(problems))
    (comparison,) = compare(a, b).comparisons
    assert comparison.accuracy.interval == pytest.approx(STATSMODELS[problems], abs=1e-12)
    (comparison,) = compare(a, b, resamples=999).comparisons
    assert comparison.accuracy.interval == pytest.approx(SCIPY[problems], abs=1e-12)


def test_an_interval_of_few_problems_stays_within_what_is_possible(compare):
    better = [row | {"score": 9 * row["score"]} for row in rows_of([[1], [0]])]
    (comparison,) = compare(rows_of([[0], [0]]), better).comparisons
    assert comparison.accuracy.interval == (-1.0, 1.0)
    assert comparison.metrics[0].interval[1] > 9  # a score may be anything


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_both_directions_mirror_each_other_and_order_does_not_matter(compare, ending):
    a, b = map(rows_of, two_models(12))
    (there,) = compare(a, b, ending=ending).comparisons
    (back,) = compare(b, a, ending=ending).comparisons
    (shuffled,) = compare(a[::-1], [b[place] for place in np.random.default_rng(0).permutation(len(b))]).comparisons
    names = ["accuracy", "mean score", "pass@2", "pass@4", "cut off", "tokens", "ok", "wrong", "0", "1", "2"]
    assert [one.name for one in everything(there)] == names
    for one, other, same in zip(everything(there), everything(back), everything(shuffled), strict=True):
        assert (one.baseline, one.other) == (other.other, other.baseline)
        assert one.difference == pytest.approx(-other.difference, abs=1e-15)
        assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]), abs=1e-14)
        assert one.interval == pytest.approx(same.interval, abs=1e-14)
    assert (there.better, there.worse) == (back.worse, back.better) == (shuffled.better, shuffled.worse)
    assert (there.newly_solved, there.no_longer_solved) == (back.no_longer_solved, back.newly_solved)
    assert [change.problem for change in there.gains] == [change.problem for change in back.losses]


def everything(comparison):
    return [comparison.accuracy, *comparison.metrics, *comparison.by_reason, *comparison.by_difficulty]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(st.tuples(*[st.lists(st.booleans(), min_size=1, max_size=5)] * 2), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_pass_at_k_is_the_mean_over_subsets_of_problems_with_enough(tmp_path_factory, problems, k):
    enough = [pair for pair in problems if min(map(len, pair)) >= k]
    if not enough:
        return
    directory = tmp_path_factory.mktemp("compare")
    paths = [write_rows(directory / f"{side}.jsonl", rows_of([pair[side] for pair in problems])) for side in (0, 1)]
    metrics = compare_files(paths, CompareOptions(pass_at=(k,))).comparisons[0].metrics
    passed = next(one for one in metrics if one.name == f"pass@{k}")
    means = [np.mean([np.mean([*map(any, combinations(pair[side], k))]) for pair in enough]) for side in (0, 1)]
    assert (passed.problems, passed.baseline, passed.other) == (len(enough), *map(pytest.approx, means))


def test_problems_of_several_tasks_are_told_apart(compare):
    def both(first, second):
        return rows_of(first, task="say") + rows_of(second, task="sum")

    a, b = both([[0], [0], [1]], [[0], [1]]), both([[0], [1], [1]], [[1], [0]])
    report = compare(a, b)
    (comparison,) = report.comparisons
    assert report.problems == 5
    found = [(one.name, one.problems, one.baseline, one.other) for one in comparison.by_task]
    assert found == [("say", 3, pytest.approx(1 / 3), pytest.approx(2 / 3)), ("sum", 2, 0.5, 0.5)]
    assert [change.problem for change in comparison.gains] == ["sum: problem 0", "say: problem 1"]
    (alone,) = compare(rows_of([[0]], task="say"), rows_of([[1]], task="named otherwise")).comparisons
    assert (alone.better, alone.by_task) == (1, [])


def test_flips_name_problems_and_rows(compare):
    a, b = rows_of([[0, 0], [1, 0], [1, 1], [0, 1]]), rows_of([[1, 1], [0, 0], [1, 1], [1, 1]])
    (comparison,) = compare(a, b[2:] + b[:2]).comparisons
    assert (comparison.better, comparison.worse) == (2, 1)
    assert (comparison.newly_solved, comparison.no_longer_solved) == (1, 1)
    changes = [(change.problem, change.correct, change.rows) for change in (*comparison.gains, *comparison.losses)]
    assert changes == [("problem 0", (0, 2), (1, 7)), ("problem 3", (1, 2), (7, 5)), ("problem 1", (1, 0), (3, 1))]


def test_what_is_not_in_all_files_is_reported(compare):
    a, b, c = (rows_of([[1]] * 4), rows_of([[1], [0], [1]], task_version="2"), rows_of([[1]] * 3))
    b += [{"extra_info": {"key": "problem 3"}, "completion": "not scored"}, {**a[0], "extra_info": {}}]
    for row in c:
        row["sampling"] = {"temperature": 0.5, "task_version": "1"}
    report = compare(a, b, c)
    assert report.problems == 3
    assert [file.other_problems for file in report.files] == [1, 0, 0]
    assert [file.ignored for file in report.files] == [{}, {"without a score": 1, "without extra_info.key": 1}, {}]
    assert report.differing == {
        "task_version": [["1"], ["1", "2"], ["1"]],
        **{f"sampling.{name}": [None, None, [value]] for name, value in c[0]["sampling"].items()},
    }
    for row in b:
        row["sampling"] = {"temperature": 0, "task_version": "2"}
    report = compare(b, c)
    assert report.differing == {"task_version": [["1", "2"], ["1"]], "sampling.temperature": [[0], [0.5]]} | {
        "sampling.task_version": [["2"], ["1"]]
    }
    assert report.comparisons[0].accuracy.interval is not None
    assert compare(a[:1], [{**a[0], "correct": False}]).comparisons[0].accuracy.interval is None  # of one problem


def test_a_list_or_object_identifies_a_problem_in_both_formats(compare, tmp_path):
    plain = [
        {"ground_truth": [1, g]} | {name: row[name] for name in SCORED} for g, row in enumerate(rows_of([[1]] * 3))
    ]
    compare(plain, plain, ending="parquet")
    compare(plain, plain)
    assert compare_files([tmp_path / "0.jsonl", tmp_path / "0.parquet"]).problems == 3
    for row in plain:
        row["ground_truth"] = "a text may be that of many problems"
    with pytest.raises(DataError, match=r"no column identifies the problems in all files; .* name another with --by"):
        compare(plain, plain)
    assert compare(plain, plain, key="score").problems == 1


SCORED = ("score", "correct", "reason", "answer")


def test_files_that_cannot_be_compared_are_refused(compare, tmp_path):
    rows = rows_of([[1, 0]])
    other = [row | {"extra_info": {"key": "elsewhere"}} for row in rows]
    with pytest.raises(DataError, match=r"no problem in common by extra_info.key, such as 'problem 0' and 'elsewhere'"):
        compare(rows, other)
    with pytest.raises(DataError, match=r"no problem has 8 completions in both .*; at most 2 are possible"):
        compare(rows, rows, pass_at=(1, 8))
    pq.write_table(pa.table({"score": pa.array([], pa.float64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="has no row at all"):
        compare_files([tmp_path / "0.jsonl", tmp_path / "empty.parquet"])


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("not JSON", "not JSON: Expecting value at column 1"),
        ("{}", "no score, correct, reason"),
        ('{"score": NaN, "correct": true, "reason": "ok"}', "NaN, which JSON does not have"),
        ('{"score": "1.0", "correct": true, "reason": "ok"}', r"score is '1.0' \(str\); expected a finite number"),
        ('{"score": 1, "correct": 1, "reason": "ok"}', r"correct is 1 \(int\); expected true or false"),
        ('{"score": 1, "correct": true, "reason": "good"}', r"reason is 'good' \(str\); expected one of ok, wrong"),
    ],
)
def test_a_row_without_a_score_costs_itself_and_a_file_of_them_says_what_is_wrong(compare, tmp_path, line, fault):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{line}\n{line}\n")
    rows = rows_of([[1, 0]])
    compare(rows, rows)
    with pytest.raises(DataError, match=f"bad.jsonl has no row with a score; row 1: {fault}.*`tinyzero score` wrote"):
        compare_files([tmp_path / "0.jsonl", path])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + line)
    compared = compare_files([tmp_path / "0.jsonl", path]).files[1]
    assert (compared.completions, sum(compared.ignored.values())) == (2, 1)


def test_a_run_stands_for_its_last_evaluation_and_alone_for_its_first_and_last(tmp_path):
    run = write_run(tmp_path / "run", steps=4, completions=400, tokens=False)
    alone = compare_files([run])
    assert alone.differing["evaluation.step"] == [[0], [4]]
    report = compare_files([run / "checkpoints/step_0", run])  # an evaluation outlasts its checkpoint
    assert report.comparisons[0].accuracy == alone.comparisons[0].accuracy
    with pytest.raises(DataError, match=r"step_99 has no evaluation at that step; the run has kept those at 0, 1, 2"):
        compare_files([run, run / "checkpoints/step_99"])
    with pytest.raises(DataError, match="is not a run; expected a scored file, a run directory, or RUN/checkpoints"):
        compare_files([tmp_path, run])
    shutil.rmtree(run / "completions")
    with pytest.raises(DataError, match="has kept no held-out completions; evaluate its model: tinyzero eval --model"):
        compare_files([run, run])
    with pytest.raises(DataError, match="is no run with two evaluations; compare needs something to compare with"):
        compare_files([run])
