"""Several tasks on the command line and in files become one mixture, or one line that says what is wrong."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.checkpoint import store as checkpoint
from tinyzero_trainer.cli.options import flag_settings
from tinyzero_trainer.cli.start import with_output
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config import model_defaults as presets
from tinyzero_trainer.config.compose import compose, gather, make_config
from tinyzero_trainer.config.resume import check_fingerprint, fingerprint
from tinyzero_trainer.config.resume import resume_config as resume
from tinyzero_trainer.config.tasks import TaskSpec, load_tasks
from tinyzero_trainer.controller.eval_config import evaluation_config

TWO = ["countdown:2", "multiply:1"]


@pytest.fixture(autouse=True)
def _no_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "_read", lambda model: {"settings": {}, "warmed_on": []})


def typed(*words: str, task: list[str] = TWO, file: Path | None = None) -> dict:
    return gather(TrainConfig, flag_settings(task), words, file)


def config(*words: str, task: list[str] = TWO) -> TrainConfig:
    return make_config(typed(*words, task=task))


def test_flags_and_words_name_tasks_weights_and_options() -> None:
    specs = config("tasks.countdown.options.numbers=[3]", task=["countdown:2.5", "multiply"]).task_specs
    assert specs[0] == TaskSpec("countdown", "countdown", 2.5, {"numbers": [3]})
    assert specs[1] == TaskSpec("multiply", "multiply", 1.0, {})


def test_a_file_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text("[tasks.countdown]\nweight = 2\n[tasks.countdown.options]\nnumbers = [3]\n[tasks.multiply]\n")
    assert make_config(typed(task=[], file=file)) == config("tasks.countdown.options.numbers=[3]")


@pytest.mark.parametrize(
    "values",
    [
        {"run": {"task": "countdown"}, "task": {"numbers": [3]}},
        {"tasks": {"countdown": {}}, "task": {"numbers": [3]}},
        {"tasks": {"countdown": {"options": {"numbers": [3]}}}, "run": {"task": "countdown"}},
        {"tasks": {"countdown": {"options": {"numbers": [3]}}}},
    ],
)
def test_the_short_way_of_writing_one_task_fills_the_table(values: dict) -> None:
    assert make_config(values).task_specs == (TaskSpec("countdown", "countdown", 1.0, {"numbers": [3]}),)


def test_a_run_and_options_need_a_task_and_a_name_has_no_dot() -> None:
    with pytest.raises(SettingsError, match=r"got the name './x.py', expected one without dots; a file goes into"):
        make_config({"tasks": {"./x.py": {}}})
    for values, needs_task in (({"run": {"steps": 3}}, True), ({"task": {"numbers": [3]}}, False)):
        with pytest.raises(SettingsError, match="no task is named; give --task"):
            compose(values, needs_task=needs_task)


@pytest.mark.parametrize(
    ("tasks", "names"),
    [(["./my-task.py"], ["my-task"]), (["rg/chain_sum"], ["rg/chain_sum"]),
     (["./my-task.py:3", "rg/chain_sum", "./some/dir/"], ["my_task", "chain_sum", "dir"])],
)  # fmt: skip
def test_a_task_is_named_by_itself_and_among_several_by_its_last_part(tasks: list[str], names: list[str]) -> None:
    specs = config(task=tasks).task_specs
    assert [spec.name for spec in specs] == names
    assert [spec.task for spec in specs] == [task.partition(":")[0] for task in tasks]
    titles = "+".join(Path(name).name for name in names)
    assert with_output(typed(task=tasks))["run"]["output"].startswith(f"runs/{titles}-20")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run.task=gsm8k"], "run.task='gsm8k' and tasks (countdown, multiply) are both given; with one task write"),
        (["task.numbers=[3]"], "task.numbers is ambiguous with several tasks; write tasks.countdown.options.numbers"),
        (["tasks.countdown.weigth=2"], "unknown key 'tasks.countdown.weigth'; did you mean 'tasks.countdown.weight'?"),
        (["tasks.gsm8k.weight=0"], "tasks.gsm8k.weight: got 0; input should be greater than 0"),
        (["tasks.countdown.weight=3"], "tasks.countdown.weight is given twice"),
        (["eval.tasks=[gsm8k,multiply]"], "eval.tasks.multiply: the run trains on it, and evaluates it anyway"),
        (["eval.tasks.gsm8k.weight=2"], "eval.tasks.gsm8k.weight has no effect"),
        (["eval.pass_at=[1,8,8]"], "eval.pass_at: got [1, 8, 8], expected each k once, such as [1, 8]"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        config(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (["countdown:2"], "tasks.countdown.weight=2 has no effect: there is no other task; leave it out"),
        (["countdown:two", "multiply"], "--task countdown:two: got the weight 'two', expected TASK or TASK:WEIGHT"),
        (["countdown:inf", "multiply"], "tasks.countdown.weight: got inf; input should be less than inf"),
        (["./a/x.py", "./b/x.py"], "two of --task would be called 'x'; give them different names in a file"),
    ],
)
def test_a_mistaken_flag_is_one_line(task: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        config(task=task)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("value", ["[gsm8k, ./my-task.py]", "{gsm8k={}, my-task={task='./my-task.py'}}"])
def test_other_tasks_are_a_list_or_a_table(value: str) -> None:
    found = config(f"eval.tasks={value}")
    table = {"gsm8k": {"task": "gsm8k", "options": {}}, "my-task": {"task": "./my-task.py", "options": {}}}
    assert found.eval.tasks == table
    assert make_config(to_mapping(found)) == found
    named = config("eval.tasks.odd.task=gsm8k", "eval.tasks.odd.options.a=1", task=["countdown"])
    with pytest.raises(SettingsError, match=r"unknown key 'eval\.tasks\.odd\.options\.a'"):
        load_tasks(named.eval.task_specs, table="eval.tasks")


def test_what_suits_a_task_goes_to_its_entry_below_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed = {"warmed_on": [{"task": "multiply", "options": {"digits": [2, 1]}}], "settings": {"run": {"steps": 7}}}
    monkeypatch.setattr(presets, "_read", lambda model: warmed)
    found = config()
    assert found.run.steps == 7
    assert [spec.options for spec in found.task_specs] == [{}, {"digits": [2, 1]}]
    assert config("tasks.multiply.options.digits=[3,3]").task_specs[1].options == {"digits": [3, 3]}
    assert config(task=["multiply"]).task_specs[0].options == {"digits": [2, 1]}
    assert (presets.other_task("countdown"), presets.other_task("multiply")) == ("multiply", None)


def test_a_saved_configuration_comes_back_and_resumes_however_it_is_typed_again(tmp_path: Path) -> None:
    first = config("tasks.countdown.options.numbers=[3]")
    (tmp_path / "config.toml").write_text(tomli_w.dumps(to_mapping(first)))
    assert make_config(tomllib.loads((tmp_path / "config.toml").read_text())) == first
    again = resume(tmp_path, typed(task=["countdown:2.0", "multiply"]))
    check_fingerprint(again, fingerprint(first))
    with pytest.raises(SettingsError, match=r"--resume cannot change tasks\.countdown\.weight from 2\.0 to 3\.0"):
        resume(tmp_path, typed(task=["countdown:3", "multiply"]))
    with pytest.raises(SettingsError, match=r"cannot change"):
        resume(tmp_path, typed(task=["countdown:2", "multiply", "gsm8k"]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on two tasks, one of which it calls by another name."""
    words = ["tasks.easy.task=countdown", "tasks.easy.options.numbers=[3]", "tasks.multiply.weight=2"]
    directory = tmp_path / "run"
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "config.toml").write_text(
        tomli_w.dumps(to_mapping(config(*words, "data.test_fraction=0.125", task=[])))
    )
    checkpoint.save(directory / "checkpoints", 10, lambda path: (path / "weights").touch(), meta={})
    return directory


@pytest.mark.parametrize("name", ["easy", "countdown"])
def test_an_evaluation_takes_the_chosen_tasks_options_from_the_run(run: Path, name: str) -> None:
    found = evaluation_config({"model": {"path": str(run)}, "run": {"task": name}})
    assert found.task_specs == (TaskSpec("easy", "countdown", 1.0, {"numbers": [3]}),)
    assert found.data.test_fraction == 0.125


def test_such_a_run_is_evaluated_on_one_of_its_tasks_or_on_another(run: Path) -> None:
    with pytest.raises(SettingsError, match="was trained on several tasks; choose one of them with --task: easy, mult"):
        evaluation_config({"model": {"path": str(run)}})
    with pytest.raises(SettingsError, match="an evaluation is of one task; give --task TASK"):
        evaluation_config(typed())
    found = evaluation_config({"model": {"path": str(run)}, "run": {"task": "gsm8k"}})
    assert (list(found.tasks), found.data.test_fraction) == (["gsm8k"], 0.125)
