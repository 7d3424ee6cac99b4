"""Prompts, and where in a completion the answer is found."""

import pytest

from tinyzero_sdk import Item, load_task
from tinyzero_sdk.errors import SettingsError

task = load_task("gsm8k", options={"source": "synthetic"})


@pytest.mark.parametrize("template", ["base", "chat", "compact"])
def test_prompts_hold_the_question_alone(template):
    item = next(task.dataset("train"))
    prompt = str(task.make_prompt(item, template))
    assert item.data["question"] in prompt
    assert item.data["answer"] not in prompt


def test_an_unknown_template_is_refused():
    with pytest.raises(SettingsError, match="base, chat, compact"):
        task.make_prompt(Item("1", {"question": "?"}), "compct")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>42</answer>", "42"),
        ("#### 41\nno: <answer>42</answer> #### 43", "43"),
        ("<answer>41</answer> no: \\boxed{42}", "42"),
        ("20 + 22 = 42\n#### 42\n", "42"),
        ("#### 41\n#### 42", "42"),
        ("#### 42</think> hm", None),
        ("42", None),
    ],
)
def test_where_the_answer_is_found(text, answer):
    assert task.extract_answer(text) == answer
    if answer is None:
        assert task.score_completion(text, "42").reason == "no_answer"


def test_the_prompt_is_no_answer():
    item = next(task.dataset("train"))
    for template in ("base", "chat", "compact"):
        assert not task.score_completion(str(task.make_prompt(item, template)), "1e9").correct
