"""The smallest completion that shows a finding. A changed answer is cut down as text; a finding about the frame of an
answer keeps its frame, and is shown on the smallest problem instead.
"""

import random
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from tinyzero_sdk.fuzz.differential import DifferentialOracle
from tinyzero_sdk.fuzz.findings import Finding, make_finding
from tinyzero_sdk.fuzz.items import FuzzItem, check_variant, make_variant
from tinyzero_sdk.fuzz.presentations import Attempt, present, simpler_presentation
from tinyzero_sdk.fuzz.shrinking import shrink_pair
from tinyzero_sdk.records import Json

_MOST_TRIES = 20_000
_MOST_VARIANTS = 200


@dataclass(frozen=True, slots=True)
class Reducer:
    """Makes findings smaller."""

    differential: DifferentialOracle
    rng: random.Random
    usual: Set[str]
    """Traits of answers about which reward and oracle agree; they grow as the search goes on."""

    announce: Callable[[Json, list[Attempt]], None]
    """Tells the parent what is about to be tried."""

    def reduce(self, finding: Finding, attempt: Attempt, item: FuzzItem, others: Iterable[FuzzItem]) -> Finding:
        """The smallest finding of the same group."""
        if finding.is_about_presentation:
            return self._on_small_problems(finding, attempt, [item, *others])
        return self._cut_down(finding, item)

    def _cut_down(self, finding: Finding, item: FuzzItem) -> Finding:
        def holds(text: str, truth: Json) -> bool:
            return self._try(Attempt(text), truth, finding) is not None

        def valid(truth: Json) -> bool:
            return check_variant(self.differential, item.original, truth, self.rng) is not None

        text, truth = shrink_pair(finding.completion, finding.ground_truth, holds, valid, _MOST_TRIES)
        return self._try(Attempt(text), truth, finding) or finding

    def _on_small_problems(self, finding: Finding, attempt: Attempt, items: Sequence[FuzzItem]) -> Finding:
        best, best_item, how = finding, items[0], attempt.how
        for item in sorted(items, key=lambda item: item.size)[:20]:
            for name in (simpler_presentation(how), how):
                smaller = self._present(name, item, best)
                if smaller is not best:
                    best, best_item, how = smaller, item, name
        for _ in range(_MOST_VARIANTS):
            variant = make_variant(self.differential, best_item, self.rng)
            if variant is not None and variant.size < best_item.size:
                smaller = self._present(how, variant, best)
                if smaller is not best:
                    best, best_item = smaller, variant
        return best

    def _present(self, how: str, item: FuzzItem, best: Finding) -> Finding:
        """The finding on this problem, with the shortest wrong answer that is one, if that is smaller."""
        if item.gold is None:
            return best
        for wrong in ("0", "1", item.stock.numbers[0]):
            if self.differential.is_right(wrong, item.short.around(wrong), item.truth):
                continue
            found = self._try(present(how, item.short, item.gold, wrong), item.truth, best)
            if found is not None and found.size < best.size:
                best = found
        return best

    def _try(self, attempt: Attempt, truth: Json, wanted: Finding) -> Finding | None:
        """What the attempt shows, if it is of the group of the finding that is wanted."""
        self.announce(truth, [attempt])
        _, fault = self.differential.compare(attempt, truth)
        if fault is None or fault.kind != wanted.kind:
            return None
        found = make_finding(attempt, truth, fault, self.usual)
        return found if set(found.traits) <= set(wanted.traits) else None
