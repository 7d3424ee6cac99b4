"""The task multiply: what is generated, what an answer earns, and that two ways of judging it agree."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_multiply.integers import SEPARATORS, read_integer, spells
from tinyzero_multiply.long_multiplication import work_out
from tinyzero_sdk import Completion, Item, load_task
from tinyzero_sdk.errors import SettingsError

task = load_task("multiply")
factors = st.integers(min_value=1, max_value=10**9 - 1)


def problem(num1: int, num2: int) -> Item:
    return Item(ground_truth=num1 * num2, data={"num1": num1, "num2": num2})


@pytest.mark.parametrize(
    "answer", ["56088", "+56088", "56,088", "56 088", "56\u00a0088", "56\u202f088", "56088.", "\n 56088\t"]
)
def test_right_spellings(answer: str) -> None:
    assert task.score_completion(f"<answer>{answer}</answer>", 56088).correct


@pytest.mark.parametrize("answer", ["56089", "-56088", "0", "5608", "560,880"])
def test_wrong_numbers(answer: str) -> None:
    score = task.score_completion(f"<answer>{answer}</answer>", 56088)
    assert (score.value, score.reason) == (0.0, "wrong")


@pytest.mark.parametrize(
    "answer",
    [
        *("", "about 56088", "123*456", "56088 56088", "--56088", "+ 56088", "56088!", "1" * 65),
        *("56_088", "56,08,8", "5,6088", "56,088 088", "056088", "0,056,088", "56.088", "56088.0", "5.6088e4"),
        *("５６０８８", "٥٦٠٨٨", "5６088", "56088²", "0xdb18"),
    ],
)
def test_look_alikes_are_malformed(answer: str) -> None:
    score = task.score_completion(f"<answer>{answer}</answer>", 56088)
    assert (score.value, score.reason) == (0.0, "malformed")


@pytest.mark.parametrize("text", ["", "56088", "<answer>56088", "<answer>56088</answer></think> I am not sure"])
def test_no_answer(text: str) -> None:
    assert task.score_completion(text, 56088).reason == "no_answer"


def test_the_last_answer_counts() -> None:
    assert not task.score_completion("<answer>56088</answer> no, <answer>56089</answer>", 56088).correct
    assert task.score_completion(Completion("<answer>1</answer> no, <answer>56088</answer><|im_end|>"), 56088).correct


def test_tinyzero_rewards() -> None:
    tinyzero = load_task("multiply", options={"reward": "tinyzero"})
    values = [tinyzero.score_completion(text, 6).value for text in ("<answer>6</answer>", "<answer>7</answer>", "6")]
    assert values == [1.0, 0.1, 0.0]
    assert tinyzero.score_completion("<answer>six</answer>", 6).value == 0.0


@given(
    number=st.integers(min_value=0, max_value=10**18), sign=st.sampled_from(["", "+"]), stop=st.sampled_from(["", "."])
)
def test_every_way_to_write_a_number_is_read(number: int, sign: str, stop: str) -> None:
    for separator in ("", *SEPARATORS):
        text = sign + f"{number:,}".replace(",", separator) + stop
        assert read_integer(text) == number
        assert spells(text, number)


@given(text=st.text(alphabet="0123456789,. +-_\u00a0\u202f٣", max_size=12), number=st.integers(0, 9999))
def test_reading_and_oracle_agree_on_any_text(text: str, number: int) -> None:
    read = read_integer(text)
    assert spells(text, number) == (read == number)
    if read is not None and read >= 0:
        assert spells(text, read)


@given(num1=factors, num2=factors)
def test_solutions_are_right_and_the_key_ignores_order(num1: int, num2: int) -> None:
    item, swapped = problem(num1, num2), problem(num2, num1)
    assert task.score_completion(task.solve(item) or "", item.ground_truth).correct
    assert task.item_key(item) == task.item_key(swapped)
    assert task.difficulty(item) == task.difficulty(swapped)


def test_difficulty_counts_products_that_need_work() -> None:
    assert [task.difficulty(problem(*pair)) for pair in ((100, 999), (23, 40), (789, 456))] == [0.0, 2.0, 9.0]


def test_demonstrations_slip_sometimes_and_say_what_they_found() -> None:
    item = problem(123, 456)
    attempts = [task.demonstrate(item, seed) or "" for seed in range(300)]
    right = sum(task.score_completion(attempt, item.ground_truth).correct for attempt in attempts)
    assert 100 < right < 290  # four places to slip, each with probability 0.1: 197 expected
    assert attempts[:20] == [task.demonstrate(item, seed) for seed in range(20)]
    assert work_out(3, 4, random.Random(0)) == "3*4=12=12\n<answer>12</answer>"


def test_items_have_the_asked_digits_and_depend_on_their_index_alone() -> None:
    narrow = load_task("multiply", options={"digits": [1, 4]})
    items = list(narrow.generate("train", 500, seed=7))
    assert {len(str(item.data["num1"])) for item in items} == {1}
    assert {len(str(item.data["num2"])) for item in items} == {4}
    assert items[200:300] == list(narrow.generate("train", 100, seed=7, start=200))
    assert items != list(narrow.generate("train", 500, seed=8))
    assert all(item.ground_truth == item.data["num1"] * item.data["num2"] for item in items)


def test_splits_share_no_problem() -> None:
    small = load_task("multiply", options={"digits": [2, 2]})
    train, test = (set(map(small.item_key, small.dataset(split, 200))) for split in ("train", "test"))
    assert len(train) == len(test) == 200
    assert not train & test


@pytest.mark.parametrize("digits", [[0, 3], [3, 10], [3], [3, 3, 3]])
def test_impossible_digits_are_refused(digits: list[int]) -> None:
    with pytest.raises(SettingsError, match="digits"):
        load_task("multiply", options={"digits": digits})


@pytest.mark.parametrize("template", ["base", "chat", "compact"])
def test_prompts_name_both_factors(template: str) -> None:
    prompt = str(task.make_prompt(problem(123, 456), template))
    assert "123" in prompt
    assert "456" in prompt
    assert "56088" not in prompt


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(SettingsError, match="base, chat, compact"):
        task.make_prompt(problem(123, 456), "compct")
