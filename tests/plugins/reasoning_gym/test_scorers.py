"""The search for scorers that evaluate text, on fake datasets; `test_tasks.py` has those of reasoning-gym."""

import importlib
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tinyzero_reasoning_gym import scorers

HEADER = """
import ast, builtins, collections, dataclasses, functools, json, math, operator, os, re, sys, typing
import numpy as np
from math import isclose as near
from json import loads as parse_expr
from os import system as shell

evaluate = eval
TABLE = {"run": eval}

def outer(text):
    return inner(text)

def inner(text):
    return eval(text)

def traced(function):
    def wrapper(self, answer, entry):
        exec(answer)
        return function(self, answer, entry)
    return wrapper

class Base:
    handler = eval
    def score_answer(self, answer, entry):
        return self.compare(answer, entry)
    def compare(self, answer, entry):
        return float(answer == entry["answer"])

class Machine:
    def __init__(self, text):
        self.text = text
    def run(self):
        return eval(self.text)
    def show(self):
        return self.text

class Quiet(Machine):
    def run(self):
        return 1.0

@dataclasses.dataclass
class Options:
    size: int = 3
"""
SAFE = {
    "inherited": "pass",
    "compared": "def score_answer(self, answer, entry): return float(near(float(answer), math.pi))",
    "json": "def score_answer(self, answer, entry): return float(parse_expr(answer) == 3)",
    "literal": "def score_answer(self, answer, entry): return float(ast.literal_eval(answer) == 3)",
    "pattern": "def score_answer(self, answer, entry): return float(bool(re.compile('a+').match(answer)))",
    "numpy": "def score_answer(self, answer, entry): return float(np.isclose(float(answer), 3))",
    "other_method": "def score_answer(self, answer, entry): return float(Machine(answer).show() == 'x')",
    "unused": "def helper(self, text): return eval(text)",
    "dataclass": "def score_answer(self, answer, entry): return float(Options(3) == Options(len(answer)))",
}
UNSAFE = {
    "eval": "def score_answer(self, answer, entry): return eval(answer)",
    "exec": "def score_answer(self, answer, entry): exec(answer)",
    "compile": "def score_answer(self, answer, entry): return compile(answer, '', 'eval')",
    "alias": "def score_answer(self, answer, entry): return evaluate(answer)",
    "table": "def score_answer(self, answer, entry): return TABLE['run'](answer)",
    "builtins": "def score_answer(self, answer, entry): return builtins.eval(answer)",
    "dunder_builtins": "def score_answer(self, answer, entry): return __builtins__['eval'](answer)",
    "getattr": "def score_answer(self, answer, entry): return getattr(self, answer)()",
    "attrgetter": "def score_answer(self, answer, entry): return operator.attrgetter(answer)(self)",
    "subclasses": "def score_answer(self, answer, entry): return ().__class__.__base__.__subclasses__()",
    "passed_on": "def score_answer(self, answer, entry): return functools.reduce(eval, [answer])",
    "helper": "def score_answer(self, answer, entry): return outer(answer)",
    "overridden": "def compare(self, answer, entry): return eval(answer)",
    "class_attribute": "def score_answer(self, answer, entry): return self.handler(answer)",
    "instance_attribute": """
        def __init__(self): self.run = evaluate
        def score_answer(self, answer, entry): return self.run(answer)
    """,
    "decorated": """
        @traced
        def score_answer(self, answer, entry): return 1.0
    """,
    "object": "def score_answer(self, answer, entry): return Machine(answer).run()",
    "subclass_calls_up": "def score_answer(self, answer, entry): return super(Quiet, Quiet(answer)).run()",
    "lambda": "score_answer = lambda self, answer, entry: eval(answer)",
    "nested": "def score_answer(self, answer, entry): return (lambda text: [eval(text) for _ in 'x'])(answer)[0]",
    "imported_within": """
        def score_answer(self, answer, entry):
            from sympy import sympify
            return sympify(answer)
    """,
    "shell": "def score_answer(self, answer, entry): return shell(answer)",
    "module": "def score_answer(self, answer, entry): return os.system(answer)",
    "file": "def score_answer(self, answer, entry): return open(answer).read()",
    "numpy_file": "def score_answer(self, answer, entry): return np.loadtxt(answer)",
    "type_hints": "def score_answer(self, answer, entry): return typing.ForwardRef(answer)",
    "no_source": "score_answer = eval('lambda self, answer, entry: 1.0')",
    "missing": "score_answer = None",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A package `planted` whose module has a class for each case above."""
    folder = tmp_path_factory.mktemp("planted")
    classes = [
        f"class {name.title().replace('_', '')}(Base):\n{indent(dedent(body).strip(), '    ')}\n"
        for name, body in (SAFE | UNSAFE).items()
    ]
    (folder / "planted").mkdir()
    (folder / "planted/__init__.py").write_text(HEADER + "\n" + "\n".join(classes))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("planted")
    sys.path.remove(str(folder))
    del sys.modules["planted"]


def judge(planted, monkeypatch, name):
    monkeypatch.setattr(scorers, "PACKAGE", "planted")
    return scorers.why_unsafe(vars(planted)[name.title().replace("_", "")]())


@pytest.mark.parametrize("name", SAFE)
def test_safe_scorers(name, planted, monkeypatch):
    assert judge(planted, monkeypatch, name) == ""


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_scorers(name, planted, monkeypatch):
    assert judge(planted, monkeypatch, name).startswith("its code ")


def test_the_reason_names_the_place(planted, monkeypatch):
    reason = judge(planted, monkeypatch, "helper")
    line = 1 + Path(planted.__file__).read_text().splitlines().index("    return eval(text)")
    assert reason == f"its code calls eval (planted:{line})"
