"""A loaded task: its hooks as typed methods, with the score guard around the scorer.

`load_task` in `registry.py` finds, imports and checks it.
"""

import math
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from inspect import iscoroutinefunction
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pluggy import HookCaller, PluginManager

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.hookspecs import Message
from tinyzero_sdk.records import Completion, Item, Json, Score, ScoreColumns, Split, TaskInfo
from tinyzero_sdk.records_arrow import ItemColumns
from tinyzero_sdk.tasks.group_guard import GroupGuard
from tinyzero_sdk.tasks.score_guard import ScoreGuard, describe_value
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION, iterate_split
from tinyzero_sdk.tasks.unsafe_scorers import check_allowed, check_place

if TYPE_CHECKING:
    import numpy as np

TEMPLATES = ("base", "chat", "compact")
"""Names of prompt templates; a task may have fewer."""


class Task:
    """One task with its options.

    A task pickles as its name, options, wrappers and version (see `registry.py`); unpickling loads it again, in any
    process, and refuses another version.

    Where a hook raises, or returns an invalid value, the methods raise a BrokenTaskError that names the task and the
    hook; `score` raises the task's own exception, and `score_completion` never raises.

    Example:
        >>> from tinyzero_sdk import load_task
        >>> task = load_task("countdown")
        >>> task.score_completion("<answer>3 + 4</answer>", {"target": 7, "numbers": [3, 4]}).value
        1.0
    """

    def __init__(
        self,
        name: str,
        version: str,
        source: str,
        plugin_manager: PluginManager,
        info: TaskInfo,
        options: Any = None,
        option_values: Mapping[str, Any] | None = None,
        wrappers: Sequence[str] = (),
        allow_unsafe_scorers: bool = False,
    ) -> None:
        """Call `load_task` instead, which checks what it passes here.

        `version` is that of the distribution, or a hash of the task's files, and `source` what `load_task` takes in
        another process. `plugin_manager` holds the task, the defaults and the wrappers; the score guard is added here.
        """
        self.name = name
        self.version = version
        self.source = source
        self.plugin_manager = plugin_manager
        self.info = info
        self.options = options
        self.option_values = dict(option_values or {})
        self.wrappers = tuple(wrappers)
        self.allow_unsafe_scorers = allow_unsafe_scorers

        self.data_version: str | None = None
        """Hash of the files that its problems come from; None = it makes them itself."""

        self.makes_prompts = True
        """Whether the template counts; False = its problems come from files that have all prompts."""

        self.is_async = is_async(plugin_manager)
        """Whether `score` is a coroutine function: then `prefetch` scores a batch at once."""

        callers = vars(plugin_manager.hook).values()
        self._hooks = {caller.name: bind(caller, options) for caller in callers if caller.spec}
        self._add_guard()

        self.has_own_splits = bool(self._call("has_own_splits"))
        """Whether the task has its own splits; otherwise problems are divided by the hash of their key."""

    def _add_guard(self) -> None:
        """Put the score guard around the scorer and inside the wrappers."""
        hook, info, hooks = self.plugin_manager.hook, self.info, self._hooks
        self._score = hooks["score"]
        if self.is_async:
            from tinyzero_sdk.tasks.async_scorer import AsyncScorer, identity_of

            function = hook.score.get_hookimpls()[-1].function
            identity = identity_of(self.name, self.version, self.options, function, info.judge)
            self._async_scorer = AsyncScorer(self._score, self._check_result, info.limits, identity)
            self._score = self._async_scorer.score
        is_valid = hooks["is_valid"] if hook.is_valid.get_hookimpls() else None
        checked = (self.name, hooks["extract_answer"], self._score, info.score_range, is_valid, info.parts)
        self._group_guard = None
        if hook.score_group.get_hookimpls():
            self._group_guard = GroupGuard(*checked, score_group=hooks["score_group"])
        self._guard: ScoreGuard = self._group_guard or ScoreGuard(*checked)
        self._score = self._guard.score_answer
        self.plugin_manager.register(self._guard, name="score guard")
        is_wrapped = len(hook.score_completion.get_hookimpls()) > 1
        wrapped = bind(hook.score_completion, self.options)  # anew, now that the guard is there
        self._score_completion = self._guard.around(wrapped) if is_wrapped else self._guard.score_completion
        if self._group_guard:
            self._score_completion = lambda completion, truth: self.score_group([completion], truth)[0]
        is_plain = not (is_wrapped or self._group_guard or info.unsafe_scorer)
        self.score_into = self._guard.score_into if is_plain else self._score_into
        """(columns, completion, ground_truth): append what `score_completion` gives to columns."""
        if info.unsafe_scorer:  # wrapped here, so that a safe task's calls do not pay for it
            self._score, self._score_completion = self._in_place(self._score), self._in_place(self._score_completion)

    def _check_result(self, result: Any, answer: str) -> Score:
        return self._guard.check(result, answer)  # which is made after the scorer

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.version}>"

    @property
    def module_file(self) -> Path:
        """The file of the module that has its hooks."""
        plugin: Any = self.plugin_manager.get_plugin("task")
        module = plugin if isinstance(plugin, ModuleType) else sys.modules[type(plugin).__module__]
        return Path(module.__file__ or ".")

    def check_scoring_allowed(self) -> None:
        """Called before scoring in worker processes.

        Raises:
            UnsafeScorerError: the scorer is unsafe and was not allowed.
        """
        check_allowed(self.name, self.info.unsafe_scorer, self.allow_unsafe_scorers)

    @property
    def compares_completions(self) -> bool:
        """Whether it has the hook `score_group`, so that a reward depends on the problem's other completions."""
        return self._group_guard is not None

    def _in_place(self, scorer: Callable[..., Any]) -> Callable[..., Any]:
        def score(text: Any, ground_truth: Json) -> Any:
            self._check_place()
            return scorer(text, ground_truth)

        return score

    def _check_place(self) -> None:
        check_place(self.name, self.info.unsafe_scorer, self.allow_unsafe_scorers)

    @property
    def settings(self) -> dict[str, Any]:
        """All options, by name, and the weights of the parts of its reward: what a score depends on."""
        weights = {name: part.weight for name, part in self.info.parts.items()}
        options = {} if self.options is None else asdict(self.options)
        return {**options, "weights": weights} if weights else options

    @property
    def error_count(self) -> int:
        """Number of completions that got the reason `error` in this process."""
        return self._guard.error_count

    @property
    def first_error(self) -> str | None:
        """Traceback of the first of them, whose last line names the task's own file and line."""
        return self._guard.first_error

    def generate(self, split: Split, size: int, *, seed: int = 0, start: int = 0) -> ItemColumns | list[Item]:
        """Candidates start … start + size - 1 as the task generates them, with repeats and the other split's problems.

        Fewer than `size` where the task ends.
        """
        candidates = self._call("generate_dataset", split, size, seed, start)
        if isinstance(candidates, ItemColumns):
            return candidates
        if not isinstance(candidates, Iterable):
            raise self._refusal("generate_dataset", candidates, "an iterable of Item, or ItemColumns")
        items: list[Item] = self._call("generate_dataset", islice(candidates, size), function=list)
        for item in items:
            if not isinstance(item, Item):
                raise self._refusal("generate_dataset", item, "nothing but Item in the iterable")
        return items

    def dataset(
        self,
        split: Split,
        size: int | None = None,
        *,
        seed: int = 0,
        test_fraction: float = DEFAULT_TEST_FRACTION,
        start: int = 0,
    ) -> Iterator[Item]:
        """`size` problems of a split (None = all) from number `start` on: none twice, and none in both splits."""
        end = None if size is None else start + size
        return islice(iterate_split(self, split, size=end, seed=seed, test_fraction=test_fraction), start, None)

    def make_prompt(self, item: Item, template: str = "base") -> str | list[Message]:
        prompt = self._call("make_prompt", item, template)
        if not (_is_text(prompt) or (isinstance(prompt, list) and all(map(_is_message, prompt)))):
            raise self._refusal("make_prompt", prompt, "str, or a list of {'role': str, 'content': str}, in UTF-8")
        return prompt

    def templates(self, item: Item) -> dict[str, str | list[Message]]:
        """The item's prompt by each template that the task has."""
        prompts = {}
        for template in TEMPLATES:
            with suppress(TinyZeroError):
                prompts[template] = self.make_prompt(item, template)
        return prompts

    def extract_answer(self, text: str) -> str | None:
        """The answer in a completion, special tokens removed, or None."""
        return self._guard.extract_answer(text)

    def score(self, answer: str, ground_truth: Json) -> Score:
        """The score of an answer. Unlike `score_completion`, it raises the task's own exceptions.

        Raises:
            BrokenTaskError: the task returned no valid score.
            UnsafeScorerError: the scorer is unsafe, and not allowed or not in a worker process.
        """
        score = self._guard.check(self._score(answer, ground_truth), answer)
        return score if self._group_guard is None else self._group_guard.compare_answers(ground_truth, [score])[0]

    def score_completion(self, completion: Completion | str, ground_truth: Json) -> Score:
        """The score of a completion: extract, score, check.

        Never raises because of the task or the completion: a failing task scores 0 with the reason `error`, counted in
        `error_count`; `first_error` has the first traceback. The ground truth is passed on without a copy: a task must
        not modify it.

        Raises:
            UnsafeScorerError: the scorer is unsafe, and not allowed or not in a worker process.
        """
        return self._score_completion(completion, ground_truth)

    def score_completions(self, completions: Sequence[Completion | str], ground_truths: Sequence[Json]) -> ScoreColumns:
        """What `score_completion` gives for each, as columns: the fast way to score many.

        Example:
            >>> from tinyzero_sdk import load_task
            >>> task, truth = load_task("countdown"), {"target": 7, "numbers": [3, 4]}
            >>> task.score_completions(["<answer>3 + 4</answer>", "<answer>3 * 4</answer>"], [truth, truth]).values
            [1.0, 0.0]
        """
        self.prefetch(completions, ground_truths)
        columns, score_into = ScoreColumns(), self.score_into
        for completion, ground_truth in zip(completions, ground_truths, strict=True):
            score_into(columns, completion, ground_truth)
        return columns

    def _score_into(self, columns: ScoreColumns, completion: Completion | str, ground_truth: Json) -> None:
        score = self._score_completion(completion, ground_truth)
        columns.add(score, score.answer)

    def score_group(self, completions: Sequence[Completion | str], ground_truth: Json) -> list[Score]:
        """The scores of one problem's completions, compared where the task has the hook; else as `score_completion`."""
        if self._group_guard is None:
            return [self.score_completion(completion, ground_truth) for completion in completions]
        return self.compare(completions, ground_truth, [self.score_alone(text, ground_truth) for text in completions])

    def score_alone(self, completion: Completion | str, ground_truth: Json) -> Score:
        """The first half of `score_group`, of a task with the hook: the score before it is compared with others."""
        assert self._group_guard is not None
        self._check_place()
        return self._group_guard.score_alone(completion, ground_truth)

    def compare(
        self, completions: Sequence[Completion | str], ground_truth: Json, scores: Sequence[Score]
    ) -> list[Score]:
        """The second half: the scores by `score_alone` become those of `score_group`."""
        assert self._group_guard is not None
        self._check_place()
        return self._group_guard.compare(completions, ground_truth, scores)

    def prefetch(
        self,
        completions: Sequence[Completion | str],
        ground_truths: Sequence[Json],
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """If `score` is asynchronous, score these at once: the same calls of `score_completion` then find their scores.

        `beat` is called for each, and several times a second as long as none of them blocks the others.
        """
        if not self.is_async:
            return
        answers = []
        for completion, ground_truth in zip(completions, ground_truths, strict=True):
            beat()
            with suppress(Exception, SystemExit):  # `score_completion` meets and counts it
                ground_truth = self._guard.read_truth(ground_truth)
                answer = self.extract_answer(completion if isinstance(completion, str) else completion.text)
                if answer is not None:
                    answers.append((answer, ground_truth))
        self._async_scorer.prefetch(answers, beat)

    def difficulty(self, item: Item) -> float:
        value = self._call("difficulty", item)
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            number = self._call("difficulty", value, function=float)
            if math.isfinite(number):
                return number
        raise self._refusal("difficulty", value, "a finite number")

    def difficulties(self, items: ItemColumns | Sequence[Item]) -> "np.ndarray | list[float]":
        """[n] difficulty of each item."""
        batch = items if isinstance(items, ItemColumns) else None
        together = None if batch is None else self._call("difficulties", batch)
        return [self.difficulty(item) for item in items] if together is None else together

    def item_key(self, item: Item) -> str:
        """The item's canonical key: the same for items that are the same problem."""
        key = self._call("item_key", item)
        if not _is_text(key):
            raise self._refusal("item_key", key, "str, in UTF-8")
        return key

    def read_row(self, row: Mapping[str, Json]) -> Item | None:
        """The item in a row of a dataset that the task knows, or None."""
        item = self._call("read_row", row)
        if item is not None and not isinstance(item, Item):
            raise self._refusal("read_row", item, "Item, or None")
        return item

    def solve(self, item: Item) -> str | None:
        """A gold completion, or None where the task has none."""
        return self._text_or_none("solve", item)

    def demonstrate(self, item: Item, seed: int) -> str | None:
        """A worked attempt at the item, possibly wrong, or None where the task has none."""
        return self._text_or_none("demonstrate", item, seed)

    def oracle(self, answer: str, ground_truth: Json) -> bool | None:
        """Whether the task's oracle accepts the answer, or None where it cannot tell."""
        return self._call("oracle", answer, ground_truth)

    def read_truth(self, ground_truth: Json) -> Json:
        """A ground truth of a file as the task takes it; as it stands where the task has no hook `is_valid`.

        Raises:
            BrokenTaskError: the task takes it in no form.
        """
        return self._call("is_valid", ground_truth, function=self._guard.read_truth)

    def is_valid(self, ground_truth: Json) -> bool:
        """Whether this could be the ground truth of an item; False where the task has no such hook."""
        try:
            return bool(self._call("is_valid", ground_truth))
        except BrokenTaskError as error:  # the ground truth may be a varied one, which the author has not seen
            raise BrokenTaskError(f"{error}, for the ground truth {ground_truth!r:.200}") from error

    def grammar(self, item: Item) -> Mapping[str, Sequence[str]] | None:
        """Grammar of answers to the item, or None where there is none; `docs/reference/hooks.md` says how it looks."""
        rules = self._call("grammar", item)
        if rules is not None and not (isinstance(rules, Mapping) and rules and all(map(_is_rule, rules.items()))):
            raise self._refusal("grammar", rules, "a mapping from names to lists of str, none of them empty")
        return rules

    def _text_or_none(self, hook: str, *arguments: Any) -> str | None:
        text = self._call(hook, *arguments)
        if text is not None and not _is_text(text):
            raise self._refusal(hook, text, "str, in UTF-8, or None")
        return text

    def _call(self, hook: str, *arguments: Any, function: Callable[..., Any] | None = None) -> Any:
        """Call a hook, or a function around it; any exception but a TinyZeroError becomes a BrokenTaskError."""
        try:
            return (function or self._hooks[hook])(*arguments)
        except (KeyboardInterrupt, TinyZeroError):
            raise
        except BaseException as error:  # SystemExit included, which would end the program silently
            raise BrokenTaskError(f"task {self.name!r}: {hook} raised {describe_error(error)}") from error

    def _refusal(self, hook: str, value: Any, expected: str) -> BrokenTaskError:
        return BrokenTaskError(f"task {self.name!r}: {hook} returned {describe_value(value)}; expected {expected}")


def _is_text(value: Any) -> bool:
    """Whether it is text that UTF-8 can encode (a lone surrogate is not)."""
    if not isinstance(value, str):
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _is_rule(rule: tuple[Any, Any]) -> bool:
    name, productions = rule
    is_list = isinstance(productions, list | tuple)
    return isinstance(name, str) and is_list and bool(productions) and all(map(_is_text, productions))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"role", "content"} and all(map(_is_text, value.values()))


def is_async(plugin_manager: PluginManager) -> bool:
    """Whether the task's `score` is a coroutine function."""
    return any(iscoroutinefunction(score.function) for score in plugin_manager.hook.score.get_hookimpls())


def bind(hook: HookCaller, options: Any) -> Callable[..., Any]:
    """A callable that takes the hook's arguments by position and adds `options` itself.

    A call through pluggy costs about 1 µs; one implementation without wrappers is called directly instead. It ignores
    later registrations. Without an implementation it returns None.
    """
    assert hook.spec is not None
    names = tuple(name for name in hook.spec.argnames if name != "options")
    takes_options = len(names) < len(hook.spec.argnames)
    implementations = hook.get_hookimpls()
    if len(implementations) != 1 or implementations[0].wrapper or implementations[0].hookwrapper:
        fixed = {"options": options} if takes_options else {}
        return lambda *values: hook(**dict(zip(names, values, strict=True)), **fixed)

    function, parameters = implementations[0].function, tuple(implementations[0].argnames)
    if parameters == names:
        return function
    if parameters == (*names, "options"):
        return lambda *values: function(*values, options)
    # An implementation may take fewer arguments, and in any order.
    indices = [(*names, "options").index(name) for name in parameters]
    return lambda *values: function(*[(*values, options)[index] for index in indices])
