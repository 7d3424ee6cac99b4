"""The properties of the conformance kit, in the order of checking. docs/tasks/conformance.md documents each."""

from collections.abc import Sequence

from tinyzero_sdk.errors import SettingsError, did_you_mean
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.properties import (
    data,
    gold_answers,
    groups,
    judging,
    neighbours,
    oracle_agreement,
    reward_hacking,
    robustness,
)
from tinyzero_sdk.testing.property import Property

PROPERTIES: tuple[Property, ...] = (
    data.SAME_SEED_SAME_DATA,
    data.OTHER_SEED_OTHER_DATA,
    data.SPLITS_DISJOINT,
    data.PROMPTS_COMPLETE,
    data.DIFFICULTY_DEFINED,
    gold_answers.EVERY_ITEM_SOLVABLE,
    gold_answers.GOLD_SCORES_FULL,
    gold_answers.FORMATTING_IS_FREE,
    gold_answers.ONLY_THE_ANSWER_COUNTS,
    gold_answers.LAST_ANSWER_COUNTS,
    data.TRUTH_SURVIVES_FILES,
    oracle_agreement.LABELLED_CASES,
    robustness.BOUNDED_TIME,
    robustness.BOUNDED_MEMORY,
    robustness.NEVER_RAISES,
    robustness.NEVER_PRINTS,
    robustness.RUNS_NO_CODE,
    robustness.KEEPS_GROUND_TRUTH,
    robustness.DETERMINISTIC,
    robustness.SCORE_IS_VALID,
    robustness.WRONG_PAYS_LESS,
    oracle_agreement.CORRECT_MEANS_RIGHT,
    oracle_agreement.RIGHT_MEANS_CORRECT,
    reward_hacking.SPRAYING_PAYS_NOTHING,
    reward_hacking.ECHO_PAYS_NOTHING,
    reward_hacking.EMPTINESS_PAYS_NOTHING,
    reward_hacking.LEAKS_PAY_NOTHING,
    reward_hacking.NO_SKELETON_KEY,
    neighbours.NUMBERS_COUNT,
    neighbours.PARTS_COUNT,
    neighbours.ORDER_COUNTS,
    neighbours.LETTERS_COUNT,
    groups.GROUPS_ARE_SCORED,
    groups.ORDER_IS_FREE,
    judging.ORDERS_PAY_NOTHING,
    judging.GOLD_BEATS_WRONG,
    judging.CRITERIA_IN_ANY_ORDER,
)

__all__ = ["PROPERTIES", "check_names", "find_properties"]


def find_properties(names: Sequence[str], task: Task) -> list[Property]:
    """The properties of these names, in the order of checking; for none all that are about this task's hooks.

    Raises:
        SettingsError: a name is unknown.
    """
    check_names(names, "")
    hooks = task.plugin_manager.hook
    has_hooks = {prop.name: all(getattr(hooks, hook).get_hookimpls() for hook in prop.needs) for prop in PROPERTIES}
    about = [prop.name for prop in PROPERTIES if has_hooks[prop.name] or not prop.about_needs]
    return [
        prop
        for prop in PROPERTIES
        if prop.name in (names or about) and (names or task.info.judge or not prop.needs_judge)
    ]


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse an unknown name; the error begins with `what` and names the nearest."""
    known = [prop.name for prop in PROPERTIES]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known).strip() or "tinyzero check --list shows all"
            raise SettingsError(f"{what}there is no check named {name!r}; {hint}")
