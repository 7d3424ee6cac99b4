"""Every dataset of the installed reasoning-gym as a task. Run by `test_environment.py` where it is not installed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyzero_reasoning_gym import task_names
from tinyzero_reasoning_gym.entries import known_answers, to_entry
from tinyzero_reasoning_gym.family import RAISING
from tinyzero_reasoning_gym.library import find_classes
from tinyzero_reasoning_gym.names import find_names
from tinyzero_reasoning_gym.unsupported import FAILED_CHECKS, UNSOUND, UNSUPPORTED, WAIVED_CHECKS
from tinyzero_sdk import Completion, load_task
from tinyzero_sdk.data.rows import item_to_row, row_to_item
from tinyzero_sdk.errors import SettingsError, TaskNotFoundError
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.testing.properties import check_names

SUPPORTED = [name for name in find_names() if name not in UNSUPPORTED]
NO_GOLD = {"boxnet", "rush_hour"}
UNSAFE = {
    "binary_matrix", "bitwise_arithmetic", "countdown", "n_queens", "number_sorting", "pool_matrix", "puzzle24",
    "simple_integration", "sokoban", "spiral_matrix", "string_insertion",
}  # fmt: skip
BAD = [
    "5", "-1", "0", "1/0", "x", "[]", "{}", "[[]]", "null", "[1]", '["a"]', '[["a"]]', "{'a': 1}", '{"a": 1}', "[{}]",
    "1,2", "(1, 2)", "a b c", "=", "1 = 2", "É", "²", "\u0663", "nan", "inf", "1e999", "9" * 5000, "[" * 200, '"',
    "None", "True", "1 2 3\n4 5 6", "...", "#", "[[1, 2], [3]]", "2024-13-45", "10:99", "a->b", "(", "\x00",
    '{"1": []}', "[null]", "[[null]]", "\\frac{1}{0}", "-", ",", ":", "yes", "[0, 0]", "1+", "))((", "1.5",
    "x" * 10_000,
]  # fmt: skip
STABLE = """
import hashlib, json, sys
from tinyzero_reasoning_gym.names import find_names
from tinyzero_reasoning_gym.unsupported import UNSOUND, UNSUPPORTED
from tinyzero_sdk import load_task
made = {}
for name in find_names():
    if name not in UNSUPPORTED:
        options = {"allow_unsound": True} if name in UNSOUND else {}
        items = load_task(f"rg/{name}", options=options).generate("train", 4, seed=3)
        made[name] = hashlib.sha256(repr([item.ground_truth for item in items]).encode()).hexdigest()
print(json.dumps(made))
"""
README = Path(__file__).parents[3] / "plugins/reasoning_gym/README.md"


def load(name):
    """The task, whatever has to be allowed for it."""
    allowed = {"allow_unsound": True} if name in UNSOUND else {}
    return load_task(f"rg/{name}", options=allowed, allow_unsafe_scorers=True)


@pytest.mark.parametrize("name", SUPPORTED)
def test_data_set(name, tmp_path):
    """It loads, makes problems, survives both formats, and its gold answers score full."""
    task = load(name)
    items = task.generate("train", 5, seed=1)
    assert len(items) == 5
    assert [items[3]] == task.generate("train", 1, seed=1, start=3)
    question = items[0].ground_truth["question"].strip()
    assert question in task.make_prompt(items[0], "base")
    assert question in task.make_prompt(items[0], "chat")[-1]["content"]
    assert question in task.make_prompt(items[0], "compact")

    rows = [item_to_row(task, item, index=index, split="train") for index, item in enumerate(items)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    from_parquet = [row_to_item(row) for row in pq.read_table(tmp_path / "rows.parquet").to_pylist()]
    from_json = [row_to_item(json.loads(json.dumps(row))) for row in rows]
    golds = [task.solve(item) for item in items]
    if name in NO_GOLD:
        assert golds == [None] * 5
        return
    assert None not in golds
    truths = [item.ground_truth for read in (items, from_parquet, from_json) for item in read]
    *scores, junk = score_all(task, [*golds * 3, "<answer>~ no answer ~</answer>"], [*truths, truths[0]])
    assert [(score.value, score.reason) for score in scores] == [(1.0, "ok")] * 15
    assert not junk.correct
    assert junk.reason in ("wrong", "malformed")


def score_all(task, texts, truths):
    """The scores, in this process where that may be: reasoning-gym takes a second to import in another."""
    if not task.info.unsafe_scorer:
        return list(map(task.score_completion, texts, truths))
    with ScoringPool(task, timeout=60) as pool:
        return pool.score(list(map(Completion, texts)), truths)


def test_names_are_those_that_reasoning_gym_registers():
    from reasoning_gym.factory import DATASETS

    assert set(find_names()) == set(DATASETS)
    assert task_names() == [f"rg/{name}" for name in find_names()]


def test_every_process_makes_the_same_problems():
    """Whatever the order of its sets: of a new dataset that does not, this tells."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", STABLE], env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("1", "2")
    ]
    made = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    assert set(made[0]) == set(SUPPORTED)
    assert {name for name in SUPPORTED if made[0][name] != made[1][name]} == set()


def test_seeds_and_splits_share_no_problems():
    task = load_task("rg/chain_sum")
    keys = [
        {task.item_key(item) for item in task.generate(split, 200, seed=seed)}
        for split, seed in (("train", 1), ("train", 2), ("test", 1))
    ]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]


def test_generating_leaves_the_random_numbers_and_the_output_alone(capsys):
    import random

    import numpy as np

    before = random.getstate(), str(np.random.get_state())
    for name in ("pool_matrix", "list_functions", "bf"):
        load_task(f"rg/{name}").generate("train", 5)
    assert (random.getstate(), str(np.random.get_state())) == before
    assert capsys.readouterr().out == ""


def test_unsafe_scorers_are_found():
    unsafe = {name for name in SUPPORTED if load(name).info.unsafe_scorer}
    assert unsafe == UNSAFE
    [listed] = [part for part in README.read_text().split("\n\n") if part.startswith("`binary_matrix`")]
    assert unsafe == set(re.findall(r"`(\w+)`", listed))


def test_options_are_the_fields_of_the_configuration():
    task = load_task("rg/chain_sum", options={"min_terms": 5, "max_terms": 5})
    questions = [item.ground_truth["question"] for item in task.generate("train", 20)]
    assert all(len(re.findall(r" [+-] ", question)) == 4 for question in questions)
    with pytest.raises(SettingsError, match="max_terms must be >= min_terms"):
        load_task("rg/chain_sum", options={"min_terms": 5, "max_terms": 4})
    with pytest.raises(SettingsError, match=r"unknown key 'task\.seed'"):
        load_task("rg/chain_sum", options={"seed": 4})
    assert load_task("rg/basic_arithmetic", options={"operators": ["+"]}).options.operators == ("+",)


def test_difficulty_is_the_entrys_own_or_the_length_of_the_question():
    [item] = load_task("rg/gsm_symbolic").generate("train", 1)
    assert load_task("rg/gsm_symbolic").difficulty(item) == json.loads(item.ground_truth["metadata"])["difficulty"]
    [item] = load_task("rg/maze").generate("train", 1)
    assert load_task("rg/maze").difficulty(item) == len(item.ground_truth["question"]) / 1000


def test_partial_credit_is_not_correct():
    task, binary = load_task("rg/sudoku"), load_task("rg/sudoku", options={"reward": "binary"})
    [item] = task.generate("train", 1)
    gold = item.ground_truth["answer"]
    text = f"<answer>{gold[:-1]}{9 - int(gold[-1])}</answer>"
    score = task.score_completion(text, item.ground_truth)
    assert 0 < score.value < 1
    assert not score.correct
    assert binary.score_completion(text, item.ground_truth).value == 0


@pytest.mark.parametrize("name", [name for name in SUPPORTED if name not in NO_GOLD | UNSOUND.keys()])
def test_the_right_answer_and_more_is_not_right(name):
    """A sample of `benchmarks/foreign_scorers.py`, which tries more on every dataset."""
    task = load(name)
    truths = [item.ground_truth for item in task.generate("train", 3, seed=5)]
    golds = [next(known_answers(to_entry(truth))) for truth in truths]
    forms = ("not {0}", "{0} is wrong", "{0} or {1}", "{1}\n{0}", "{0}, {1}", "{0} banana 77", "nan", "")
    texts = [form.format(gold, golds[place - 1]) for form in forms for place, gold in enumerate(golds)]
    scores = score_all(task, [f"<answer>{text}</answer>" for text in texts], truths * len(forms))
    paid = zip(texts, golds * len(forms), scores, strict=True)
    assert [text for text, gold, score in paid if text != gold and (score.correct or score.value > 0.5)] == []


def test_other_right_answers_stay_right():
    """Also those that have the known one within."""
    for name, form in (("rubiks_cube", "{} R R'"), ("gsm_symbolic", "The answer is **{}.**"), ("chain_sum", "{}.00")):
        task = load(name)
        for item in task.generate("train", 3):
            text = task.solve(item)[len("<answer>") : -len("</answer>")]
            assert task.score_completion(f"<answer>{form.format(text)}</answer>", item.ground_truth).correct


@pytest.mark.parametrize("name", SUPPORTED)
def test_scorers_raise_on_bad_text_only_where_that_is_known(name):
    """The texts are ours, so unsafe scorers may have them too."""
    task = load(name)
    [item] = task.generate("train", 1, seed=7)
    gold = (task.solve(item) or "<answer>1</answer>").removeprefix("<answer>").removesuffix("</answer>")
    texts = [*BAD, gold[: len(gold) // 2], gold[1:], gold[:-1], f"{gold}x", f"{gold}\n{gold}", gold.replace(" ", "")]
    scores = score_all(task, [f"<answer>{text}</answer>" for text in texts], [item.ground_truth] * len(texts))
    reasons = {score.reason for score in scores}
    assert "error" not in reasons
    assert ("malformed" in reasons) == (name in RAISING)


def test_a_fault_of_the_library_is_an_error_and_counted(monkeypatch):
    task = load_task("rg/chain_sum")
    [item] = task.generate("train", 1)

    def score_answer(self, answer, entry):
        raise AttributeError("renamed in the next version")

    monkeypatch.setattr(find_classes("chain_sum")[0], "score_answer", score_answer)
    assert task.score_completion("<answer>1</answer>", item.ground_truth).reason == "error"
    assert task.error_count == 1
    assert "renamed in the next version" in task.first_error


def test_partial_credit_that_adds_up_to_over_one_is_nothing_for_an_answer_with_more():
    task = load_task("rg/spell_backward")
    [item] = task.generate("train", 1, seed=7)
    assert item.ground_truth["answer"] == "ardnassaC"
    score = task.score_completion("<answer>ardnassaCx</answer>", item.ground_truth)
    assert (score.value, score.correct, score.reason) == (0.0, False, "wrong")
    assert task.error_count == 0


def test_what_is_nested_too_deeply_is_malformed(monkeypatch):
    task = load_task("rg/chain_sum")
    [item] = task.generate("train", 1)
    monkeypatch.setattr(find_classes("chain_sum")[0], "score_answer", lambda self, text, entry: json.loads(text))
    assert task.score_completion(f"<answer>{'[' * 50_000}</answer>", item.ground_truth).reason == "malformed"
    assert task.error_count == 0


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_data_sets_say_why(name):
    assert name in find_names()
    assert f"`{name}`" in README.read_text()
    with pytest.raises(TaskNotFoundError, match=f"rg/{name} is not supported: {UNSUPPORTED[name]}"):
        load_task(f"rg/{name}")


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_data_sets_say_why_and_can_be_allowed(name):
    assert f"| `{name}` | {UNSOUND[name]} |" in README.read_text()
    refusal = f"rg/{name} is not supported: {UNSOUND[name]}; task.allow_unsound=true takes it as it is"
    with pytest.raises(TaskNotFoundError, match=re.escape(refusal)):
        load_task(f"rg/{name}")
    assert load(name).options.allow_unsound


def test_a_task_says_which_checks_it_fails_and_need_not_pass():
    check_names([*FAILED_CHECKS, *WAIVED_CHECKS], "the plugin: ")
    for check, names in FAILED_CHECKS.items():
        assert all(check in load(name).info.description for name in names)
    for check, (why, names) in WAIVED_CHECKS.items():
        assert all(load(name).info.waivers[check] == why for name in names)


def test_the_list_of_tasks_does_not_import_reasoning_gym():
    code = "import atexit, sys; atexit.register(lambda: print('reasoning_gym' in sys.modules))\n"
    code += "from tinyzero_sdk.cli import main; main(['tasks'])"
    environment = os.environ | {"COLUMNS": "160"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert f"{len(find_names())} tasks; to list them: tinyzero tasks rg" in done.stdout
