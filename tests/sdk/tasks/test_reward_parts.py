"""Rewards of several named parts: what the SDK adds up, what it refuses, and where the parts are seen."""

import pickle

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.conftest import options_source
from tinyzero_sdk import Completion, RewardPart, Score, load_task
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import BrokenTaskError, SettingsError
from tinyzero_sdk.tasks.score_guard import ScoreGuard
from tinyzero_sdk.text import last_tagged

INFO = """
from tinyzero_sdk import RewardPart

@hookimpl
def info():
    return TaskInfo(parts={"right": RewardPart(), "digits": RewardPart(0.25, description="digits alone")})
"""
SCORE = """
@hookimpl
def score(answer, ground_truth):
    right = answer.strip() == str(ground_truth)
    return Score.of_parts({"right": float(right), "digits": float(answer.isdigit())}, correct=right)
"""
FILE = [("<answer>1</answer>", 1), ("<answer>2x</answer>", 2), ("<answer>x</answer>", 3), ("nothing", 4)]


@pytest.fixture
def path(write_task):
    return write_task(info=INFO, score=SCORE)


def test_the_reward_is_the_weighted_sum_of_the_parts(path):
    task = load_task(path)
    assert task.info.score_range == (0.0, 1.25)
    assert task.score_completion("<answer>3</answer>", 3) == Score(1.25, True, "ok", "3", {"right": 1, "digits": 1})
    assert task.score_completion("<answer>4</answer>", 3) == Score(0.25, False, "wrong", "4", {"right": 0, "digits": 1})
    assert task.score_completion("4", 3) == Score(0.0, False, "no_answer", None, {"right": 0, "digits": 0})


def test_options_set_the_weights_and_travel_with_the_task(path):
    task = pickle.loads(pickle.dumps(load_task(path, options={"weights": {"digits": -1}})))
    assert task.info.score_range == (-1.0, 1.0)
    assert task.settings == {"weights": {"right": 1.0, "digits": -1.0}}
    assert task.score_completion("<answer>4</answer>", 3).value == -1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"digit": 1}}, "'task.weights.digit'; did you mean 'task.weights.digits'"),
        ({"weights": {"digits": "much"}}, "task.weights.digits: got 'much'"),
        ({"weights": {"digits": float("inf")}}, "expected finite weights"),
        ({"weights": {"digits": 1e39}}, "from 0 to 1e.39; expected finite weights"),
        ({"weights": {"digits": 0, "right": 0}}, "not all of them 0"),
        ({"weights": 3}, "expected a weight for each part"),
        ({"weight": {"digits": 1}}, "has no options, but task.weights.right, got weight"),
    ],
)
def test_impossible_weights_are_refused(path, options, message):
    with pytest.raises(SettingsError, match=message):
        load_task(path, options=options)


def test_only_a_task_without_parts_may_have_an_option_named_weights(write_task):
    options = options_source("weights: int = 1")
    assert load_task(write_task(options=options), options={"weights": 2}).settings == {"weights": 2}
    with pytest.raises(BrokenTaskError, match="a field weights, by which users weight the parts"):
        load_task(write_task(info=INFO, score=SCORE, options=options))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ('{"task": RewardPart()}', "a part 'task'"),
        ('{"no name": RewardPart()}', "a part 'no name'"),
        ('{"class": RewardPart()}', "a part 'class'"),
        ('{"\ufb01x": RewardPart()}', "a part '\ufb01x'"),
        ("{1: RewardPart()}", "a part 1"),
        ("[RewardPart()]", "expected a mapping from names to RewardPart"),
        ('{"digits": 1.0}', "1.0 as part digits, expected a RewardPart"),
        ('{"digits": RewardPart("1")}', "as part digits, expected a RewardPart with a finite weight"),
        ('{"digits": RewardPart(float("nan"))}', "as part digits, expected a RewardPart with a finite weight"),
        ('{"digits": RewardPart(0)}', "weights are all 0"),
        ('{"digits": RewardPart(range=1.0)}', "part digits of range 1.0, expected two finite bounds"),
        ('{"digits": RewardPart(range=(1, 2))}', "part digits of range .1, 2., expected two finite bounds around 0"),
    ],
)
def test_impossible_parts_are_refused(write_task, parts, message):
    info = f"from tinyzero_sdk import RewardPart\n@hookimpl\ndef info(): return TaskInfo(parts={parts})"
    with pytest.raises(BrokenTaskError, match=message):
        load_task(write_task(info=info))


def test_parts_that_are_not_declared_have_no_sum(write_task):
    task = load_task(write_task(score=SCORE))
    assert task.score_completion("<answer>1</answer>", 1).reason == "error"
    assert "score returned parts that info() does not declare" in task.first_error


def guard(score, **parts):
    ranges = [sorted(part.weight * bound for bound in part.range) for part in parts.values()]
    bounds = (sum(low for low, _ in ranges), sum(high for _, high in ranges))
    return ScoreGuard("say", last_tagged, lambda answer, truth: score, bounds, None, parts)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (1.0, "expected Score.of_parts with the parts right, digits"),
        (Score(1.0, True), "expected Score.of_parts"),
        (Score.of_parts({"rigth": 1.0}, correct=True), "the part 'rigth'"),
        (Score.of_parts({"right": 1.5}, correct=True), "right=1.5 .float.; expected a finite number from 0 to 1"),
        (Score.of_parts({"right": float("nan")}, correct=True), "right=nan"),
        (Score.of_parts({"right": True}, correct=True), "right=True .bool.; expected a number"),
    ],
)
def test_invalid_parts_are_errors(score, message):
    with pytest.raises(BrokenTaskError, match=message):
        guard(score, right=RewardPart(), digits=RewardPart()).check(score, "1")


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 0), st.floats(0, 1e6).filter(bool), st.floats(0, 1)),
        min_size=1,
    )
)
def test_a_sum_of_parts_is_within_its_range_whatever_the_weights(drawn):
    parts = {name: RewardPart(weight, (low, high)) for name, (weight, low, high, _) in drawn.items()}
    values = {name: min(low + (high - low) * share, high) for name, (_, low, high, share) in drawn.items()}
    found = guard(None, **parts).check(Score.of_parts(values, correct=False), "1")
    assert found.parts == values
    assert found.value == pytest.approx(sum(parts[name].weight * value for name, value in values.items()), abs=1e-3)


@pytest.mark.slow
def test_wrappers_add_to_the_sum_and_may_not_take_the_name_of_a_part(write_task):
    task = load_task(write_task(info=INFO, score=SCORE), wrappers=["overlong(limit=10)"])
    score = task.score_completion(Completion("<answer>3</answer>", 10), 3)
    assert (score.value, score.parts) == (0.25, {"right": 1.0, "digits": 1.0, "task": 1.25, "overlong": -1.0})
    task = load_task(write_task(info=INFO, score=SCORE), wrappers=["repetition(size=1)"])
    shaped = load_task(write_task(), wrappers=["overlong(limit=4)"])
    assert task.score_completion("1 1 <answer>1</answer>", 1).parts["repetition"] < 0
    assert shaped.score_completion(Completion("<answer>1</answer>", 4), 1).parts == {"task": 1.0, "overlong": -1.0}
    named = INFO.replace("digits", "overlong")
    with pytest.raises(SettingsError, match=r"overlong\(limit=10\) adds a part named overlong, which the"):
        load_task(write_task(info=named, score=SCORE), wrappers=["overlong(limit=10)"])


@pytest.mark.slow
@pytest.mark.usefixtures("scored_in_process")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_parts_are_in_scored_files_summaries_and_comparisons(run, path, tmp_path, write_task, ending):
    outputs, scored = tmp_path / "outputs.jsonl", tmp_path / f"scored.{ending}"
    rows = ('{"completion": "%s", "ground_truth": %d}\n' % row for row in FILE)  # noqa: UP031
    outputs.write_text("".join(rows), encoding="utf-8")
    code, out, _ = run("score", outputs, "--task", path, "-o", scored)
    assert (code, "mean of each part: right 0.25 · digits 0.25" in out) == (0, True)
    kept = pq.read_table(scored)["parts"].to_pylist() if ending == "parquet" else None
    kept = [dict(parts) for parts in kept] if kept else [row["parts"] for row in read_rows(scored)]
    assert kept == [{"right": r, "digits": d} for r, d in [(1, 1), (0, 0), (0, 0), (0, 0)]]
    plain, rescored = write_task("plain"), tmp_path / f"again.{ending}"
    assert run("score", scored, "--task", plain, "-o", rescored, "--allow-version-mismatch")[0] == 0
    columns = pq.read_table(rescored).column_names if ending == "parquet" else list(next(read_rows(rescored)))
    assert "parts" not in columns  # those were another scorer's
    looser = write_task(info=INFO, score=SCORE.replace("answer.isdigit()", "answer[:1].isdigit()"))
    now = tmp_path / f"now.{ending}"
    code, out, _ = run("rescore", scored, "--task", looser, "-o", now)
    assert code == 1
    lines = {words[0]: words[1:] for line in out.splitlines() if (words := line.split())}
    assert lines["right"] == ["0.25", "0.25", "0", "0"]
    assert lines["digits"] == ["0.25", "0.5", "1", "0"]
    assert "\n  parts: digits 0 → 1\n" in out
    code, out, _ = run("compare", scored, now, "--by", "ground_truth")
    lines = {words[1]: words[2:5] for line in out.splitlines() if (words := line.split())[:1] == ["part"]}
    assert (code, lines) == (0, {"right": ["0.250", "0.250", "+0.000"], "digits": ["0.250", "0.500", "+0.250"]})


def test_tasks_lists_the_weights(run, path):
    _, out, _ = run("tasks", path)
    assert "task.weights.digits  0.25     0 to 1  digits alone" in out
