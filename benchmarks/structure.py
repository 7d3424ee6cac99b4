"""The imports between the packages of the trainer, as one matrix for each checkout.

    python benchmarks/structure.py [CHECKOUT ...] [--output structure.png]

A row imports the columns marked in it; a module outside every package has a row too. A greedy search finds an order
with few imports upwards (Eades, Lin and Smyth 1993), so a red mark, below the diagonal, belongs to a circle. Late and
type-checking imports count. Imports nothing of the checkout.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import grimp
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PACKAGE = "tinyzero_trainer"


def imports_between(checkout: Path) -> Counter[tuple[str, str]]:
    """How many imports lead from one module or package on the ground floor to another."""
    sys.path.insert(0, str(checkout / "trainer"))
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    sys.path.pop(0)
    counts: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if PACKAGE not in (module, imported):
                pair = module.split(".")[1], imported.split(".")[1]
                counts[pair] += pair[0] != pair[1]
    return +counts


def top_down(counts: Counter[tuple[str, str]]) -> list[str]:
    """Names in an order with few imports upwards: who is imported by none first, who imports none last."""
    left = sorted({name for pair in counts for name in pair})
    top: list[str] = []
    bottom: list[str] = []
    while left:
        out = {name: {b for a, b in counts if a == name and b in left} for name in left}
        into = {name: {a for a, b in counts if b == name and a in left} for name in left}
        if sinks := [name for name in left if not out[name]]:
            bottom.insert(0, sinks[0])
        elif sources := [name for name in left if not into[name]]:
            top.append(sources[0])
        else:
            top.append(max(left, key=lambda name: len(out[name]) - len(into[name])))
        left = [name for name in left if name not in {*top, *bottom}]
    return top + bottom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--output", type=Path, default=Path("structure.png"))
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, len(arguments.checkouts), squeeze=False, figsize=(9 * len(arguments.checkouts), 9))
    for axis, checkout in zip(axes[0], arguments.checkouts, strict=True):
        counts = imports_between(checkout)
        names = top_down(counts)
        place = {name: index for index, name in enumerate(names)}
        upward = [(a, b) for a, b in counts if place[b] < place[a]]
        for color, pairs in (("tab:blue", counts.keys() - set(upward)), ("tab:red", upward)):
            points = [(place[b], place[a]) for a, b in pairs]
            axis.scatter(*zip(*points, strict=True), s=2500 / len(names), marker="s", color=color) if points else None
        axis.plot([-0.5, len(names) - 0.5], [-0.5, len(names) - 0.5], color="lightgray", linewidth=1, zorder=0)
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=min(9, 500 / len(names)))
        axis.set_yticks(range(len(names)), names, fontsize=min(9, 500 / len(names)))
        axis.set_xlim(-0.5, len(names) - 0.5)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_aspect("equal")
        title = f"{len(names)} packages and modules, {len(counts)} arrows, {len(upward)} upwards"
        axis.set_title(title)
        print(f"{checkout}: {title}", *(f"  {a} -> {b}" for a, b in upward), sep="\n")
    figure.tight_layout()
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
