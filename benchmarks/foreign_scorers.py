"""Which wrong answers the scorers of reasoning-gym take for right, and which of its datasets `tinyzero check` passes.

    python benchmarks/foreign_scorers.py answers [NAME …] [--items 40]
    python benchmarks/foreign_scorers.py checks [NAME …] [--jobs 2]

`answers` tries skeleton keys (constants, the question, the right answers of other problems) and the right answer with
something wrong added on many problems of each dataset. `checks` runs `tinyzero check` and compares with what the plugin
says of it. Both take every dataset of the installed version if none is named, and end with 1 where they find what the
plugin does not know of. The texts are this file's own, so unsafe scorers get them too.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from benchmarks.common import print_machine
from tinyzero_reasoning_gym.names import find_names
from tinyzero_reasoning_gym.unsupported import FAILED_CHECKS, UNSOUND, UNSUPPORTED
from tinyzero_sdk import Completion, Item, load_task
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import check_task

KEYS = [
    "", "0", "1", "-1", "2", "5", "10", "42", "100", "0.0", "0.5", "1e-9", "nan", "-nan", "nan+nanj", "inf", "1e309",
    "True", "False", "None", "null", "[]", "{}", "[[]]", "()", "[0]", "[1]", "[nan]", "0,0", "(0, 0)", "nan, nan",
    "(nan, nan)", "1/2", "0/1", "yes", "no", "a", "A", "B", "R", "the", "?", "...", "-", ".", "unknown", "infeasible",
    "answer", "<answer></answer>", "x", "x=0", "[[0]]", "[[1]]", '""', "A=0", "0 days", "00:00", "(P ∨ ¬P)",
    "[" + ", ".join(["[" + ", ".join(["0"] * 40) + "]"] * 40) + "]",
]  # fmt: skip
GOLDS = 20  # right answers of other problems that are tried as keys
OPENS = 0.25  # share of the problems from which a key counts as one: golds repeat, and several answers may be right
CREDIT = 0.75  # mean score from which partial credit does
ADDED: dict[str, Callable[[str, str], str]] = {
    "not GOLD": lambda gold, other: f"not {gold}",
    "GOLD not": lambda gold, other: f"{gold} not",
    "GOLD is wrong": lambda gold, other: f"{gold} is wrong",
    "-GOLD": lambda gold, other: f"-{gold}" if re.match(r"[1-9]|0\.0*[1-9]", gold) else "",
    "¬GOLD": lambda gold, other: f"¬{gold}" if gold[0].isdigit() else "",
    "GOLD or OTHER": lambda gold, other: f"{gold} or {other}",
    "OTHER or GOLD": lambda gold, other: f"{other} or {gold}",
    "GOLD, OTHER": lambda gold, other: f"{gold}, {other}",
    "GOLD and OTHER in lines": lambda gold, other: f"{gold}\n{other}",
    "OTHER and GOLD in lines": lambda gold, other: f"{other}\n{gold}",
    "[GOLD, OTHER]": lambda gold, other: f"[{gold}, {other}]",
    "GOLD text": lambda gold, other: f"{gold} banana",
    "text GOLD": lambda gold, other: f"banana {gold}",
    "GOLD number": lambda gold, other: f"{gold} 77",
    "number GOLD": lambda gold, other: f"77 {gold}",
    "one number + 1": lambda gold, other: re.sub(r"(?<!\d)\d\d?(?!\d)", lambda n: str(int(n[0]) + 1), gold, count=1),
    "without its end": lambda gold, other: "" if re.fullmatch(r"[-\d.e+]+", gold) else gold[: len(gold) // 2],
}
"""What becomes wrong of a right answer, given that of another problem; "" where it may still be right."""

Names = Annotated[list[str] | None, typer.Argument(help="datasets; all if none is given")]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def load(name: str) -> Task:
    allowed: dict[str, Any] = {"allow_unsound": True} if name in UNSOUND else {}
    return load_task(f"rg/{name}", options=allowed, allow_unsafe_scorers=True)


def known_names(names: list[str] | None) -> list[str]:
    return names or [name for name in find_names() if name not in UNSUPPORTED]


def answer_of(task: Task, item: Item) -> str | None:
    gold = task.solve(item)
    return None if gold is None else task.extract_answer(gold)


def score(task: Task, answers: list[str], items: list[Item]) -> list[tuple[bool, float]]:
    completions = [Completion(f"<answer>{answer}</answer>") for answer in answers]
    truths = [item.ground_truth for item in items]
    if not task.info.unsafe_scorer:
        scores = list(map(task.score_completion, completions, truths))
    else:
        with ScoringPool(task, timeout=20) as pool:
            scores = list(pool.score(completions, truths))
    return [(score.correct, score.value) for score in scores]


def wrong_answers(task: Task, items: list[Item]) -> Iterator[str]:
    """What is found for one dataset, a line each."""
    golds = [answer_of(task, item) for item in items]
    others = [
        next((gold for gold in golds[place:] + golds if gold and gold != golds[place]), "7")
        for place in range(len(golds))
    ]
    keys = dict.fromkeys([*KEYS, *list(dict.fromkeys(filter(None, golds)))[:GOLDS]])
    trials = [(f"key {key[:40]!r}", key, place) for key in keys for place, gold in enumerate(golds) if gold != key]
    trials += [("the question", item.ground_truth["question"], place) for place, item in enumerate(items)]
    for name, change in ADDED.items():
        for place, gold in enumerate(golds):
            if gold and (text := change(gold, others[place])) and text != gold:
                trials.append((name, text, place))
    tried, right = Counter[str](), Counter[str]()
    paid: dict[str, float] = dict.fromkeys((kind for kind, *_ in trials), 0.0)
    scores = score(task, [text for _, text, _ in trials], [items[place] for *_, place in trials])
    for (kind, *_), (correct, value) in zip(trials, scores, strict=True):
        tried[kind] += 1
        right[kind] += correct
        paid[kind] += value
    for kind in tried:
        least = OPENS if kind in ("one number + 1", "without its end") or kind.startswith("key ") else 1e-9
        if right[kind] / tried[kind] >= least or (kind.startswith("key ") and paid[kind] / tried[kind] >= CREDIT):
            yield f"{kind}: {right[kind]} of {tried[kind]} are right, {paid[kind] / tried[kind]:.2f} on average"


@app.command()
def answers(names: Names = None, items: Annotated[int, typer.Option(help="problems of each dataset")] = 40) -> None:
    """Try wrong answers on every dataset."""
    print_machine("reasoning-gym")
    unknown = 0
    for name in known_names(names):
        task = load(name)
        found = list(wrong_answers(task, list(task.generate("train", items, seed=1))))
        unknown += name not in UNSOUND and bool(found)
        print(
            f"{name}: {'refused by default; ' if name in UNSOUND else ''}{len(found) or 'nothing'} found",
            *found,
            sep="\n    ",
            flush=True,
        )
    print(f"{unknown} datasets with what is not known of")
    sys.exit(unknown > 0)


def failed_checks(name: str) -> list[str]:
    return [result.prop.name for result in check_task(load(name)).failed]


@app.command()
def checks(names: Names = None, jobs: Annotated[int, typer.Option(help="datasets at a time")] = 2) -> None:
    """Run `tinyzero check` on every dataset."""
    print_machine("reasoning-gym")
    wanted = known_names(names)
    passed = unexpected = 0
    with ThreadPoolExecutor(jobs) as pool:
        for name, failed in zip(wanted, pool.map(failed_checks, wanted), strict=True):
            known = [check for check, fails in FAILED_CHECKS.items() if name in fails]
            passed += not failed
            unexpected += set(failed) != set(known)
            print(
                f"{name}: {', '.join(failed) or 'passed'}{'' if set(failed) == set(known) else ' (not as known)'}",
                flush=True,
            )
    print(f"{passed} of {len(wanted)} pass; {unexpected} not as known")
    sys.exit(unexpected > 0)


if __name__ == "__main__":
    app()
