"""Every key is explained under --help."""

import pytest

from tests.trainer.configurations import call
from tinyzero_sdk.settings import describe
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.eval_config import EVALUATION_KEYS

KEYS = [field.key for field in describe(TrainConfig)]


def test_every_key_is_explained():
    assert [field.key for field in describe(TrainConfig) if not field.help] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "eval", "sft"])
def test_help_shows_the_keys_within_eighty_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = call(capsys, command, "--help")
    assert code == 0
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert [line for line in shown.splitlines() if line.startswith("╭") and "…" in line] == []
    expected = {"train": KEYS, "eval": EVALUATION_KEYS, "sft": ["data.max_per_problem", "new_model.layers"]}
    for key in expected[command]:
        assert f"{key}=" in shown or f"{key}.KEY=" in shown


def test_words_after_help_search_the_keys(capsys):
    def shown(*words):
        code, out, err = call(capsys, "train", *words)
        assert code == (2 if err else 0)
        return [key for key in KEYS if f" {key}=" in out], out + err

    assert shown("--help", "Dual_clip")[0] == ["algorithm.dual_clip_c"]
    assert shown("--task", "countdown", "-h", "greedy")[0] == ["eval.greedy"]
    assert shown("--help", "num_generations")[0] == ["rollout.group_size"]  # its name in TRL
    assert "Usage" not in shown("--help", "greedy")[1]
    assert shown("--help", "clip", "zzz")[1].startswith("error: no key has clip and zzz in its name or text; --help")
