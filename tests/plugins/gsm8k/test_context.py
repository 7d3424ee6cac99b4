"""What may stand around a number: laws for whole classes of words, and what any reader accepts."""

# ruff: noqa: SIM905  (many words are easier to read without quotes)

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tinyzero_gsm8k import words
from tinyzero_gsm8k.numbers import read_number
from tinyzero_gsm8k.second_opinion import is_right
from tinyzero_sdk.text import last_answer, strip_special_tokens

LISTS = [
    words.NAMES, words.MONTHS, words.THINGS, words.UNITS, words.MODIFIERS, words.ABBREVIATIONS, words.LETTERS,
    words.PLACES, words.SINGULARS, words.MASSES, words.RECIPIENTS, words.STATES, words.SAYING, words.VERBS,
    words.RESULTS, words.NEGATIVE, words.CURRENCIES, words.MULTIPLIERS, {"more", "fewer", "old", "than", "him",
    "them", "second", "Celsius", "Fahrenheit"},
]  # fmt: skip
KNOWN = {word.lower() for known in LISTS for word in known}
UNKNOWN = (
    st.from_regex(r"[A-Z][a-z]{1,12}|[A-Z]{2,8}|[a-z]{2,12}|[А-Я][а-я]{1,8}|[Α-Ω][α-ω]{1,8}", fullmatch=True)
    | st.sampled_from(
        ["Incorrect", "Cannot", "Debt", "Nobody", "Nothing", "Zero", "Half", "Hardly", "Max", "Bil", "Not"]
    )
).filter(lambda word: word.lower() not in KNOWN)
SENTENCES = [
    "{} 42", "{}: 42", "{} is 42", "{} has 42", "{} be 42", "{} = 42", "The {} is 42", "She {} 42", "So {} 42",
    "{} $42", "{} answer: 42", "{}'s total is 42", "$42 {}", "42 {}", "42 in {}", "$42 in {}", "42 for {}",
    "42 apples {}", "42{}", "42 of {}", "42 {} people", "42, {}", "42 apples and {}", "42 at the {}",
    "42 more than {}", "42 per {}", "42/{}", "In {} she has 42", "42. {}", "{}, 42", "42 is {}", "42 is the {}",
    "**{}** 42", "42 ({})",
]  # fmt: skip


@pytest.mark.slow
@given(UNKNOWN, st.sampled_from(SENTENCES))
@example("Incorrect", "{}: 42")
@example("Debt", "42 in {}")
def test_a_word_of_no_list_is_malformed_wherever_it_stands(word, sentence):
    assert read_number(sentence.format(word)) is None
    assert not is_right(sentence.format(word), "42")


SCALES = """
    ones tens hundreds thousands millions billions trillions dozens scores pairs couples grosses lakhs crores
    dozen score pair couple gross lakh crore grand k K M MM B bn mn mil bil halves thirds quarters tenths
    hundredths times squared cubed thousandths percents myriads
""".split()


@given(
    st.sampled_from(SCALES),
    st.sampled_from([str.lower, str.title, str]),
    st.sampled_from(["{}: {}", "In {}: {}", "The {} are {}", "in {}, {}", "{} {}"]),
    st.sampled_from(["{} {}", "${} in {}", "{}{} people", "{} {} of apples", "{} in {}", "${} {}", "{} {} dollars"]),
)
def test_a_word_that_rescales_is_malformed_beside_a_number(word, case, before, behind):
    if len(word) > 1:  # k = 42
        assert read_number(before.format(case(word), 42)) is None
    word = case(word) if len(word) > 2 else word  # M is a million, m a metre
    assert read_number(behind.format(42, word)) is None
    assert not is_right(behind.format(42, word), "42")


OPENINGS = ["", "So ", "So, ", "Then ", "And now ", "Therefore ", "In total ", "Altogether, "]
SUBJECTS = ["it", "she", "he", "there", "they", "the answer", "the total", "Natalia", "her total cost", "this"]


@given(st.sampled_from(OPENINGS), st.sampled_from(sorted(words.ASKING)), st.sampled_from(SUBJECTS), st.booleans())
def test_a_question_is_no_answer(opening, verb, subject, short):
    text = f"{opening}{verb} {subject} {'' if short else 'now '}42"
    assert read_number(text[0].upper() + text[1:]) is None
    for asking in ("How much", "How many", "Who", "What", "Which", "How many apples", "How old"):
        assert read_number(f"{opening}{asking} {verb} 42") is None
        assert read_number(f"{opening}{verb} Natalia have 42") is None
        assert read_number(f"{opening}{asking} {verb} {subject} = 42") is None


MEASURES = sorted(
    words.ABBREVIATIONS
    | {"dollars", "miles", "apples", "m", "g", "L", "people", "feet", "square feet", "square km", "sq ft", "sq. m"}
    | {"cups of flour"}
)
RATES = sorted(
    words.ABBREVIATIONS
    | {"apple", "kid", "shirt", "box of rice", "hour", "day", "person", "h", "s", "pound", "box", "second"}
)
NUMBERS = st.sampled_from(
    [("60", "60"), ("1,042.50", "1042.5"), ("3/4", "3/4"), ("-5", "-5"), ("1.5 million", "1500000")]
)


SPACES = ["{} {}", "{}~{}", r"{}\,{}", r"{}\text{{ {}}}", r"{}~\mathrm{{{}}}", r"{}\mathrm{{~{}}}"]


UNIT_RATES = [
    *("{}", "{}/{}", "{} / {}", "{} per {}", r"\text{{{}}}/\text{{{}}}", r"\mathrm{{{}}} / \mathrm{{{}}}"),
    *(r"\frac{{{}}}{{{}}}", r"\frac{{\text{{{}}}}}{{\text{{{}}}}}", r"\dfrac{{\mathrm{{{}}}}}{{\mathrm{{{}}}}}"),
]


@given(
    NUMBERS, st.sampled_from(SPACES),
    st.sampled_from(MEASURES), st.sampled_from(UNIT_RATES), st.sampled_from(RATES),
    st.sampled_from(["{}", "${}$", r"\({}\)", "The answer is {}.", "x = {}", "**{}**", "It is {} now"]),
)  # fmt: skip
def test_units_and_rates_are_read_in_every_dress(number, space, unit, rate, per, frame):
    text = frame.format(space.format(number[0], rate.format(unit, per)))
    assume(not (frame == "It is {} now" and "~" in text))
    if number[0][0] == "-" and frame == "It is {} now":
        text = text.replace("is -", "is −")
    assert read_number(text) == read_number(number[1]), text
    assert is_right(text, number[1]) is not False, text
    if "mm" not in text and "in" not in text:
        assert is_right(text, "7") is not True


END_TOKENS = ["</s>", "<eos>", "<end_of_turn>", "<pad>", "<|im_end|>", "<｜end▁of▁sentence｜>"]
SPACE = st.text(" \n\t\r", max_size=3)


@given(
    st.sampled_from(
        ["42", "$42", "-42", "x = 42", "US$42", "minus 5", "Rs. 42", "**42**", r"\frac{84}{2}", "Answer: 42"]
    ),
    st.sampled_from(["#### {}", "####{}", "<answer>{}</answer>", r"\boxed{{{}}}", "##### {}"]),
    st.lists(st.tuples(st.sampled_from(END_TOKENS), SPACE)),
)
def test_the_same_answer_is_read_in_every_form_and_before_any_end_token(answer, form, ends):
    text = f"20 + 22 = 42\n{form.format(answer)}" + "".join(token + space for token, space in ends)
    found = last_answer(strip_special_tokens(text))
    assert found is not None
    assert read_number(found) == (-5 if "5" in answer else -42 if "-" in answer else 42)
