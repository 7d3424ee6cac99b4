"""Special tokens, and where answers stand: the laws, the named cases, and the time hostile text may take."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tinyzero_sdk.text import last_answer, last_boxed, last_hashed, last_tagged, strip_special_tokens

PIECES = ["<answer>", "</answer>", "<think>", "</think>", "<answer", "</", ">", " ", "\n", "1", "é", "\ud800"]
TANGLES = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def slow_last_tagged(text):
    """The same by its definition: between the last </think> and a <think>, the last opening tag that is closed."""
    rest = text.split("</think>")[-1].split("<think>")[0]
    found = re.findall(r"<answer>(?=(.*?)</answer>)", rest, re.DOTALL)
    return found[-1].strip() if found else None


@given(TANGLES)
@example("<Answer>1</Answer>")
@example("<answer><answer>1</answer></answer>")
@example("<answer>1</think></answer>")
@example("<think>a</think><think><answer>1</answer>")
def test_last_tagged_equals_its_definition(text):
    assert last_tagged(text) == slow_last_tagged(text)


def test_other_tags():
    assert last_tagged("<answer>1</answer><final>2</final>", "final") == "2"


BOX_PIECES = [r"\boxed{", r"\boxed {", r"\boxed", "{", "}", r"\{", r"\}", "1", " ", "</think>", "\n", "a", "answer"]
BOX_PIECES += ["<think>", "<answer>", "</answer>", "####"]
BOX_TANGLES = st.lists(st.sampled_from(BOX_PIECES), max_size=30).map("".join)


def slow_last_boxed(text):
    """The same by its definition: of the boxes after the last </think> whose braces match, the one that begins last."""
    rest = text.split("</think>")[-1].split("<think>")[0]
    for opening in reversed(list(re.finditer(r"\\boxed[ \t]*\{", rest))):
        depth = 1
        for brace in re.finditer(r"\\[{}]|[{}]", rest[opening.end() :]):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                return rest[opening.end() : opening.end() + brace.start()].strip()
    return None


@given(BOX_TANGLES)
@example(r"\boxed{\{1, 2\}}")
@example(r"\boxed{\boxed{2}} and {\boxed{1")
@example(r"boxed{1} \boxed 1")
def test_last_boxed_equals_its_definition(text):
    assert last_boxed(text) == slow_last_boxed(text)


@given(BOX_TANGLES)
def test_last_answer_is_that_of_the_form_that_begins_last(text):
    answers = {last_tagged(text), last_boxed(text), last_hashed(text)}
    assert last_answer(text) in answers
    assert (last_answer(text) is None) == (answers == {None})
    ended = f"{text}</think>" if "<think>" in text else text
    wrapped = {f"{ended}<answer>7</answer>", f"{ended}\n#### 7\n", f"{ended}\n\\boxed{{7}}"}
    assert {last_answer(longer) for longer in wrapped} == {"7"}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 42", "42"), ("####42\r\nmore", "42"), ("#### 41\n#### 42", "42"),
        ("#### 42\n#### Explanation\n1 + 1", "42"), ("#### 42\n#### 2. A second way", "42"),
        ("#### 42\n#### ✓ done", "42"), ("#### The answer is 42.", "The answer is 42."), ("#### **42**", "**42**"),
        ("##### 42", "42"), ("<answer>#### 42</answer>", "42"), ("#### Step 42", None), ("#### forty-two", None),
        ("####\n42", None), ("### 42", None), ("#### 42</think>", None), ("#### ½", "½"), ("**#### 42** km", "42"),
        *((f"#### 42\n#### {heading}\n1 + 1", "42") for heading in (
            "3.1 Details", "1 - Verification", "1.) Check", "[1] Check", "1.2.3 More", "2 | Why",
            "How the answer was found in 3 steps", "Why the answer is not 3", "The answer in 3 steps")),
        ("#### 42\n#### 3.5 miles", "3.5 miles"), ("#### 3.5 Miles", "3.5 Miles"), ("#### Answer 42", "Answer 42"),
        ("#### My answer: 42", "My answer: 42"), ("#### 42\n#### The answer is not 42", "The answer is not 42"),
    ],
)  # fmt: skip
def test_last_hashed_cases(text, answer):
    assert last_hashed(text) == answer


@given(st.text(st.characters(exclude_characters="|｜>")))
def test_text_without_tokens_is_returned_as_it_is(text):
    assert strip_special_tokens(text) is text


BARRED = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<｜end▁of▁sentence｜>"]
AT_THE_END = ["</s>", "<eos>", "<end_of_turn>", "<pad>"]


@given(
    st.lists(st.sampled_from([*BARRED, *AT_THE_END, "a", "3 < 4", "<answer>"])),
    st.lists(st.sampled_from([*BARRED, *AT_THE_END])),
)
def test_tokens_go_and_the_rest_stays(pieces, end):
    kept = [piece for piece in pieces if piece not in BARRED]
    assert strip_special_tokens("".join([*pieces, ".", *end])) == "".join([*kept, "."])


@pytest.mark.parametrize("text", ["<answer>", "a <| b |> c", "<||>", "<x|y>", "|im_end|", "</s> <s>", "P(a|b) < 1 > 0"])
def test_text_that_only_looks_like_a_token_stays(text):
    assert strip_special_tokens(text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        *("<answer>", "</answer>", "<|", "<|a", "<", "<|a|", "</think>", "<answer>1</answer>", "</s>", "<pad>."),
        *("\\boxed{", "\\boxed{1}{}", "{}", "}", "\\boxed", "####", "#### a", "#### 1. a\n", "####</answer>"),
        *("#### answer 1", "#### 1answer ", "#### 1 answer\t-", "**####1"),
    ],
)
@pytest.mark.parametrize("function", [last_answer, last_tagged, strip_special_tokens])
def test_time_is_linear_in_hostile_text(function, piece):
    text = piece * (1_000_000 // len(piece)) + "\\boxed{"
    start = time.process_time()
    function(text)
    assert time.process_time() - start < 20  # some 0.05 s; quadratic it would be hours
