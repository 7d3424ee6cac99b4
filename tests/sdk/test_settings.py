"""Settings: overrides and TOML into dataclasses, and the message of each mistake."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Le
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.records import Completion
from tinyzero_sdk.settings import build, describe, field_docs, merge, parse_overrides, read_toml, to_mapping


@dataclass(frozen=True)
class Inner:
    """A table."""

    rate: Annotated[float, Gt(0)] = 0.5
    """How fast; above
    zero."""

    names: tuple[str, ...] = ()
    """Who."""


@dataclass(frozen=True)
class Outer:
    """A tree."""

    size: Annotated[int, Ge(1), Le(9)] = 3
    """How many."""

    mode: Literal["fast", "slow"] = "fast"
    path: str | None = None
    pair: tuple[int, int] = (1, 2)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self):
        if self.mode == "slow" and self.size > 5:
            raise ValueError("mode = slow needs size <= 5")


TREES = st.recursive(
    st.integers() | st.text(), lambda below: st.dictionaries(st.sampled_from("abc"), below, max_size=3), max_leaves=6
).filter(lambda tree: isinstance(tree, dict))


@given(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.lists(st.integers()))
def test_the_value_of_an_override_is_toml(value):
    assert parse_overrides([f"a.b={json.dumps(value)}"]) == {"a": {"b": value}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"), ("a=b", "a=b"), ("", ""), ("none", None), ("null", None),
        ('"none"', "none"), ("true", True), ("1e-4", 1e-4), ("[1", "[1"), ("1\nb = 2", "1\nb = 2"),
        ("{rate = 1}", {"rate": 1}), ("[a]", ["a"]), ("[a, b(c=1, d=2), 'e f', 3]", ["a", "b(c=1, d=2)", "e f", 3]),
        ("[a b]", "[a b]"), ("[^a]+", "[^a]+"), ("[a](b)", "[a](b)"),
    ],
)  # fmt: skip
def test_other_values_are_text(text, value):
    assert parse_overrides([f"key={text}"]) == {"key": value}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run.seed"], "got 'run.seed', expected run.seed=VALUE"),
        (["=1"], "expected task.KEY=VALUE"),
        (["a-b=1"], "expected task.KEY=VALUE"),
        (["a=1", "a=1"], "'a' is given twice"),
        (["a.b=1", "a=2"], "'a' is given twice"),
        (["a=1", "a.b=2"], "'a.b' is set below 'a', which already has a value"),
    ],
)
def test_impossible_overrides(words, message):
    with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
        parse_overrides(words)


@given(TREES, TREES)
def test_merge_puts_one_tree_on_another(base, over):
    before = json.dumps(base)
    merged = merge(base, over)
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}) == {"a": {"b": 9, "c": 2}, "d": 3}
    assert merge(base, {}) == base
    assert merge({}, over) == over
    assert merge(merged, over) == merged
    assert json.dumps(base) == before


@given(
    st.builds(
        Outer,
        size=st.integers(1, 5),
        mode=st.sampled_from(["fast", "slow"]),
        path=st.none() | st.text(),
        pair=st.tuples(st.integers(), st.integers()),
        inner=st.builds(Inner, rate=st.floats(1e-9, 1e9), names=st.lists(st.text()).map(tuple)),
    )
)
def test_settings_survive_a_mapping(settings):
    assert build(Outer, to_mapping(settings)) == settings


def test_defaults_fill_what_is_missing_and_what_means_the_same_is_taken():
    assert build(Outer, {}) == Outer()
    assert build(Outer, {"inner": {"names": ["x"]}}).inner == Inner(names=("x",))
    assert build(Outer, {"inner": {"rate": 1}, "path": None}) == Outer(inner=Inner(rate=1.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sise": 1}, "unknown key 'task.sise'; did you mean 'task.size'? known here: task.size, task.mode"),
        ({"inner": {"rat": 1}}, "unknown key 'task.inner.rat'; did you mean 'task.inner.rate'?"),
        ({"xyzzy": 1}, "unknown key 'task.xyzzy'; known here: "),
        ({"rate": 1}, "unknown key 'task.rate'; did you mean 'task.inner.rate'? known here: task.size, "),
        ({"iner": {"rate": 1}}, "unknown key 'task.iner.rate'; did you mean 'task.inner.rate'? known here: task.size"),
        ({"size": 0}, "task.size: got 0; input should be greater than or equal to 1"),
        ({"size": "many"}, "task.size: got 'many'; input should be a valid integer"),
        ({"mode": "quick"}, "task.mode: got 'quick'; input should be 'fast' or 'slow'"),
        ({"inner": {"rate": float("nan")}}, "task.inner.rate: got nan"),
        ({"inner": 3}, "'task.inner' is a group of keys; set one of them, such as task.inner.rate=…"),
        ({"mode": "slow", "size": 6}, "task: mode = slow needs size <= 5"),
        ({"size": True}, "task.size: got True; input should be a valid integer"),
        ({"size": "3"}, "task.size: got '3'; input should be a valid integer"),
        ({"pair": [1, "2"]}, "task.pair.1: got '2'; input should be a valid integer"),
        ({"pair": 3}, "task.pair: got 3; input should be a list, such as [1, 2]"),
        ({"inner": {"rate": True}}, "task.inner.rate: got True; input should be a valid number"),
    ],
)
def test_each_mistake_names_the_key_and_the_fix(values, message):
    with pytest.raises(SettingsError) as caught:
        build(Outer, values, prefix="task.")
    assert str(caught.value).startswith(message)


def test_toml_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('size = 4\n[inner]\nnames = ["é"]\n', encoding="utf-8")
    assert build(Outer, read_toml(path)) == Outer(size=4, inner=Inner(names=("é",)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"size = \n", "not valid TOML.*line 1"),
        (b"size = 1\nsize = 2\n", "not valid TOML.*line 2"),
        (b"\xff", "not valid TOML"),
        (b"a." * 100_000 + b"b = 1\n", "not valid TOML.*a key of over a hundred parts"),
        (None, "cannot read .*run.toml: No such file"),
    ],
)
def test_unreadable_toml(tmp_path, content, message):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_toml(path)


def test_description_lists_every_leaf_with_its_help():
    fields = {field.key: field for field in describe(Outer, prefix="task.")}
    assert list(fields) == ["task.size", "task.mode", "task.path", "task.pair", "task.inner.rate", "task.inner.names"]
    assert fields["task.size"].default == 3
    assert fields["task.size"].help == "How many."
    assert fields["task.mode"].help == ""
    assert fields["task.inner.rate"].help == "How fast; above zero."
    assert next(iter(describe(Completion))).default is dataclasses.MISSING
    assert field_docs(dataclasses.make_dataclass("Made", [("size", int, 1)])) == {}  # a class without source
