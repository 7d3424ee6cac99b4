"""docs/reliability.md is what the tests say; they check their rows themselves (tests/faults.py)."""

import pytest

from tests.faults import NUMBERED, PAGE, Fault, Faults, find_rows, with_table


@pytest.mark.slow
def test_the_page_has_the_rows_of_the_tests() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "write it with: python -m tests.faults"


@pytest.mark.slow
def test_each_numbered_fault_has_a_test() -> None:
    assert {row.number for row, _, _ in find_rows()} >= set(NUMBERED)


def test_a_row_is_checked() -> None:
    rows = Faults([Fault("F1", "full", made="", seen="cannot save …: No space", kept="", code=2)])
    for seen, code in (("cannot save it: No space", 1), ("no space", 2), ("", 2)):
        with pytest.raises(AssertionError):
            rows.check(seen, code)
    assert rows.unchecked == {"F1"}
    rows.check("error: cannot save\nstep_1: No space left", 2)
    assert not rows.unchecked
