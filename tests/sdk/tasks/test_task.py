"""A loaded task: every hook through it, its pickles, and calls that bypass pluggy."""

import pickle

import pytest

from tests.sdk.conftest import options_source
from tinyzero_sdk import Completion, Item, ItemColumns, Score, TaskInfo, load_task
from tinyzero_sdk.errors import BrokenTaskError, DataError

OPTIONS = options_source("low: int = 0")
ITEM = Item(3, {"number": 3})


def test_hook_generate_dataset(write_task):
    code = """
import itertools
@hookimpl
def generate_dataset(split, size, seed, start, options):
    return (Item([split, seed, options.low + number]) for number in itertools.count(start))  # the host stops it
"""
    task = load_task(write_task(generate_dataset=code, extra=OPTIONS), options={"low": 100})
    assert task.generate("test", 2, seed=7, start=5) == [Item(["test", 7, 105]), Item(["test", 7, 106])]


def test_generate_keeps_columns(write_task):
    code = "@hookimpl\ndef generate_dataset(size): return ItemColumns.of([Item(n, {'number': n}) for n in range(size)])"
    items = load_task(write_task(generate_dataset=code)).generate("train", 4)
    assert isinstance(items, ItemColumns)
    assert items[-1] == ITEM


def test_dataset_gives_the_split_and_stops(write_task):
    task = load_task(write_task())
    train, test = list(task.dataset("train", 50)), list(task.dataset("test", 50, test_fraction=0.5))
    assert len(train) == len(test) == 50
    assert len({task.item_key(item) for item in train}) == 50
    assert len(list(zip(range(200), task.dataset("train"), strict=False))) == 200


def test_hook_make_prompt(write_task):
    code = """
@hookimpl
def make_prompt(options, template, item):
    return [{"role": "user", "content": f"{template} {item.data['number']} {options.low}"}]
"""
    task = load_task(write_task(make_prompt=code, extra=OPTIONS))
    assert task.make_prompt(ITEM, "chat") == [{"role": "user", "content": "chat 3 0"}]
    assert task.make_prompt(ITEM)[0]["content"].startswith("base")


def test_hook_extract_answer(write_task):
    code = "@hookimpl\ndef extract_answer(completion): return completion or None"
    task = load_task(write_task(extract_answer=code))
    assert task.extract_answer("4<|im_end|>\n</s>") == "4\n"
    assert task.extract_answer("<|endoftext|>") is None


def test_hook_score(write_task):
    code = "@hookimpl\ndef score(options, answer, ground_truth): return options.low + (answer == ground_truth)"
    task = load_task(write_task(score=code, extra=OPTIONS))
    assert task.score("a", "a") == Score(1.0, True, "ok", "a")
    assert task.score("b", "a") == Score(0.0, False, "wrong", "b")


def test_score_raises_what_the_task_raises(write_task):
    task = load_task(write_task(score="@hookimpl\ndef score(answer): return 1 / 0"))
    with pytest.raises(ZeroDivisionError):
        task.score("3", 3)
    assert task.error_count == 0


def test_hook_difficulty(write_task):
    assert load_task(write_task()).difficulty(ITEM) == 3.0


def test_hook_difficulties(write_task):
    columns = ItemColumns.of([ITEM, Item(4, {"number": 4})])
    assert load_task(write_task()).difficulties(columns) == [3.0, 4.0]
    together = "@hookimpl\ndef difficulties(items): return [7.0] * len(items)"
    task = load_task(write_task(extra=together))
    assert task.difficulties(columns) == [7.0, 7.0]
    assert task.difficulties([ITEM]) == [3.0]  # not columns: one by one


def test_hook_solve(write_task):
    assert load_task(write_task()).solve(ITEM) is None
    code = "@hookimpl\ndef solve(item): return f'<answer>{item.ground_truth}</answer>'"
    task = load_task(write_task(extra=code))
    assert task.score_completion(task.solve(ITEM), ITEM.ground_truth).correct


def test_hook_demonstrate(write_task):
    assert load_task(write_task()).demonstrate(ITEM, 0) is None
    code = "@hookimpl\ndef demonstrate(seed, item): return f'{item.ground_truth} {seed}'"
    assert load_task(write_task(extra=code)).demonstrate(ITEM, 9) == "3 9"


def test_hook_oracle(write_task):
    assert load_task(write_task()).oracle("3", 3) is None
    code = "@hookimpl\ndef oracle(answer, ground_truth): return int(answer) == ground_truth"
    assert load_task(write_task(extra=code)).oracle("3", 3) is True


def test_hook_item_key(write_task):
    task = load_task(write_task())
    assert task.item_key(Item({"a": 1, "b": "\ud800"})) == task.item_key(Item({"b": "\ud800", "a": 1}, {"other": 0}))
    assert task.item_key(Item({"b": [2], "a": 1})) == '{"a":1,"b":[2]}'  # readable
    assert task.item_key(Item({"a": 1})) != task.item_key(Item({"a": "1"}))
    long, other = (task.item_key(Item("x" * 1000 + end)) for end in "ab")
    assert long[:40] == other[:40] == f'"{"x" * 39}'
    assert len(long) < 80
    assert long != other
    code = "@hookimpl\ndef item_key(item): return 'same'"
    assert load_task(write_task(extra=code)).item_key(ITEM) == "same"


def test_hook_info(write_task):
    assert load_task(write_task()).info == TaskInfo()
    code = "@hookimpl\ndef info(): return TaskInfo('Say it.', score_range=(-1, 2))"
    assert load_task(write_task(extra=code)).info == TaskInfo("Say it.", score_range=(-1, 2))


def test_hook_grammar(write_task):
    assert load_task(write_task()).grammar(ITEM) is None
    code = "@hookimpl\ndef grammar(item): return {'sum': ['<number> + 1'], 'number': [str(item.data['number'])]}"
    assert load_task(write_task(extra=code)).grammar(ITEM)["sum"] == ["<number> + 1"]


@pytest.mark.parametrize("rules", ["{}", "{'sum': []}", "{'sum': '1'}", "{'sum': [1]}", "[('sum', ['1'])]"])
def test_a_grammar_of_another_form_is_refused(write_task, rules):
    task = load_task(write_task(extra=f"@hookimpl\ndef grammar(item): return {rules}"))
    with pytest.raises(BrokenTaskError, match="grammar returned"):
        task.grammar(ITEM)


def test_hook_is_valid(write_task):
    assert not load_task(write_task()).is_valid(7)
    task = load_task(write_task(name="valid", extra="@hookimpl\ndef is_valid(ground_truth): return ground_truth >= 0"))
    assert (task.is_valid(7), task.is_valid(-7)) == (True, False)
    with pytest.raises(
        BrokenTaskError, match=r"is_valid raised TypeError: .*, for the ground truth \{'numbers': \[3\]\}$"
    ):
        task.is_valid({"numbers": [3]})


def test_hook_has_own_splits(write_task):
    split_by_hash = load_task(write_task())
    own = load_task(write_task(name="own", extra="@hookimpl\ndef has_own_splits(): return True"))
    assert [item.ground_truth for item in own.dataset("test", 3)] == [0, 1, 2]
    assert [item.ground_truth for item in split_by_hash.dataset("test", 3)] != [0, 1, 2]


def test_hook_read_row(write_task):
    code = "@hookimpl\ndef read_row(row): return Item(row['n'], {'number': row['n']}) if 'n' in row else row.get('m')"
    task = load_task(write_task(extra=code))
    assert task.read_row({"n": 3}) == Item(3, {"number": 3})
    assert task.read_row({}) is None
    assert load_task(write_task(name="other")).read_row({"n": 3}) is None
    with pytest.raises(BrokenTaskError, match=r"read_row returned 5 \(int\); expected Item, or None"):
        task.read_row({"m": 5})


def test_hook_options(write_task):
    task = load_task(write_task(extra=OPTIONS), options={"low": 5})
    assert (task.options.low, task.option_values) == (5, {"low": 5})


def test_hook_score_completion(write_task):
    code = """
@hookimpl(wrapper=True)
def score_completion(completion, ground_truth, options):
    score = yield
    length = 0.0 if completion.token_count is None else -0.001 * completion.token_count
    parts = {"task": score.value, "length": length}
    masked = not completion.finished
    return Score(score.value + length, score.correct, score.reason, score.answer, parts, masked)
"""
    task = load_task(write_task(extra=code))
    long = Completion("<answer>3</answer>", token_count=2000, finished=False)
    assert task.score_completion(long, 3) == Score(-1.0, True, "ok", "3", {"task": 1.0, "length": -2.0}, True)
    assert task.score_completion("no answer", 3).reason == "no_answer"


def test_task_pickles_by_name(install, task_source):
    module = task_source(extra=OPTIONS)
    install("tz-say", version="2.1", modules={"say_module": module}, tasks={"say": "say_module"})
    task = load_task("say", options={"low": 4}, wrappers=["trace"])
    again = pickle.loads(pickle.dumps(task))
    assert (again.name, again.version, again.options, again.wrappers) == ("say", "2.1", task.options, ("trace",))
    assert len(pickle.dumps(task)) < 200


def test_file_task_pickles_by_path_wherever_it_is_opened(write_task, tmp_path, monkeypatch):
    write_task("here")
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(load_task("./here.py"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).score_completion("<answer>3</answer>", 3).correct


FAULTS = [
    ("generate_dataset", lambda task: task.generate("train", 1)),
    ("make_prompt", lambda task: task.make_prompt(ITEM)),
    ("difficulty", lambda task: task.difficulty(ITEM)),
    ("item_key", lambda task: task.item_key(ITEM)),
    ("solve", lambda task: task.solve(ITEM)),
    ("demonstrate", lambda task: task.demonstrate(ITEM, 0)),
    ("oracle", lambda task: task.oracle("3", 3)),
]


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise ValueError('bad')", "return 1 / 0"])
@pytest.mark.parametrize(("hook", "call"), FAULTS)
def test_what_a_hook_raises_names_the_task_and_the_hook(write_task, hook, call, statement):
    task = load_task(write_task(**{hook: f"@hookimpl\ndef {hook}():\n    {statement}"}))
    with pytest.raises(BrokenTaskError, match=rf"task 'say': {hook} raised \w+: .*say.py:\d+"):
        call(task)


def test_fault_inside_a_generator_is_contained(write_task):
    code = "@hookimpl\ndef generate_dataset():\n    yield Item(1)\n    raise SystemExit(3)"
    with pytest.raises(BrokenTaskError, match="generate_dataset raised SystemExit: 3"):
        load_task(write_task(generate_dataset=code)).generate("train", 2)


def test_ctrl_c_and_errors_on_purpose_pass(write_task):
    code = "@hookimpl\ndef solve(): raise KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt):
        load_task(write_task(solve=code)).solve(ITEM)
    code = "from tinyzero_sdk.errors import DataError\n@hookimpl\ndef solve(): raise DataError('no file')"
    with pytest.raises(DataError, match=r"^no file$"):
        load_task(write_task(solve=code)).solve(ITEM)


@pytest.mark.parametrize(
    ("number", "value"),
    [
        *[(0, value) for value in ("None", "3", "[{}]", "['a']", "{'a': 1}")],
        *[(1, value) for value in ("None", "b'x'", "['a']", "[{'role': 'user'}]", r"'\ud800'")],
        *[(1, value) for value in ("[{'role': 'user', 'content': 3}]", r"[{'role': 'user', 'content': '\ud800'}]")],
        *[(2, value) for value in ("None", "'1'", "True", "1j", "float('nan')", "float('inf')")],
        *[(3, value) for value in ("None", "3", r"'\ud800'")],
        *[(4, value) for value in ("3", "b'x'")],
        *[(5, value) for value in ("3", "['a']")],
    ],
)
def test_a_wrong_return_value_names_the_hook(write_task, number, value):
    hook, call = FAULTS[number]
    task = load_task(write_task(**{hook: f"@hookimpl\ndef {hook}(): return {value}"}))
    with pytest.raises(BrokenTaskError, match=f"task 'say': {hook} returned .*; expected "):
        call(task)


def test_numpy_numbers_and_unicode_prompts_are_accepted(write_task):
    prompt = "@hookimpl\ndef make_prompt(): return [{'content': 'é', 'role': 'user'}]"
    level = "import numpy\n@hookimpl\ndef difficulty(): return numpy.float32(0.5)"
    task = load_task(write_task(make_prompt=prompt, difficulty=level))
    assert (task.make_prompt(ITEM)[0]["content"], task.difficulty(ITEM)) == ("é", 0.5)
