"""What the user types becomes one configuration, or one line that says what is wrong with it."""

import dataclasses
import inspect
import json
import os
import signal
import sys
import tomllib
import types
from pathlib import Path

import pytest
import tomli_w

from tinyzero_sdk.cli import main
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, describe, to_mapping
from tinyzero_trainer import checkpoint, configure, presets
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.configure import (
    check_fingerprint,
    evaluation_config,
    fingerprint,
    gather,
    make_config,
    markdown,
    resume_config,
)
from tinyzero_trainer.interrupts import Interrupted
from tinyzero_trainer.layers import put_together

ROOT = Path(__file__).parents[2]
KEYS = [field.key for field in describe(TrainConfig)]


@pytest.fixture(autouse=True)
def built_in_preset(monkeypatch):
    """Settings that suit the tiny model; none unless a test puts some in."""
    settings = {}
    monkeypatch.setattr(presets, "preset", lambda task, model=None: settings if model is None else {})
    return settings


def said(*words, file=None, **flags):
    return gather(TrainConfig, {f"run.{name}": value for name, value in flags.items()}, words, file)


# ---- from words to a configuration -----------------------------------------------------------------------------------


def test_words_and_flags_fill_the_tree():
    config = make_config(said("run.steps=7", "optimizer.learning_rate=2e-4", "task.numbers=[3,4]", task="countdown"))
    assert (config.run.task, config.run.steps, config.optimizer.learning_rate) == ("countdown", 7, 2e-4)
    assert config.task == {"numbers": [3, 4]}


def test_later_wins_of_defaults_preset_file_and_words(tmp_path, built_in_preset):
    built_in_preset.update(rollout={"max_tokens": 64, "top_k": 5, "temperature": 0.7}, task={"numbers": [3]})
    file = tmp_path / "my.toml"
    file.write_text("[rollout]\nmax_tokens = 128\ntop_k = 9\n[run]\ntask = 'countdown'")
    config = make_config(said("rollout.top_k=3", file=file))
    assert (config.rollout.temperature, config.rollout.max_tokens, config.rollout.top_k) == (0.7, 128, 3)
    assert config.task == {"numbers": [3]}
    assert put_together(said("rollout.top_k=3")).suited == {
        "rollout.max_tokens": 64, "rollout.temperature": 0.7, "task.numbers": [3],
    }  # fmt: skip


def test_another_model_is_not_given_what_suits_the_tiny_one(built_in_preset):
    built_in_preset.update(rollout={"max_tokens": 64})
    config = make_config({"run": {"task": "countdown"}, "model": {"path": "Qwen/Qwen2.5-0.5B"}})
    assert config.rollout.max_tokens == TrainConfig().rollout.max_tokens


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.learning_rat=1"], "unknown key 'optimizer.learning_rat'; did you mean 'optimizer.learning_rate'?"),
        (["learning_rate=1"], "unknown key 'learning_rate'; did you mean 'optimizer.learning_rate' or"),
        (["temperature=1"], "unknown key 'temperature'; did you mean 'rollout.temperature' or 'eval.temperature'?"),
        (["xyzzy=1"], "unknown key 'xyzzy' (--help lists all keys)"),
        (["optimizer=3"], "'optimizer' is a group of keys; set one of them, such as optimizer.learning_rate=…"),
        (["run.seed=1", "run.seed=2"], "'run.seed' is given twice; give it once"),
        (["run.task=gsm8k"], "run.task is given twice, as a flag and as run.task=gsm8k; give it once"),
        (["run.steps=many"], "run.steps: got 'many'; input should be a valid integer"),
        (["run.steps=0"], "run.steps: got 0; input should be greater than 0"),
        (["run.steps.x=1"], "run.steps: got {'x': 1}; input should be a valid integer"),
        (["log.trackers=[\"mlflow\"]"], "log.trackers.0: got 'mlflow'; input should be 'wandb' or 'tensorboard'"),
        (["run.executor=slurm"], "run.executor: got 'slurm'; input should be 'local'"),
        (["task.numbers=none"], "task.numbers=none cannot be kept in config.toml; leave it out"),
        (["optimizer.mini_batches=64"], "optimizer.mini_batches=64 is more than data.prompts_per_step=32"),
        (["rollout.samples_per_prompt=1"], "rollout.samples_per_prompt=1 leaves algorithm.advantage='grpo'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(words, message):
    with pytest.raises(SettingsError) as caught:
        make_config(said(*words, task="countdown"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text("[optimizer]\nlearning_rat = 1")
    with pytest.raises(SettingsError, match=r"my\.toml: unknown key 'optimizer\.learning_rat'; did you mean"):
        said(file=file)
    file.write_text("[run]\nseed = 1\nseed = 2")
    with pytest.raises(SettingsError, match=r"my\.toml is not valid TOML: Cannot overwrite a value"):
        said(file=file)


def test_without_a_task_nothing_is_made():
    with pytest.raises(SettingsError, match="no task is named; give --task"):
        make_config(said("run.steps=3"))


def test_every_key_can_be_given_as_help_shows_it():
    words = [
        f"{field.key}={configure.show(field.default)}"
        for field in describe(TrainConfig)
        if field.type != "table" and field.default not in ("", ())
    ]
    assert build(TrainConfig, said(*words)) == TrainConfig()


# ---- resuming --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run directory with its configuration and a checkpoint."""
    directory = tmp_path / "run"
    config = make_config(said("task.numbers=[3]", "run.steps=50", "data.template=compact", task="countdown"))
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    checkpoint.save(directory / "checkpoints", 10, lambda path: (path / "weights").touch(), meta={})
    return directory


def test_resuming_takes_the_saved_configuration_and_may_repeat_it(run):
    config = resume_config(run, said("task.numbers=[3]", task="countdown"))
    assert (config.run.task, config.run.steps, config.run.output) == ("countdown", 50, str(run))
    assert config.task == {"numbers": [3]}


def test_resuming_may_change_what_is_not_learnt_from(run):
    config = resume_config(run, said("run.steps=80", "eval.every=5", 'log.trackers=["wandb"]'))
    assert (config.run.steps, config.eval.every, config.log.trackers) == (80, 5, ("wandb",))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.learning_rate=1e-3", "--resume cannot change optimizer.learning_rate from 1e-06 to 0.001"),
        ("task.numbers=[3, 4]", "--resume cannot change task.numbers from [3] to [3, 4]"),
        ("task.maximum=9", "--resume cannot change task.maximum from none to 9"),
        ("run.steps=49", "--resume can raise run.steps=50, but not lower it"),
        ("data.template=none", "--resume cannot change data.template from compact to none"),
    ],
)
def test_resuming_refuses_to_learn_something_else(run, word, message):
    with pytest.raises(SettingsError) as caught:
        resume_config(run, said(word))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["optimizer.schedule=cosine"], "optimizer.schedule=cosine ends"),
        (["rollout.final_temperature=0.6"], "rollout.final_temperature=0.6 ends"),
        (["algorithm.kl_coefficient=0.1", "algorithm.final_kl_coefficient=0.0"], "algorithm.final_kl_coefficient=0.0"),
        (["optimizer.schedule=linear", "rollout.final_temperature=0.6"], "optimizer.schedule=linear and rollout.fi"),
        (["optimizer.warmup_steps=3"], None),
        ([], None),
    ],
)  # fmt: skip
def test_more_steps_are_refused_where_a_schedule_would_jump(tmp_path, words, ends):
    config = make_config(said("run.steps=50", *words, task="countdown"))
    (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    assert resume_config(tmp_path, said("run.steps=50")) == dataclasses.replace(
        config, run=dataclasses.replace(config.run, output=str(tmp_path))
    )
    if ends is None:
        assert resume_config(tmp_path, said("run.steps=80")).run.steps == 80
        return
    with pytest.raises(SettingsError) as caught:
        resume_config(tmp_path, said("run.steps=80"))
    assert f"--resume cannot raise run.steps=50, where {ends}" in str(caught.value)


def test_resuming_leaves_out_what_a_change_leaves_without_effect(tmp_path):
    config = make_config(said("eval.during_size=64", "log.rollouts_count=3", task="countdown"))
    (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    resumed = resume_config(tmp_path, said("eval.every=0"))
    assert (resumed.eval.every, resumed.eval.during_size, resumed.log.rollouts_count) == (0, 256, 3)
    with pytest.raises(SettingsError, match=r"eval\.during_size=32 has no effect: eval\.every=0"):
        resume_config(tmp_path, said("eval.every=0", "eval.during_size=32"))


def test_resuming_names_the_change_and_not_what_it_would_leave_without_effect(tmp_path):
    config = make_config(said("algorithm.kl_coefficient=0.1", "algorithm.kl_estimator=exact", task="countdown"))
    (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    with pytest.raises(SettingsError, match=r"--resume cannot change algorithm\.kl_coefficient from 0\.1 to 0\.0"):
        resume_config(tmp_path, said("algorithm.kl_coefficient=0.0"))


def test_resuming_where_there_is_no_run_is_one_line(tmp_path):
    with pytest.raises(SettingsError, match="holds no run to resume"):
        resume_config(tmp_path, {})


def test_the_fingerprint_changes_with_what_is_learnt_and_only_with_that():
    config = make_config(said("task.numbers=[3]", task="countdown"))
    same = make_config(said("task.numbers=[3]", "run.steps=7", "log.rollouts_every=0", task="countdown"))
    check_fingerprint(same, fingerprint(config))
    for word in ("task.numbers=[4]", "run.seed=1", "optimizer.beta2=0.9"):
        with pytest.raises(SettingsError, match=r"config\.toml has changed since the checkpoint was saved"):
            check_fingerprint(make_config(said(word, task="countdown")), fingerprint(config))


def test_what_may_be_changed_exists():
    assert set(configure.RESUMABLE) <= set(KEYS)
    assert set(configure.EVALUATION_KEYS) <= set(KEYS)


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [".", "checkpoints/step_10"])
def test_a_runs_model_is_evaluated_on_the_runs_own_problems(run, model):
    config = evaluation_config({"model": {"path": str(run / model)}, "eval": {"size": 64}})
    assert config.model.path == str(run / "checkpoints" / "step_10")
    assert (config.run.task, config.task, config.data.template) == ("countdown", {"numbers": [3]}, "compact")
    assert config.eval.size == 64


def test_a_runs_model_can_be_evaluated_on_another_task(run):
    config = evaluation_config({"model": {"path": str(run)}, "run": {"task": "multiply"}})
    assert (config.run.task, config.task) == ("multiply", {})


def test_a_run_without_a_checkpoint_cannot_be_evaluated(run):
    (run / "checkpoints" / "step_10").rename(run / "step_10")
    with pytest.raises(SettingsError, match="has no checkpoint yet"):
        evaluation_config({"model": {"path": str(run)}})


def test_a_setting_without_effect_on_an_evaluation_is_refused():
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate has no effect on an evaluation"):
        evaluation_config({"run": {"task": "countdown"}, "optimizer": {"learning_rate": 1.0}})


# ---- help and documentation ------------------------------------------------------------------------------------------


def test_every_key_is_explained():
    assert [field.key for field in describe(TrainConfig) if not field.help] == []


def test_the_documentation_is_up_to_date():
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == markdown(), (
        "write it anew: python -c 'from tinyzero_trainer.configure import markdown; print(markdown(), end=\"\")' > "
        "docs/configuration.md"
    )


def call(capsys, *words):
    """The command line's exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as left:
        main(words)
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize("command", ["train", "eval", "warmstart"])
def test_help_shows_the_keys_within_eighty_columns(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = call(capsys, command, "--help")
    assert code == 0
    assert all(len(line) <= 80 for line in shown.splitlines())
    expected = KEYS if command == "train" else configure.EVALUATION_KEYS if command == "eval" else ["training.steps"]
    for key in expected:
        assert f"{key}=" in shown or f"{key}.KEY=" in shown


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins(monkeypatch):
    """Stand-ins for what imports torch; returns what they were called with."""
    calls = []

    @dataclasses.dataclass
    class Result:
        problems: int = 64
        samples: int = 1
        accuracy: float = 0.49
        standard_error: float = 0.0156
        mean_score: float = 0.49
        by_reason: dict = dataclasses.field(default_factory=lambda: {"wrong": 33, "ok": 31})
        mean_length: float = 57.25
        tokens_per_second: float = 12345.6
        summary: dict = dataclasses.field(default_factory=dict)
        report: None = None

    def evaluate(plan, output, observer):
        calls.append(("evaluate", plan, {"output": output}, os.environ.get("OMP_WAIT_POLICY")))
        return Result()

    def put(module, function, result):
        def stand_in(config, **options):
            calls.append((function, config, options, os.environ.get("OMP_WAIT_POLICY")))
            return result

        monkeypatch.setitem(sys.modules, f"tinyzero_trainer.{module}", types.SimpleNamespace(**{function: stand_in}))

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    put("loop", "train", None)
    monkeypatch.setattr("tinyzero_sdk.evaluation.evaluate", evaluate)
    put("warmstart", "warm_start", types.SimpleNamespace(summary="model: made"))
    return calls


def test_train_passes_the_configuration_on_and_says_at_once_what_it_does(capsys, stand_ins, built_in_preset, tmp_path):
    built_in_preset.update(rollout={"max_tokens": 64})
    output = str(tmp_path / "run")
    code, shown, told = call(capsys, "train", "--task", "countdown", "--output", output, "run.steps=3")
    ((function, config, options, policy),) = stand_ins
    assert (code, shown, function, options, policy) == (0, "", "train", {"resume": False}, "PASSIVE")
    assert (config.run.task, config.run.output, config.run.steps) == ("countdown", output, 3)
    assert told.splitlines() == [
        f"training the tiny model that comes with the trainer on countdown in {output}",
        "with settings that suit it: rollout.max_tokens=64",
        "loading PyTorch",
    ]


def test_train_says_what_is_of_the_recipe_and_what_suits_the_model_no_more(
    capsys, stand_ins, built_in_preset, tmp_path
):
    built_in_preset.update(algorithm={"kl_coefficient": 0.1, "kl_estimator": "exact"}, rollout={"max_tokens": 64})
    output = str(tmp_path / "run")
    code, _, told = call(capsys, "train", "--task", "countdown", "--output", output, "--recipe", "dr_grpo")
    ((_, config, _, _),) = stand_ins
    assert (code, config.run.recipe, config.algorithm.kl_coefficient) == (0, "dr_grpo", 0.0)
    assert told.splitlines()[1:] == [
        "by recipe dr_grpo: algorithm.advantage=dr_grpo algorithm.aggregation=seq-mean-token-sum-norm "
        "algorithm.kl_coefficient=0.0",
        "with settings that suit it: rollout.max_tokens=64",
        "left out of those: algorithm.kl_estimator (algorithm.kl_coefficient=0 leaves the KL out)",
        "loading PyTorch",
    ]


def test_without_output_a_directory_is_named_after_task_and_time(capsys, stand_ins, toy_task):
    call(capsys, "train", "--task", toy_task, "--model", "gpt2")
    ((_, config, _, _),) = stand_ins
    assert config.run.output.startswith("runs/toy_task-20")
    assert config.model.path == "gpt2"


def test_train_resumes_by_the_saved_configuration(capsys, stand_ins, run):
    code, _, told = call(capsys, "train", "--output", str(run), "--resume", "run.steps=60")
    ((_, config, options, _),) = stand_ins
    assert (code, options, config.run.steps, config.task) == (0, {"resume": True}, 60, {"numbers": [3]})
    assert told.startswith("going on with the training of")


def test_a_run_with_checkpoints_is_refused_before_anything_is_loaded(capsys, stand_ins, run):
    code, _, told = call(capsys, "train", "--task", "countdown", "--output", str(run))
    assert (code, stand_ins) == (2, [])
    assert told.startswith(
        f"error: {run} holds a run with checkpoints; go on with: tinyzero train --output {run} --resume"
    )


def test_resume_without_output_is_one_line(capsys, stand_ins):
    code, _, told = call(capsys, "train", "--resume")
    assert (code, told) == (2, "error: --resume needs --output, the directory of the run to go on with\n")
    assert stand_ins == []


def test_a_mistake_stops_before_anything_is_loaded(capsys, stand_ins):
    code, _, told = call(capsys, "train", "--task", "countdown", "--model", "gpt2", "model.path=gpt2")
    assert (code, stand_ins) == (2, [])
    assert told == "error: model.path is given twice, as a flag and as model.path=gpt2; give it once\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_exits_by_its_signal_and_says_how_to_go_on(capsys, stand_ins, monkeypatch, number, code):
    def train(config, *, resume):
        raise Interrupted(number, 40, config.run.output)

    monkeypatch.setattr(sys.modules["tinyzero_trainer.loop"], "train", train)
    left, _, told = call(capsys, "train", "--task", "countdown", "--output", "runs/x")
    assert left == code
    assert told.splitlines()[-1] == (
        f"stopped by {number.name} after step 40, which is saved; go on with: tinyzero train --output runs/x --resume"
    )


def test_eval_prints_what_it_found(capsys, stand_ins):
    code, shown, _ = call(capsys, "eval", "--task", "countdown", "--size", "64", "--seed", "3", "--temperature", "0")
    ((_, plan, options, policy),) = stand_ins
    assert (code, plan.size, plan.seed, policy) == (0, 64, 3, "PASSIVE")
    assert (plan.samples, plan.temperature, options["output"]) == (1, 0.0, None)
    assert shown.splitlines() == [
        "task        countdown",
        "model       the tiny model that comes with the trainer",
        "problems    64 held out, 1 sample each, likeliest token each time",
        "accuracy    49.0 % ± 1.6 (one standard error)",
        "mean score  0.490",
        "mean length 57.2 tokens",
        "reasons     ok 31 · wrong 33",
        "speed       12,346 tokens/s",
    ]


def test_eval_prints_json_and_nothing_else_on_stdout(capsys, stand_ins, tmp_path):
    output = tmp_path / "outputs.jsonl"
    code, shown, _ = call(capsys, "eval", "--task", "countdown", "--json", "--output", str(output))
    assert code == 0
    assert json.loads(shown)["by_reason"] == {"ok": 31, "wrong": 33}
    assert stand_ins[0][2]["output"] == output


def test_warmstart_passes_its_own_configuration_on(capsys, stand_ins, tmp_path):
    output = str(tmp_path / "model")
    code, shown, _ = call(
        capsys, "warmstart", "--task", "countdown", "--output", output, "training.steps=5", "settings.run.steps=9"
    )
    ((_, config, _, policy),) = stand_ins
    assert (code, shown, policy) == (0, "model: made\n", "PASSIVE")
    assert (config.run.task, config.run.output, config.training.steps) == ("countdown", output, 5)
    assert config.settings == {"run": {"steps": 9}}


def test_warmstart_needs_an_output(capsys, stand_ins):
    code, _, told = call(capsys, "warmstart", "--task", "countdown")
    assert (code, told) == (2, "error: a warm start needs --output\n")


def test_the_stand_ins_take_what_the_real_ones_take():
    from tinyzero_sdk.evaluation import evaluate
    from tinyzero_trainer.loop import train
    from tinyzero_trainer.warmstart import warm_start

    assert list(inspect.signature(train).parameters) == ["config", "resume"]
    assert list(inspect.signature(evaluate).parameters) == ["plan", "output", "observer"]
    assert list(inspect.signature(warm_start).parameters) == ["config", "display", "stop"]


def test_a_resolved_configuration_survives_its_file(run):
    saved = build(TrainConfig, tomllib.loads((run / "config.toml").read_text()))
    assert saved == make_config(said(file=run / "config.toml"))


@pytest.mark.parametrize("model", ["/nowhere", "./nowhere", "~/nowhere", "a/b/c"])
def test_a_model_that_is_no_directory_is_refused_before_anything_is_loaded(model: str) -> None:
    with pytest.raises(SettingsError, match=f"there is no directory {model}"):
        make_config({"run": {"task": "countdown"}, "model": {"path": model}})
