"""examples/judged_sentences.py against a server: checked, scored and trained on; nothing is asked twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.sdk import judge_server
from tests.sdk.judge_server import server as server
from tinyzero_sdk import load_task
from tinyzero_sdk.cli import main
from tinyzero_sdk.disk_cache import DiskCache

FILE = Path(__file__).parents[2] / "examples/judged_sentences.py"


@pytest.fixture
def rows(tmp_path):
    """A file of gold and wrong answers, alternately."""
    task, path = load_task(str(FILE)), tmp_path / "rows.jsonl"
    items = list(task.dataset("train", 31))
    with path.open("w") as file:
        for item, other in pairwise(items):
            for text in (task.solve(item), task.solve(other)):
                file.write(json.dumps({"completion": text, "ground_truth": item.ground_truth}) + "\n")
    return path


def tinyzero(*words, **options):
    program = str(Path(sys.executable).with_name("tinyzero"))
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, **options)


def asked(server):
    """How often each answer was asked about, by question and answer."""
    found = [judge_server.blocks(request) for request in server.requests]
    return Counter((blocks["question"], blocks["answer"]) for blocks in found)


@pytest.mark.nightly(reason="half a minute; each check has a fast test of its own")
def test_it_passes_its_checks(server):
    done = tinyzero("check", FILE, "--json", "--examples", 5)
    results = {check["check"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, [name for name, status in results.items() if status == "failed"]) == (0, [])
    for name in ("orders-pay-nothing", "gold-beats-wrong", "criteria-in-any-order", "no-skeleton-key"):
        assert results[name] == "passed"
    [(calls, tokens)] = re.findall(r"judge strict: ([\d,]+) calls, ([\d,]+) tokens so far", done.stderr)
    assert tokens == f"{100 * len(server.requests):,}"
    assert 0 <= int(calls.replace(",", "")) - len(server.requests) < 5  # a connection may fail
    assert max(asked(server).values()) == 2  # also with the criteria in reverse


@pytest.mark.nightly(reason="kills and starts a command again; every change tests the cache on disk that it reads")
def test_killed_and_started_again_it_asks_nothing_twice(server, rows, tmp_path):
    server.delay = 0.2
    program = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()"]
    command = ["score", str(rows), str(FILE), "--output", str(tmp_path / "scored.jsonl"), "task.limits.concurrency=8"]
    first = subprocess.Popen([*program, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(server.requests) < 20:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    server.delay = 0.0
    before = len(server.requests)
    assert before <= DiskCache("judge").spend(f"strict at {server.url}")[0] < 60
    done = tinyzero(*command)
    assert done.returncode == 0, done.stderr
    assert len(asked(server)) == 60
    assert len(server.requests) <= 60 + 8  # no more than were under way
    scored = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["correct"] for row in scored] == [True, False] * 30
    assert scored[0]["parts"] == {"words": 1.0, "natural": 1.0}
    count = len(server.requests)
    other_weights = load_task(str(FILE), options={"weights": {"natural": 0.5}})
    again = [other_weights.score_completion(row["completion"], row["ground_truth"]) for row in scored]
    assert [score.value for score in again] == [1.3, 0.0] * 30
    assert len(server.requests) == count


FAILURES = [(500, "oops"), (429, {"error": {"message": "slow down"}}), (200, "{no json"), (200, {"choices": []})]


@pytest.mark.slow
def test_what_fails_is_masked_and_counted_in_training(server, tmp_path, capfd):
    def intervene(number, request):
        """A fifth of the answers fails, always in the same way: errors, garbage, and grades that are none."""
        kind = sum(judge_server.blocks(request)["answer"].encode()) % 25
        if kind < len(FAILURES):
            return FAILURES[kind]
        status, body = judge_server.reply(number, request)
        if kind == 4:
            body["choices"][0]["message"]["content"] = '{"explanation": "", "words": 7, "natural": 1}'
        return status, body

    server.intervene = intervene
    task = tmp_path / "sentences.py"
    whole = FILE.read_text().replace("return last_tagged(completion)", "return completion.strip() or None")
    task.write_text(whole)
    settings = (
        "run.steps=3 run.device=cpu data.prompts_per_step=3 rollout.group_size=8 rollout.max_completion_tokens=8 "
        "eval.every=0 eval.num_problems=4 eval.greedy=false data.prompt_template=base task.limits.retries=1 "
        "task.limits.concurrency=32"
    )
    with pytest.raises(SystemExit) as end:
        main(["train", str(task), "--model=tiny", f"--output={tmp_path / 'run'}", *settings.split()])
    err = capfd.readouterr().err
    assert not end.value.code, err
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    failed = [step["reward/error_frac"] for step in steps if "reward/error_frac" in step]
    assert len(failed) == 3
    assert 0.02 < sum(failed) / 3 < 0.45
    assert "val-aux/sentences/error_frac" in steps[0]
    assert "judge strict: " in err
    assert max(asked(server).values()) == 2  # what failed, once more
