"""Old keys are answered with the new ones; what release 0.1 saved is resumed, evaluated, scored and trained on."""

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.configurations import call
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, build, describe, read_toml
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import gather, make_config
from tinyzero_trainer.config.renamed_keys import (
    FOREIGN_KEYS,
    FOREIGN_WORDS,
    RENAMED_KEYS,
    RENAMED_WARM_START_KEYS,
    foreign_names,
    with_new_names,
)
from tinyzero_trainer.config.resume import check_fingerprint
from tinyzero_trainer.config.sft import SftConfig

KEYS = {field.key for field in describe(TrainConfig) if field.type != TABLE}


def test_old_names_are_gone_and_new_ones_exist() -> None:
    assert RENAMED_KEYS.keys().isdisjoint(KEYS)
    assert set(RENAMED_KEYS.values()) <= KEYS
    assert len(set(RENAMED_KEYS.values())) == len(RENAMED_KEYS)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rollout.max_tokens=64", "rollout.max_tokens is now rollout.max_completion_tokens; write rollout.max_comp"),
        ("ray.engines=2", "ray.engines is now rollout.num_engines; write rollout.num_engines=2"),
        ("mismatch.weights=token", "mismatch.weights is now rollout_correction.is_level; write rollout_correction.is"),
        ("run.wrappers=[\"overlong\"]", "run.wrappers is now reward.wrappers; write reward.wrappers=[\"overlong\"]"),
    ],
)  # fmt: skip
def test_an_old_key_is_answered_with_the_new_one(tmp_path: Path, word: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        gather(TrainConfig, {}, [word])
    assert str(caught.value).startswith(message)
    key, _, value = word.partition("=")
    group, _, name = key.partition(".")
    file = tmp_path / "old.toml"
    file.write_text(f"[{group}]\n{name} = {value if value[0] in '[0123456789' else repr(value)}\n")
    for old in (
        lambda: gather(TrainConfig, {}, [], file),
        lambda: make_config({"run": {"task": "countdown", "recipe": str(file)}}),
    ):
        with pytest.raises(SettingsError) as caught:
            old()
        assert str(caught.value).startswith(f"{file}: {message}")


def test_several_old_keys_are_answered_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        gather(TrainConfig, {}, ["ray.engines=2", "run.steps=3", "eval.size=9"])
    names = "ray.engines is now rollout.num_engines, eval.size is now eval.num_problems"
    assert str(caught.value) == f"{names}; write rollout.num_engines=2 eval.num_problems=9"


def test_an_old_key_among_what_a_warm_start_records_is_answered_too() -> None:
    with pytest.raises(SettingsError, match=r"rollout\.max_tokens is now rollout\.max_completion_tokens"):
        gather(SftConfig, {}, ["settings.rollout.max_tokens=64"])


def test_the_old_keys_of_a_warm_start_are_answered_by_it_alone() -> None:
    with pytest.raises(SettingsError, match=r"model\.layers is now new_model\.layers; write new_model\.layers=2"):
        gather(SftConfig, {}, ["model.layers=2"])
    with pytest.raises(SettingsError, match=r"unknown key 'model\.layers'"):
        gather(TrainConfig, {}, ["model.layers=2"])
    known = {field.key for field in describe(SftConfig)}
    assert set(RENAMED_WARM_START_KEYS.values()) <= known
    assert not set(RENAMED_WARM_START_KEYS) & known


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("lr=1e-5", "optimizer.learning_rate"),
        ("actor_rollout_ref.actor.optim.lr=1e-5", "optimizer.learning_rate"),
        ("batch_size=4", "data.prompts_per_step"),
        ("beta=0.1", "algorithm.kl_coefficient"),
        ("num_generations=4", "rollout.group_size"),
        ("rollout.n=4", "rollout.group_size"),
        ("max_steps=3", "run.steps"),
        ("trainer.nnodes=2", "parallel.world_size"),
    ],
)
def test_a_name_of_another_trainer_is_answered_with_ours_and_its_meaning(word: str, ours: str) -> None:
    help = next(field.help for field in describe(TrainConfig) if field.key == ours)
    with pytest.raises(SettingsError) as caught:
        gather(TrainConfig, {}, [word])
    assert str(caught.value) == f"unknown key {word.partition('=')[0]!r}; here it is {ours}: {help}"


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("custom_reward_function.path=x.py", "the option --task"),
        ("trainer.resume_mode=auto", "the option --resume"),
        ("logging_steps=1", "nothing to set"),
    ],
)
def test_a_name_of_another_trainer_may_be_answered_by_something_else_than_a_key(word: str, ours: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown key '{word.partition('=')[0]}'; here it is {ours}"):
        gather(TrainConfig, {}, [word])


def test_no_name_of_another_trainer_is_a_key_or_has_two_answers() -> None:
    for cls in (TrainConfig, SftConfig):
        known = {field.key for field in describe(cls)}
        names = [name for names in foreign_names(cls).values() for name in names]
        names += " ".join(FOREIGN_WORDS.values()).split()
        assert len(set(names)) == len(names)
        assert not [key for key in known if any(f".{key}".endswith(f".{name}") and key == name for name in names)]
    assert {key for keys in FOREIGN_KEYS for key in keys.split()} <= KEYS | {f.key for f in describe(SftConfig)}


def test_a_task_may_call_its_options_what_it_likes() -> None:
    assert gather(TrainConfig, {}, ["task.beta=1", "run.task=countdown"])["tasks"]["countdown"]["options"] == {
        "beta": 1
    }


# ---- a run of release 0.1 --------------------------------------------------------------------------------------------


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run of two steps, and of its warm-started model in `model`; the present directory holds both."""
    shutil.copytree(Path(__file__).parent / "run_of_0_1", tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return Path("run")


def test_its_configuration_keeps_its_values_and_its_fingerprint(old_run: Path) -> None:
    config = build(TrainConfig, with_new_names(read_toml(old_run / "config.toml")))
    assert (config.rollout.max_completion_tokens, config.rollout.group_size) == (24, 4)
    assert (config.reward.wrappers, config.reward.timeout) == (("overlong(buffer=4)",), 9.0)
    assert (config.length_control.mode, config.length_control.max_tokens) == ("fixed", 20)
    assert (config.rollout_correction.is_level, config.rollout_correction.is_threshold) == ("token", 3.0)
    manifest = json.loads((old_run / "checkpoints" / "step_2" / "manifest.json").read_text())
    check_fingerprint(config, manifest["meta"]["config"])


@pytest.mark.slow
def test_it_resumes(old_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = call(capsys, "train", "--output", str(old_run), "--resume", "run.steps=4")
    assert code == 0, error
    assert "resuming the training of model on countdown in run" in error
    rows = [json.loads(line) for line in (old_run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # The batch of step 3, which 0.1 had prefetched, is trained on as it was.
    saved = json.loads((Path(__file__).parent / "run_of_0_1/run/checkpoints/step_2/training_state/next_batch.json")
                       .read_text())  # fmt: skip
    assert rows[3]["critic/score/mean"] == pytest.approx(
        sum(score["value"] for score in saved["scores"]) / len(saved["scores"]), abs=1e-6
    )
    assert "max_completion_tokens = 24" in (old_run / "config.toml").read_text()
    manifest = json.loads((old_run / "checkpoints" / "step_4" / "manifest.json").read_text())
    check_fingerprint(build(TrainConfig, read_toml(old_run / "config.toml")), manifest["meta"]["config"])


@pytest.mark.slow
def test_its_model_is_evaluated(old_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, error = call(capsys, "eval", "--model", str(old_run), "--json")
    assert code == 0, error
    found = json.loads(shown)
    assert (found["problems"], found["samples"]) == (8, 1)


def test_its_rollouts_are_scored(old_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = old_run / "rollouts" / "step_000001.jsonl"
    code, _, error = call(capsys, "score", str(file), "--task", "countdown", "--output", "scored.jsonl")
    assert code == 0, error
    scored = [json.loads(line) for line in Path("scored.jsonl").read_text().splitlines()]
    assert len(scored) == len(file.read_text().splitlines()) == 4
    assert {line["reason"] for line in scored} == {"no_answer"}


def test_what_its_warm_start_recorded_suits_the_model(old_run: Path) -> None:
    config = make_config({"run": {"task": "countdown"}, "model": {"path": "model"}})
    assert (config.rollout.max_completion_tokens, config.rollout.return_logprobs) == (24, "always")
    assert (config.data.prompt_template, config.eval.num_problems, config.tasks["countdown"]["options"]) == (
        "compact",
        8,
        {"numbers": [3]},
    )
