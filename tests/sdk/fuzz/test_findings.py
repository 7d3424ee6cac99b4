"""Findings: which belong to one group, which is the smallest, and how they are shrunk."""

from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.fuzz.findings import Finding, FindingSet, traits_of
from tinyzero_sdk.testing.shrinking import minimize


def finding(completion, *traits, kind="wrong_rewarded", right=False):
    return Finding(kind, completion, {"n": 1}, completion, 1.0, right, traits)


def test_of_a_group_the_smallest_is_kept():
    found = FindingSet()
    assert found.add(finding("9 - 2**3", "**"))
    assert not found.add(finding("19 - 2**3", "**"))
    assert found.add(finding("2**3", "**"))
    assert [one.completion for one in found] == ["2**3"]


def test_a_simpler_finding_explains_those_with_more_traits_whatever_comes_first():
    for order in (1, -1):
        found = FindingSet()
        for one in [finding("2**3", "**"), finding("2**3.", "**", "."), finding("1.5", "decimal")][::order]:
            found.add(one)
        assert {one.completion for one in found} == {"2**3", "1.5"}


def test_a_finding_about_a_value_explains_no_other():
    found = FindingSet()
    found.add(finding("1"))
    assert found.add(finding("2**3", "**"))
    assert not found.add(finding("12"))
    assert found.add(finding("1", kind="right_unrewarded", right=True))
    assert len(found) == 3


def test_traits_tell_kinds_of_answers_apart_and_not_their_numbers():
    assert traits_of("17 + 3") == traits_of("9 + 12345")
    assert traits_of("2**3") - traits_of("2*3") == {"**"}
    assert traits_of("4.5*2") - traits_of("4*2") == {"decimal"}
    assert traits_of("(1)(2)") - traits_of("(1)") == {"close open"}
    assert traits_of("-(1)") - traits_of("2-(1)") == {"first -"}
    assert traits_of("1 - -2") - traits_of("1 - 2") == {"symbol -"}
    assert traits_of("007") == {"leading zero"}


@given(st.text(), st.integers(0, 50))
def test_traits_of_any_text(text, count):
    assert all(trait.isascii() and trait.isprintable() for trait in traits_of(text * count))


def test_a_finding_as_a_case():
    case = finding("1", "//").to_case()
    assert (case.completion, case.ground_truth, case.correct) == ("1", {"n": 1}, False)
    assert case.note == "fuzz: fully rewarded, though wrong (//)"
    for kind in ("error", "oracle_error", "timeout", "died"):
        assert finding("1", kind=kind, right=None).to_case() is None
        assert finding("1", kind=kind, right=True).to_case().correct


@given(st.text(max_size=200), st.text(min_size=1, max_size=3))
def test_a_shrunk_text_still_holds_and_nothing_can_be_left_out(text, needle):
    def holds(candidate):
        return needle in candidate

    assert minimize(text + needle + text, holds) == needle
