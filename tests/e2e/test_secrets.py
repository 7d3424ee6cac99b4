"""Keys of services: a known value, given everywhere a user gives keys, is in nothing that commands write or print."""

import json
import os
import subprocess
import sys

import pytest

from tests.sdk.evaluation.fake_endpoint import serve
from tinyzero_sdk import load_task
from tinyzero_sdk.cli import main
from tinyzero_sdk.errors import SettingsError, describe_error
from tinyzero_sdk.judge import Judge
from tinyzero_sdk.records import RewardPart
from tinyzero_sdk.settings import build
from tinyzero_trainer.config import TrainConfig

KEY = "c4n4ry" * 7
VARIABLES = {
    "OPENAI_API_KEY": f"sk-{KEY}",
    "TINYZERO_JUDGE_API_KEY": KEY,
    "WANDB_API_KEY": KEY[:40],
    "HF_TOKEN": f"hf_{KEY}",
    "HF_HUB_OFFLINE": "1",
    "WANDB_BASE_URL": "http://127.0.0.1:9",
}
TASK = """
from dataclasses import dataclass

from tinyzero_sdk import Item, RewardPart, TaskInfo, hookimpl
from tinyzero_sdk.judge import Judge

JUDGE = Judge({"good": RewardPart(description="It is good.")}, model="m", base_url="URL")


@dataclass(frozen=True)
class Options:
    api_key: str = ""


@hookimpl
def options():
    return Options


@hookimpl
def info():
    return TaskInfo("Anything.", parts=JUDGE.rubric, judge=JUDGE)


@hookimpl
def generate_dataset(split, size, seed, start):
    return (Item({"number": place}) for place in range(start, start + size))


@hookimpl
def make_prompt(item, template):
    return f"{item.ground_truth}"


@hookimpl
def extract_answer(completion):
    return completion


@hookimpl
def difficulty(item):
    return 0


@hookimpl
def is_valid(ground_truth):
    return True


@hookimpl
async def score(answer, ground_truth):
    return await JUDGE.score(question="?", answer=answer or "x")
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Repeats the key that it is asked with in its errors, and the task asks it."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with serve() as running:
        reply = {"error": {"message": f"Incorrect API key provided: {KEY}, sk-{KEY}"}}
        running.intervene = lambda number, request: (422, reply)
        (tmp_path / "asks.py").write_text(TASK.replace("URL", running.url))
        yield running


def assert_without_key(directory, *printed):
    assert KEY[:12] in VARIABLES["HF_TOKEN"]
    shown = {f"output {place}": text.encode() for place, text in enumerate(printed)}
    shown |= {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert [name for name, content in shown.items() if KEY[:12].encode() in content] == []


@pytest.mark.slow
def test_no_key_in_what_score_and_eval_write_and_print(server, tmp_path, capfd):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"completion": "a", "ground_truth": {"number": 2}}))
    printed = list[str]()
    for words in (
        ["score", "rows.jsonl", "--task", "asks.py", "--output", "scored.jsonl", "--json"],
        ["eval", "--task", "asks.py", *("--endpoint", server.url), "--model", "m", "--output", "sampled.jsonl"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code in (1, 2)
        printed += capfd.readouterr()
        assert "rejects the request" in "".join(printed[-2:])
    assert_without_key(tmp_path, *printed)


@pytest.mark.nightly(reason="a training run with W&B, which waits for a server; the same code writes as in short tests")
def test_no_key_in_what_a_run_keeps_and_prints(server, tmp_path):
    words = ["run.output=run", "run.steps=1", "rollout.max_completion_tokens=8", "data.prompts_per_step=2"]
    words += ["eval.num_problems=2", "reward.max_failure_rate=1", "log.trackers=[wandb,tensorboard]"]
    words += ["rollout.group_size=4", "data.prompt_template=base"]
    command = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", "train", "--task", "asks.py", *words]
    train = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ, check=False)
    assert train.returncode == 0, train.stderr
    assert "recording offline" in train.stderr
    page = subprocess.run([*command[:3], "report", "run"], capture_output=True, text=True, timeout=60, check=True)
    assert_without_key(tmp_path, train.stdout, train.stderr, page.stdout)


@pytest.mark.parametrize(
    "values",
    [
        {"tasks": {"asks": {"task": "asks.py", "options": {"api_key": "anything"}}}},
        {"log": {"project": f"of {KEY}"}},
        {"reward": {"wrappers": ["trace", f"x({KEY})"]}},
    ],
)
def test_a_key_in_a_configuration_is_refused(server, values):
    with pytest.raises(SettingsError, match="holds a key or password, which would be kept in files") as caught:
        build(TrainConfig, values)
    assert KEY not in str(caught.value)


@pytest.mark.slow
def test_a_key_in_options_a_request_or_a_url_is_refused(server, capsys):
    with pytest.raises(SettingsError, match=r"task\.api_key holds a key or password"):
        load_task("asks.py", options={"api_key": "anything"})
    words = ["eval", "--task", "asks.py", "--model", "m", "--output", "out.jsonl", "--endpoint"]
    for rest in (["http://u:password@host/v1"], [server.url, "--extra-body", '{"api_key": "password"}']):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *rest])
        error = capsys.readouterr().err
        assert "key" in error
        assert "password@" not in error
    judge = Judge({"good": RewardPart(description="x")}, model="m", base_url="http://u:password@host/v1")
    with pytest.raises(SettingsError, match="has a user name or password"):
        judge.score(question="?", answer="a").send(None)


def test_messages_have_no_keys_and_keep_the_rest(monkeypatch):
    monkeypatch.setenv("SHORT_KEY", "step")
    monkeypatch.setenv("HF_TOKEN", f"hf_{KEY}")
    monkeypatch.setenv("A_TOKEN", KEY)
    assert describe_error(ValueError(f"no step, hf_{KEY}, {KEY}")) == "ValueError: no step, …, …"
    assert build(TrainConfig, {"log": {"project": "tokens"}}).log.project == "tokens"
