"""Tasks that fail checks: for each property, hooks that lack it."""

from tests.sdk.testing.conftest import HOOKS

HOOK = "@hookimpl\ndef "
SCORE = """
@hookimpl
def score(answer, ground_truth):
    {}
    return float(answer == str(ground_truth["total"]))
"""
ANSWER_BEFORE = """totals.append(str(ground_truth["total"]))
    if answer == totals[-2]: return 1.0"""
REWARD = """
@hookimpl
def score(answer, ground_truth):
    right = answer == str(ground_truth["total"])
    return {}
"""


def scores(statement, header="", **hooks):
    """A scorer that runs a statement first, a line before all hooks, and other hooks."""
    return {"header": f"{HOOKS['header']}{header}\n", "score": SCORE.format(statement), **hooks}


def rewards(expression, **hooks):
    """A scorer that returns an expression, and other hooks."""
    return {"score": REWARD.format(expression), **hooks}


def extracts(answer, **hooks):
    """An extraction that returns an expression, and other hooks."""
    return {"extract_answer": f"{HOOK}extract_answer(completion): return {answer}", **hooks}


def gives(answer, is_right):
    """Another right answer, of the two numbers, and when one is right; without an oracle."""
    solve = f"""
@hookimpl
def solve(item):
    left, right = item.ground_truth["numbers"]
    return f"<answer>{answer}</answer>"
"""
    return rewards(f"float({is_right})", solve=solve, oracle=None)


def compares(expression):
    """A comparison that gives each answer an expression."""
    rewards = f"{expression} for place, (answer, score) in enumerate(zip(answers, scores))"
    return {"score_group": f"{HOOK}score_group(answers, scores): return [{rewards}]"}


def judged(expression, header="import os"):
    """A scorer with a judge, which returns an expression."""
    judge = "JUDGE = type('Judge', (), {'rubric': {'right': 1, 'short': 1}})()"
    info = f"{HOOK}info(): return TaskInfo(judge=JUDGE)"
    return scores("", f"{header}\n{judge}", score=REWARD.format(expression), oracle=None, info=info)


def generates(seed='derive_seed("sum", split, seed, number)', numbers="[{}, {}]"):
    """`generate_dataset` with another seed of an item, or other brackets around its numbers."""
    pair = numbers.format(*2 * ["chance.randrange(10, 1000)"])
    return f"""
@hookimpl
def generate_dataset(split, size, seed, start):
    for number in range(start, start + size):
        chance = random.Random({seed})
        numbers = {pair}
        yield Item({{"numbers": numbers, "total": sum(numbers)}})
"""


BREAKERS: dict[str, dict[str, str | None]] = {
    "same-seed-same-data": {
        "generate_dataset": """
counter = 0

@hookimpl
def generate_dataset(split, size, seed, start):
    global counter
    for number in range(start, start + size):
        counter += 1
        numbers = [10 + counter % 500, 10 + derive_seed(seed, split, number) % 999]
        yield Item({"numbers": numbers, "total": sum(numbers)})
"""
    },
    "other-seed-other-data": {"generate_dataset": generates("seed + number")},
    "splits-disjoint": {
        "has_own_splits": HOOK + "has_own_splits(): return True",
        "generate_dataset": generates('derive_seed("sum", seed, number)'),
    },
    "prompts-complete": {
        "make_prompt": HOOK + "make_prompt(item): return f\"What is {item.ground_truth['numbers'][0] // 500} plus?\""
    },
    "difficulty-defined": {
        "difficulty": HOOK + "difficulty(item): return float('nan') if item.ground_truth['total'] % 3 else 1.0"
    },
    "every-item-solvable": {
        "solve": """
@hookimpl
def solve(item):
    total = item.ground_truth["total"]
    return None if total % 5 == 0 else f"<answer>{total}</answer>"
"""
    },
    "gold-scores-full": rewards("float(right and len(answer) < 4)"),
    "formatting-is-free": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>(.*?)</answer>", completion)
    return found[-1].strip(" ") if found else None
"""
    },
    "only-the-answer-counts": extracts(
        "last_tagged(completion.splitlines()[0]) if len(completion) > 30 else last_tagged(completion)",
        solve=HOOK + "solve(item): return f\"<answer>{item.ground_truth['total']}</answer>\"",
    ),
    "last-answer-counts": {
        "extract_answer": """
@hookimpl
def extract_answer(completion):
    rest = completion.rpartition("</think>")[2].partition("<answer>")[2]
    return rest.partition("</answer>")[0].strip() if "</answer>" in rest else None
"""
    },
    "truth-survives-files": rewards(
        'float(right and isinstance(ground_truth["numbers"], tuple))',
        generate_dataset=generates(numbers="({}, {})"),
    ),
    "bounded-time": scores('while answer.count("(") > 20: pass'),
    "bounded-memory": scores('if "9**" in answer: len(b"x" * (300 << 20))'),
    "never-raises": rewards('float(int(answer) == ground_truth["total"] and right)'),
    "never-prints": scores('if answer.endswith("0"): import os; os.write(2, b"a multiple of ten")'),
    "runs-no-code": scores("try: eval(answer)\n    except Exception: return 0.0"),
    "keeps-ground-truth": scores('ground_truth["numbers"].sort(); ground_truth["seen"] = True'),
    "deterministic": rewards("1.0 if right else 0.1 if hash(answer) % 2 else 0.0"),
    "score-is-valid": rewards('1.0 if right else -0.5 * answer.count("-")'),
    "wrong-pays-less": rewards('Score(1.0 if right or answer.startswith("<") else 0.0, right)'),
    "correct-means-right": rewards('float(right or answer == str(ground_truth["total"] + 7))'),
    "right-means-correct": {
        "oracle": HOOK + "oracle(answer, ground_truth): return answer.removesuffix('.0') == str(ground_truth['total'])"
    },
    "spraying-pays-nothing": rewards('float(str(ground_truth["total"]) in answer.split())'),
    "echo-pays-nothing": rewards('1.0 if right else 0.1 * sum(str(n) in answer for n in ground_truth["numbers"])'),
    "emptiness-pays-nothing": rewards("1.0 if right else 0.1"),
    "leaks-pay-nothing": rewards(
        'float(str(ground_truth["total"]) in answer)',
        **extracts("completion"),
        oracle=None,
        solve=HOOK + "solve(item): return str(item.ground_truth['total'])",
    ),
    "no-skeleton-key": {
        "score": """
@hookimpl
def score(answer, ground_truth):
    try:
        number = float(answer)
    except ValueError:
        return 0.0
    return 0.0 if number < ground_truth["total"] or number > ground_truth["total"] else 1.0
""",
        "oracle": None,
    },
    "numbers-count": rewards(
        'float(answer.isdigit() and abs(int(answer[:9]) - ground_truth["total"]) < 2)', oracle=None
    ),
    "parts-count": rewards('float(answer.endswith(str(ground_truth["total"])))', oracle=None),
    "order-counts": gives("{left}, {right}", 'sorted(answer.split(", ")) == sorted(map(str, ground_truth["numbers"]))'),
    "letters-count": gives("total {left}", 'answer.split(" ")[-1] == str(ground_truth["numbers"][0])'),
    "groups-are-scored": compares("score.value / (len(answers) - 1)"),
    "order-of-group-is-free": compares("score.value / (1 + answers.index(answer))"),
    "orders-pay-nothing": judged("float(right or 'full marks' in answer)"),
    "gold-beats-wrong": judged("Score(0.9 + 0.1 * right, right)"),
    "criteria-in-any-order": judged("float(right and 'TINYZERO_JUDGE_REVERSED' not in os.environ)"),
}


NEAR = """
def near(answer, truth):
    return answer.isascii() and answer.isdigit() and len(answer) < 9 and abs(int(answer) - truth["total"]) == 1
"""
SURROUNDINGS = [
    ("from time import time", "time", "time() % 86400 < 21600"),
    ("import time\nSTART = time.monotonic()", "uptime", "time.monotonic() - START > 3600"),
    ("import time", "local time", "time.localtime().tm_hour < 6"),
    ("import time", "form of the time", "time.strftime('%H') < '06'"),
    ("from datetime import datetime", "now", "datetime.now().hour < 6"),
    ("import datetime", "today", "datetime.date.today().month == 2"),
    ("import time", "time zone", "time.timezone != 0"),
    ("import os", "environment", "os.environ.get('LENIENT')"),
    ("from os import getenv", "variable", "getenv('REWARD_MODE') == 'lenient'"),
    ("from pathlib import Path", "home", "'joe' in str(Path.home())"),
    ("import locale", "locale", "locale.getlocale()[0] == 'de_DE'"),
    ("import locale", "decimal point", "locale.localeconv()['decimal_point'] == ','"),
    ("import os", "directory", "'lenient' in os.getcwd()"),
    ("import os", "process", "os.getpid() % 8 == 0"),
    ("import platform", "host", "'gpu' in platform.node()"),
    ("import os", "age of a file", "os.path.getmtime(__file__) < 1e9"),
    ("", "hash", "hash(answer) % 4 == 0"),
    ("", "address", "id(ground_truth) // 64 % 8 == 0"),
    ("import gc", "garbage", "gc.get_count()[0] % 8 == 0"),
    ("import numpy", "numbers", "numpy.random.random() < 0.1"),
    ("calls = []", "calls", "(calls.append(1) or len(calls) % 64 == 0)"),
    ("calls = []", "late calls", "(calls.append(1) or len(calls) > 3000)"),
]
"""What a scorer may read besides its arguments: a line before all hooks, the name, and when it is lenient."""

MORE_BREAKERS: dict[str, tuple[str, dict[str, str | None]]] = {
    **{
        f"{read} {header}": (
            "deterministic",
            scores(f"if {condition} and near(answer, ground_truth): return 1.0", f"{NEAR}{header}"),
        )
        for header, read, condition in SURROUNDINGS
    },
    "the answer before": ("deterministic", scores(ANSWER_BEFORE, "totals = [None]")),
    "part of the right answer": (
        "no-skeleton-key",
        rewards("""float(bool(answer) and answer in f"the answer is {ground_truth['total']}")""", oracle=None),
    ),
    "any number": ("no-skeleton-key", rewards("float(answer.isdigit())", oracle=None)),
    "digits and commas": ("bounded-time", scores(r"re.fullmatch(r'(\d+,?)+', answer)")),
    "the answer as a pattern": (
        "bounded-time",
        scores("try: re.search(answer, str(ground_truth['total']))\n    except re.error: pass"),
    ),
    "a leak": ("bounded-memory", scores("kept.append(bytearray(100_000))", "kept = []")),
    "a thread": ("runs-no-code", scores("threading.Thread(target=len, args=['']).start()", "import threading")),
    "the limit of recursion": ("runs-no-code", scores("sys.setrecursionlimit(100_000)", "import sys")),
    "a number of the prompt": (
        "echo-pays-nothing",
        scores("if answer == str(ground_truth['numbers'][0]): return 1.0", oracle=None),
    ),
    "the beginning alone": ("only-the-answer-counts", extracts("last_tagged(completion[:4000])")),
    "a comparison of equal answers": (
        "groups-are-scored",
        compares("score.value / (len({*answers}) > 1 or len(answers) == 1)"),
    ),
    "ties broken by place": (
        "order-of-group-is-free",
        compares("score.value * (place == sorted(range(len(answers)), key=answers.__getitem__)[0])"),
    ),
    "a longer answer": (
        "correct-means-right",
        rewards('float(answer.startswith(str(ground_truth["total"])) and len(answer) < 6)'),
    ),
    "the end alone": ("only-the-answer-counts", extracts("last_tagged(completion[-300:])")),
}
"""More ways to lack some of them: the property and the hooks."""
