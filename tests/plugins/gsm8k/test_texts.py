"""Where in a completion the answer is found."""

import pytest

from tinyzero_sdk import load_task

task = load_task("gsm8k", options={"source": "synthetic"})


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
