"""The laws of the conformance kit, in the order of checking. Each is documented in docs/conformance.md."""

from collections.abc import Sequence

from tinyzero_sdk.errors import SettingsError, did_you_mean
from tinyzero_sdk.testing.properties import data
from tinyzero_sdk.testing.properties import gold_answers as gold
from tinyzero_sdk.testing.properties import oracle_agreement as verdicts
from tinyzero_sdk.testing.properties import reward_hacking as payment
from tinyzero_sdk.testing.properties import robustness as conduct
from tinyzero_sdk.testing.property import Failure, Law, NotChecked, Problem

LAWS: tuple[Law, ...] = (
    data.SAME_SEED_SAME_DATA,
    data.OTHER_SEED_OTHER_DATA,
    data.SPLITS_DISJOINT,
    data.PROMPTS_COMPLETE,
    data.DIFFICULTY_DEFINED,
    gold.EVERY_ITEM_SOLVABLE,
    gold.GOLD_SCORES_FULL,
    gold.FORMATTING_IS_FREE,
    gold.ONLY_THE_ANSWER_COUNTS,
    gold.LAST_ANSWER_COUNTS,
    data.TRUTH_SURVIVES_FILES,
    verdicts.LABELLED_CASES,
    conduct.BOUNDED_TIME,
    conduct.BOUNDED_MEMORY,
    conduct.NEVER_RAISES,
    conduct.NEVER_PRINTS,
    conduct.RUNS_NO_CODE,
    conduct.KEEPS_GROUND_TRUTH,
    conduct.DETERMINISTIC,
    conduct.SCORE_IS_VALID,
    conduct.WRONG_PAYS_LESS,
    verdicts.ONE_EDIT_LOSES,
    verdicts.CORRECT_MEANS_RIGHT,
    verdicts.RIGHT_MEANS_CORRECT,
    payment.SPRAYING_PAYS_NOTHING,
    payment.ECHO_PAYS_NOTHING,
    payment.EMPTINESS_PAYS_NOTHING,
    payment.LEAKS_PAY_NOTHING,
    payment.NO_SKELETON_KEY,
)

__all__ = ["LAWS", "Failure", "Law", "NotChecked", "Problem", "check_names", "find_laws"]


def find_laws(names: Sequence[str]) -> list[Law]:
    """The laws of these names, in the order of checking; all for none.

    Raises:
        SettingsError: there is no such law.
    """
    check_names(names, "law")
    return [law for law in LAWS if not names or law.name in names]


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse a name that no law has.

    Raises:
        SettingsError: names the nearest.
    """
    known = [law.name for law in LAWS]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known).strip() or "tinyzero check --list shows them"
            raise SettingsError(f"{what} {name!r}: there is no such law; {hint}")
