"""Rewards that compare the completions of one problem."""

import pickle

import pytest

from tests.sdk.rows import write_rows
from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.adapters.scorer import Scorer
from tinyzero_sdk.data.files import read_rows
from tinyzero_sdk.errors import BrokenTaskError, DataError, SettingsError
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.scoring.rescore import rescore_file
from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file

SCORE = """
import os, time

@hookimpl
def score(answer, ground_truth):
    if answer.startswith("raise"):
        raise ValueError(answer)
    if answer == "sleep":
        time.sleep(60)
    return Score(float(answer.lstrip("0") == str(ground_truth)), answer.lstrip("0") == str(ground_truth))
"""
RARE = """
from collections import Counter

@hookimpl
def score_group(answers, ground_truth, scores):
    if "compare and raise" in answers:
        raise ValueError(len(answers))
    if "compare and sleep" in answers:
        time.sleep(60)
    if "compare and die" in answers:
        os._exit(1)
    count = Counter(answers)
    return [score.value / count[answer] for answer, score in zip(answers, scores)]
"""
PARTS = """
from tinyzero_sdk import RewardPart

@hookimpl
def info():
    return TaskInfo(parts={"right": RewardPart(), "short": RewardPart(0.5)})

@hookimpl
def score(answer, ground_truth):
    right = answer.lstrip("0") == str(ground_truth)
    return Score.of_parts({"right": float(right)}, correct=right)

@hookimpl
def score_group(answers, scores):
    return [{"short": min(map(len, answers)) / len(answer)} if score.correct else {} for answer, score in
            zip(answers, scores)]
"""


def tagged(*answers):
    return [Completion("no answer" if answer is None else f"<answer>{answer}</answer>") for answer in answers]


@pytest.fixture
def rare(write_task):
    return load_task(write_task("rare", score=SCORE, score_group=RARE))


def test_hook_score_group(rare):
    """A completion by itself is a group of one; one without an answer takes no part."""
    scores = rare.score_group(tagged("3", "3", "4", None, "03"), 3)
    assert [score.value for score in scores] == [0.5, 0.5, 0.0, 0.0, 1.0]
    assert [score.reason for score in scores] == ["ok", "ok", "wrong", "no_answer", "ok"]
    assert [score.correct for score in scores] == [True, True, False, False, True]
    assert rare.score_completion("<answer>3</answer>", 3).value == rare.score("3", 3).value == 1.0
    assert rare.score_group(tagged(None), 3)[0].reason == "no_answer"
    assert pickle.loads(pickle.dumps(rare)).score_group(tagged("3", "3"), 3) == scores[:2]


@pytest.mark.usefixtures("scored_in_process")
def test_scorers_may_be_asynchronous_and_comparisons_may_not(write_task, tmp_path, monkeypatch):
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "cache"))
    task = load_task(write_task("later", score=SCORE.replace("def score(", "async def score("), score_group=RARE))
    with ScoringPool(task) as pool:
        scores = pool.score(tagged("3", "3", "4"), [3] * 3, [3])
    assert [(score.value, score.reason) for score in scores] == [(0.5, "ok"), (0.5, "ok"), (0.0, "wrong")]
    with pytest.raises(BrokenTaskError, match="score_group is async; only score may be"):
        load_task(write_task("never", score_group=RARE.replace("def score_group(", "async def score_group(")))


def test_parts_of_a_comparison_join_those_of_the_scorer(write_task):
    task = load_task(write_task("short", score=PARTS), options={"weights": {"short": 0.25}})
    scores = task.score_group(tagged("3", "0003", "4", None), 3)
    assert [score.value for score in scores] == [1.25, 1.0625, 0.0, 0.0]
    assert [dict(score.parts) for score in scores] == [
        {"right": 1.0, "short": 1.0},
        {"right": 1.0, "short": 0.25},
        {"right": 0.0, "short": 0.0},
        {"right": 0.0, "short": 0.0},
    ]
    assert scores[1].answer == "0003"


def test_wrappers_add_to_the_score_after_the_comparison(write_task):
    task = load_task(write_task("rare", score=SCORE, score_group=RARE), wrappers=["cosine(limit=10)", "format"])
    completions = [Completion(text.text, 5) for text in tagged("3", "3", "4", None)]
    for score, own in zip(task.score_group(completions, 3), (0.5, 0.5, 0.0, 0.0), strict=True):
        assert (score.unshaped, score.value) == (own, own + score.parts["cosine"] + score.parts.get("format_score", 0))


def test_what_scores_by_itself_failed_takes_no_part_in_the_comparison(rare):
    scores = rare.score_group(tagged("3", "raise", "3"), 3)
    assert [(score.value, score.reason) for score in scores] == [(0.5, "ok"), (0.0, "error"), (0.5, "ok")]
    assert rare.error_count == 1


def test_a_comparison_that_fails_is_an_error_of_the_whole_group(rare):
    scores = rare.score_group(tagged("3", "compare and raise", None, "raise"), 3)
    assert [score.reason for score in scores] == ["error"] * 4
    assert rare.error_count == 4
    rare.score_group(tagged("3", "3"), 3)
    assert rare.error_count == 4


@pytest.mark.parametrize(
    ("result", "code", "message"),
    [
        ("[1.0]", SCORE, "score_group returned .*expected a list of 2 rewards, one for each answer"),
        ("None", SCORE, "score_group returned None .*expected a list of 2"),
        ("[1.0, True]", SCORE, "score_group returned True .*expected a Score or a number"),
        ("[1.0, float('nan')]", SCORE, "score_group returned nan .*expected a finite number from 0 to 1"),
        ("[{}, {'long': 1}]", PARTS, "score_group returned the part 'long' .*expected one of right, short"),
        ("[{}, {'short': 2}]", PARTS, "score_group returned short=2.* expected a finite number from 0 to 1"),
        ("[1.0, 1.0]", PARTS, "score_group returned 1.0 .*a mapping with some of the parts right, short"),
    ],
)
def test_what_is_no_reward_for_each_answer_is_refused(write_task, result, code, message):
    hook = f"@hookimpl\ndef score_group(answers): return {result}\n"
    task = load_task(write_task("broken", score=code.partition("\n@hookimpl\ndef score_group")[0], score_group=hook))
    assert [score.reason for score in task.score_group(tagged("3", "4"), 3)] == ["error"] * 2
    with pytest.raises(BrokenTaskError, match=message):
        raise BrokenTaskError(task.first_error)


@pytest.mark.usefixtures("scored_in_process")
def test_pools_score_groups_of_any_size_and_order(rare):
    sizes = [1, 5, 2, 90, 1, 3]
    truths = [1 + number for number, size in enumerate(sizes) for _ in range(size)]
    with ScoringPool(rare) as pool:
        scores = pool.score(tagged(*truths), truths, sizes)
        assert [score.value for score in scores] == [1 / sizes[truth - 1] for truth in truths]
        with pytest.raises(ValueError, match="got 1 completions in groups"):
            pool.score(tagged(1), [1])


@pytest.mark.slow
def test_completions_cost_themselves_and_comparisons_their_group(rare):
    answers = ["1", "sleep", "1", "2", "compare and sleep", "3", "compare and raise", "4", "compare and die", "5", "5"]
    truths, sizes = [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [3, 2, 2, 2, 2]
    with ScoringPool(rare, workers=2, timeout=0.5) as pool:
        scores = pool.score(tagged(*answers), truths, sizes)
    failed = ["timeout"] * 2 + ["error"] * 4
    assert [score.reason for score in scores] == ["ok", "timeout", "ok", *failed, "ok", "ok"]
    assert [score.value for score in scores] == [0.5, 0, 0.5, 0, 0, 0, 0, 0, 0, 0.5, 0.5]
    assert pool.counts == {"timeout": 3, "error": 4}


def test_an_adapter_refuses_what_it_cannot_compare(rare):
    with pytest.raises(SettingsError, match=r"compares the completions of a problem .* train on it with"):
        Scorer(rare)


def rows_of(sizes, **columns):
    """Right answers to problems with so many completions each."""
    return [
        {"prompt": f"say {number}", "completion": f"<answer>{number}</answer>", "ground_truth": number, **columns}
        for number, size in enumerate(sizes, start=1)
        for _ in range(size)
    ]


@pytest.mark.usefixtures("scored_in_process")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_groups_of_files_are_those_of_the_prompt_wherever_blocks_end(rare, tmp_path, ending):
    sizes = [3, 1, *[7] * 60, 700, 2]  # blocks of JSON Lines have 1,024 rows
    source, output = tmp_path / f"rows.{ending}", tmp_path / f"scored.{ending}"
    write_rows(source, rows_of(sizes))
    report = score_file(rare, source, output, ScoringOptions(pass_at=(1,)))
    assert [row["score"] for row in read_rows(output)] == [1 / size for size in sizes for _ in range(size)]
    assert report.summary.prompts == len(sizes)
    again = rescore_file(rare, output, options=ScoringOptions(pass_at=(1,)))
    assert (again.compared, again.changed) == (sum(sizes), 0)


@pytest.mark.usefixtures("scored_in_process")
def test_files_whose_groups_are_not_known_are_refused(rare, tmp_path):
    source, output = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    write_rows(source, rows_of([1, 1]) * 2)
    with pytest.raises(DataError, match=r"rows.jsonl:3 .* earlier rows have too, .* sort the rows by prompt"):
        score_file(rare, source, output)
    write_rows(source, [row | {"prompt": None} for row in rows_of([2])])
    with pytest.raises(DataError, match=r"rows.jsonl:1 has nothing to tell of which problem it is a completion"):
        score_file(rare, source, output)
    write_rows(source, [*rows_of([2]), rows_of([1])[0] | {"prompt": None}])
    with pytest.raises(DataError, match=r"rows.jsonl:3 has no prompt to tell"):
        score_file(rare, source, output)
    write_rows(source, [row | {"prompt": "the same for all"} for row in rows_of([2, 3], problem="a")])
    score_file(rare, source, output, ScoringOptions(group_by="problem"))
    assert [row["score"] for row in read_rows(output)] == [1 / 2] * 2 + [1 / 3] * 3  # another ground truth
