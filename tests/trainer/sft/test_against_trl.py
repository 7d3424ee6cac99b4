"""The loss curve of `tinyzero sft` against TRL's published SFTTrainer: same start, examples, order and settings."""

from pathlib import Path

import pytest

from tests.environments import run_script


@pytest.mark.nightly(reason="installs and loads TRL; every change tests the loss itself")
def test_the_loss_curve_is_trls(tmp_path: Path) -> None:
    curves = run_script("trl", Path(__file__).with_name("against_trl.py"), str(tmp_path), cwd=tmp_path)
    assert len(curves["ours"]) == len(curves["trl"]) == 16
    assert curves["ours"] == pytest.approx(curves["trl"], rel=2e-3)
    assert curves["ours"][-1] < 0.8 * curves["ours"][0]
