"""The task multiply: what is generated, how an answer scores, and that scorer and oracle agree."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_multiply.long_multiplication import work_out
from tinyzero_multiply.reading import MOST_MARKS, SEPARATORS, TIMES, WRAPPERS, longest_answer, read
from tinyzero_multiply.scoring import score_answer
from tinyzero_multiply.second_opinion import is_right
from tinyzero_sdk import Item, ItemColumns, load_task
from tinyzero_sdk.errors import SettingsError

task = load_task("multiply")
factors = st.integers(min_value=0, max_value=10**9 - 1)
long_factors = factors | st.integers(min_value=10**30, max_value=10**90)


def truth(num1, num2):
    return {"num1": num1, "num2": num2, "product": num1 * num2}


def problem(num1, num2):
    return Item(truth(num1, num2))


@pytest.mark.parametrize("product", [56088, np.int64(56088), "56088"], ids=repr)
def test_tinyzero_s_ground_truth_is_the_bare_product(product):
    answers = {"56088": True, "56,088.": True, "56089": False, "123 * 456 = 56088": True, "123 * 457 = 56088": False}
    for answer, correct in answers.items():
        assert score_answer(answer, product).correct is correct
        assert is_right(answer, product) is correct
    item = Item(product, {"num1": 123, "num2": 456})
    assert task.item_key(item) == "123*456"
    assert task.difficulty(item) == task.difficulty(problem(123, 456))
    assert score_answer(task.extract_answer(task.solve(item) or "") or "", product).correct


@st.composite
def written(draw, number):
    return f"{number:,}".replace(",", draw(st.sampled_from(["", *SEPARATORS])))


@st.composite
def marked(draw, text, ends=("{}", " {}\n", "{}.")):
    for left, right in draw(st.lists(st.sampled_from(WRAPPERS), max_size=2)):
        if right == "}" or right not in text or (right == "*" and text.count("*") == 1):  # ** within * is neither
            text = draw(st.sampled_from(ends)).format(left + text + right)
    return text


@given(data=st.data(), num1=long_factors, num2=long_factors)
def test_every_honest_way_to_write_the_product_is_right(data, num1, num2):
    number = data.draw(st.sampled_from(["", "+"])) + data.draw(written(num1 * num2))
    if data.draw(st.booleans()):
        first, second = data.draw(st.permutations([num1, num2]))
        space = data.draw(st.sampled_from(["", " ", "\n"]))
        product = space.join((data.draw(written(first)), data.draw(st.sampled_from(TIMES)), data.draw(written(second))))
        number = data.draw(marked(product, ["{}", " {} "])) + space + "=" + space + data.draw(marked(number))
    answer = data.draw(marked(number))
    longest = longest_answer(str(num1 * num2))
    if len(answer) <= longest:
        assert score_answer(answer, truth(num1, num2)).correct, answer
        assert is_right(answer, truth(num1, num2)), answer
        assert not score_answer(answer, truth(num1, num2 + 1)).correct or num1 == 0
    if read(answer, longest) is not None:
        assert score_answer(answer, num1 * num2 + 1).reason == "wrong"


@given(num=st.integers(10**20, 10**600), separator=st.sampled_from(SEPARATORS))
def test_what_can_be_an_answer_is_bounded_by_the_problem(num, separator):
    number = f"{num:,}".replace(",", separator)
    for answer in (number, f"$1 × {number} = **{number}**$"):
        assert score_answer(answer, truth(1, num)).correct
        assert is_right(answer, truth(1, num))


@given(st.sampled_from(WRAPPERS), st.integers(MOST_MARKS, MOST_MARKS + 2))
def test_marks_are_taken_off_to_a_depth(pair, depth):
    left, right = pair if pair[1] == "}" else (r"\boxed{", "}")
    answer = left * depth + "408" + right * depth
    assert score_answer(answer, truth(12, 34)).correct is is_right(answer, truth(12, 34)) is (depth <= MOST_MARKS)


PIECES = [*"0123456789,. +-_=*×x'", *SEPARATORS, *TIMES, "$", "**", "`", r"\boxed{", "}", "12", "34", "408", *"e٣８"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(0, 50), st.integers(0, 50))
def test_any_text_gets_the_oracle_s_score(text, num1, num2):
    for ground_truth in (truth(num1, num2), num1 * num2, truth(12, 34)):
        assert score_answer(text, ground_truth).correct == is_right(text, ground_truth)


@given(st.integers(0, 10**6), st.text("0123456789", max_size=4), st.text("0123456789", max_size=4))
def test_a_longer_number_that_contains_the_product_is_wrong(product, before, after):
    for text in (f"{before}{product}{after}", f"{before}{product:,}{after}"):
        assert score_answer(text, product).correct == (not before + after), text


@given(num1=factors, num2=factors)
def test_solutions_are_right_and_the_key_ignores_order(num1, num2):
    item, swapped = problem(num1, num2), problem(num2, num1)
    assert task.score_completion(task.solve(item) or "", item.ground_truth).correct
    assert task.item_key(item) == task.item_key(swapped)
    assert task.difficulty(item) == task.difficulty(swapped)


def carried_by_hand(num1, num2):
    """What is carried in long multiplication: within each row, and where the rows are added."""
    carried, total = 0, [0] * 40
    for place, digit in enumerate(map(int, reversed(str(num2)))):
        carry = 0
        for column, other in enumerate([*map(int, reversed(str(num1))), 0], place):
            carry, written_down = divmod(digit * other + carry, 10)
            carried += carry
            total[column] += written_down
    carry = 0
    for column in total:
        carry = (column + carry) // 10
        carried += carry
    return carried


@given(num1=factors, num2=factors)
def test_difficulty_is_digits_and_what_is_carried_by_hand(num1, num2):
    count1, count2 = len(str(num1)), len(str(num2))
    expected = count1 + count2 + carried_by_hand(num1, num2) / (count1 * count2)
    assert task.difficulty(problem(num1, num2)) == expected


@pytest.mark.parametrize("digits", [[3, 3], [1, 1], [9, 2]])
def test_difficulties_of_columns_are_those_of_their_items(digits):
    columns = load_task("multiply", options={"digits": digits}).generate("train", 300)
    assert isinstance(columns, ItemColumns)
    assert list(task.difficulties(columns)) == [task.difficulty(item) for item in columns]


def test_demonstrations_slip_sometimes_and_say_what_they_found():
    item = problem(123, 456)
    attempts = [task.demonstrate(item, seed) or "" for seed in range(300)]
    right = sum(task.score_completion(attempt, item.ground_truth).correct for attempt in attempts)
    assert 40 < right < 105  # five places to slip, each with probability 0.25: 71 expected
    assert attempts[:20] == [task.demonstrate(item, seed) for seed in range(20)]
    assert work_out(3, 4, random.Random(0)) == "3*4=12=12\n<answer>12</answer>"


def test_items_have_the_asked_digits_and_depend_on_their_index_alone():
    largest = load_task("multiply", options={"digits": [9, 9]}).generate("train", 200)
    assert all(item.ground_truth["product"] == item.data["num1"] * item.data["num2"] > 10**16 for item in largest)
    narrow = load_task("multiply", options={"digits": [1, 4]})
    items = list(narrow.generate("train", 500, seed=7))
    assert {len(str(item.data["num1"])) for item in items} == {1}
    assert {len(str(item.data["num2"])) for item in items} == {4}
    assert items[200:300] == list(narrow.generate("train", 100, seed=7, start=200))
    assert items != list(narrow.generate("train", 500, seed=8))
    assert all(item.ground_truth == truth(**item.data) for item in items)


@pytest.mark.parametrize("digits", [[0, 3], [3, 10], [3], [3, 3, 3]])
def test_impossible_digits_are_refused(digits):
    with pytest.raises(SettingsError, match="digits"):
        load_task("multiply", options={"digits": digits})
