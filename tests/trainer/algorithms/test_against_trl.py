"""Loss and gradient against TRL's published package: same tokens, rewards, weights and advantages.

Both start from one model and one batch of ragged completions, with old log-probabilities that leave the clip range on
both sides; TRL's side is its own trainer from the tokens on (`against_trl.py`). Where the two differ on purpose:

* TRL divides advantages by std + 1e-4, this trainer, like verl, by std + 1e-6; and a group of equal rewards has
  advantages of exactly 0 here, while there the rounding error of their mean is divided by 1e-4.
* GSPO is TRL's loss `grpo` with `importance_sampling_level="sequence"`, since it refuses sequence-level ratios with its
  other losses. Here it is a policy loss that combines with any aggregation; the paper's is `seq-mean-token-mean`.
* TRL's `epsilon_high` is with CISPO the bound itself and there is no lower bound; here the bound is
  `1 + clip_ratio_high` as with the other losses, and `clip_ratio_low=1` removes the lower one.
* TRL's two-sided clip `delta` is dual clip. Its loss `sapo` is the example of a custom loss in the documentation.
* By default TRL multiplies k3 by the ratio, which makes its gradient the divergence's; the same comes here from the
  estimators `k3+` and `k2`, or exactly from `exact`. The comparison is of k3 itself (`use_bias_correction_kl=False`).
* TRL averages over each micro-batch and then over those, but for the losses that know their global token count; here
  all weights are the mini-batch's. With one micro-batch, as here on TRL's side, the two are the same.
"""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from tests.environments import run_script

pytestmark = pytest.mark.nightly(reason="installs and loads TRL; every change tests the losses against their papers")

SCRIPT = Path(__file__).with_name("against_trl.py")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One row per algorithm, and one with a KL to the initial model; shown by `-s`."""
    folder = tmp_path_factory.mktemp("against_trl")
    rows: list[dict[str, Any]] = run_script("trl", SCRIPT, str(folder), cwd=folder)
    columns = ("algorithm", "kl", "clipped", "trl_loss", "loss_error", "gradient_error")
    table = Table(*columns, title="this trainer against TRL 1.16.0, relative errors")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value := row[name], float) else value for name in columns))
    Console(width=100).print(table)
    return rows


def test_loss_and_gradient_are_trls(results: list[dict[str, Any]]) -> None:
    wrong = [row for row in results if max(row["loss_error"], row["gradient_error"]) > TOLERANCE]
    assert wrong == []
    names = ["grpo", "dr_grpo", "dapo", "dual clip", "gspo", "cispo", "gdpo", "a custom loss", "dapo"]
    assert [row["algorithm"] for row in results] == names
    assert [row["kl"] > 0 for row in results] == [False] * 8 + [True]


def test_the_comparison_is_not_trivial(results: list[dict[str, Any]]) -> None:
    """At least a tenth of the tokens is clipped and a tenth is not, and no two algorithms have the same loss."""
    assert all(0.1 < row["clipped"] < 0.9 for row in results if row["algorithm"] != "a custom loss")
    assert all(row["gradient_norm"] > 1e-2 for row in results)
    losses = [round(row["trl_loss"], 7) for row in results]
    assert len(set(losses)) == len(losses)


def test_advantages_differ_by_the_epsilon_alone(results: list[dict[str, Any]]) -> None:
    for row in results:
        ours, theirs = row["advantages"], row["trl_advantages"]
        if row["algorithm"] == "gdpo":  # divided twice
            assert ours == pytest.approx(theirs, rel=2e-3)
            continue
        if row["scaled"]:
            ours = [value * (std + 1e-6) / (std + 1e-4) for value, std in zip(ours, row["std"], strict=True)]
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
        assert any(theirs)
