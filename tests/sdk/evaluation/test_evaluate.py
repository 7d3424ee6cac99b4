"""`tinyzero eval` at an endpoint, as it is typed: requests, rows and refusals."""

import json

import pyarrow.parquet as pq
import pytest

from tests.sdk.evaluation.conftest import CHAT, rows_of
from tinyzero_sdk import load_task
from tinyzero_sdk.evaluation.protocol import EVALUATION_SEED
from tinyzero_sdk.plugins.registry import load_plugins

pytestmark = pytest.mark.usefixtures("scored_in_process")


@pytest.fixture
def evaluate(run, monkeypatch, server, task):
    """`tinyzero eval` at the server: (exit code, stdout, stderr)."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    return lambda *words: run("eval", "--task", task, "--model", "m", "--endpoint", server.url, *words)


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_every_completion_is_kept_with_all_that_belongs_to_it(evaluate, server, task, tmp_path):
    output = tmp_path / "out.jsonl"
    code, shown, err = evaluate("--size", 6, "-n", 4, "--seed", 3, "--max-tokens", 32, "task.digits=2", "-o", output)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["task", "model", "problems", "accuracy"]
    assert "pass@k" in shown
    assert "50.0% ± 0.0" in shown
    rows = rows_of(output)
    assert [(row["extra_info"]["index"], row["sample"]) for row in rows] == [(i, s) for i in range(6) for s in range(4)]
    items = list(load_task(task).dataset("test", 6, seed=EVALUATION_SEED))
    for row in rows:
        item = items[row["extra_info"]["index"]]
        assert row["reward_model"]["ground_truth"] == item.ground_truth
        assert row["prompt"] == [{"role": "user", "content": f"say {item.data['number']}"}]
        assert row["correct"] == (row["answer"] == str(item.ground_truth))
        assert (row["finished"], row["token_count"]) == (True, None)  # the usage of several is not divided
        assert (row["task_options"], row["extra_info"]["difficulty"]) == ('{"digits": 2}', item.data["number"])
    sampling = {"model": "m", "seed": 3, "temperature": 1.0, "max_tokens": 32, "task_options": {"digits": 2}}
    assert rows[0]["sampling"].items() >= {**sampling, "endpoint": server.url}.items()
    assert "secret-key" not in output.read_text(encoding="utf-8")
    assert all(request["n"] == 4 and request["path"].endswith("/chat/completions") for request in server.requests)
    assert len({request["seed"] for request in server.requests}) == len(server.requests) == 6


@pytest.mark.slow
def test_a_task_with_fewer_problems_is_evaluated_on_all_of_them(run, server, tmp_path):
    words = ("--task", "multiply", "task.digits=[2, 1]", "--model", "m", "--endpoint", server.url, "--json")
    code, shown, _ = run("eval", *words, "-o", tmp_path / "out.jsonl")
    assert code == 0
    assert 1 < json.loads(shown)["problems"] < 500


@pytest.mark.slow
def test_text_goes_to_the_completions_endpoint_and_json_to_stdout(evaluate, server, tmp_path):
    output = tmp_path / "out.parquet"
    arguments = ("--size", 4, "--template", "base", "--max-tokens", 3, "--temperature", 0, "-o", output, "--json")
    code, shown, _ = evaluate(*arguments)
    found = json.loads(shown)
    assert (code, found["problems"], found["samples"], found["by_reason"]) == (0, 4, 1, {"ok": 2, "wrong": 2})
    assert (found["mean_length"], found["accuracy"], found["standard_error"]) == (7.0, 0.5, pytest.approx(0.2887, 1e-3))
    assert all("n" not in request and "seed" not in request for request in server.requests)
    assert {request["path"] for request in server.requests} == {"/v1/completions"}
    table = pq.read_table(output)
    assert (table["finished"].to_pylist(), table["token_count"].to_pylist()) == ([False] * 4, [7] * 4)
    assert evaluate(*arguments)[0] == 0  # goes on from out.jsonl, where nothing is missing
    assert len(server.requests) == 4


@pytest.mark.slow
def test_a_model_that_never_answers_is_warned_of_beside_the_result(run, server, write_task, tmp_path):
    mute = write_task(make_prompt=CHAT, extract_answer="@hookimpl\ndef extract_answer(completion): return None")
    words = ("--task", mute, "--model", "m", "--endpoint", server.url, "--size", 30, "-n", 2, "--max-tokens", 3)
    code, shown, err = run("eval", *words, "-o", tmp_path / "out.jsonl")
    assert code == 0
    assert "signal      no answer 100.0% · cut off 100.0% · zero-variance groups 100.0%" in shown
    assert err.startswith("warning: 100.0% of 60 completions have no answer, and 100.0% are cut off at 3 tokens")
    assert f"tinyzero sft --task {mute} --model m --output DIR data.path=FILE" in err
    found = json.loads(run("eval", *words, "-o", tmp_path / "out.jsonl", "--json")[1])["summary"]["signal"]
    assert (found["no_answer_frac"], found["truncated_frac"], found["zero_std_frac"]) == (1.0, 1.0, 1.0)
    assert found["fault"] == "no_answer"


@pytest.mark.slow
def test_another_configuration_is_refused_by_name(evaluate, server, tmp_path):
    output = tmp_path / "out.jsonl"
    assert evaluate("--size", 2, "-o", output)[0] == 0
    before = output.read_bytes()
    for change, expected in {
        ("--temperature", 0.5): "with temperature=1.0, not temperature=0.5",
        ("task.digits=4",): 'with task_options={"digits": 3}, not task_options={"digits": 4}',
        ("--size", 3): "with size=2, not size=3",
    }.items():
        code, _, err = evaluate("--size", 2, "-o", output, *change)
        assert code == 2
        assert expected in err
        assert err.count("\n") == 1
    assert output.read_bytes() == before
    assert len(server.requests) == 2


@pytest.mark.parametrize("content", ['{"completion": "x"}\n', "no json\n", '{"sampling": {}, "sample": 0}\n'])
def test_another_file_is_never_written_to(evaluate, server, tmp_path, content):
    output = tmp_path / "out.jsonl"
    output.write_text(content, encoding="utf-8")
    code, _, err = evaluate("--size", 2, "-o", output)
    assert (code, server.requests, output.read_text(encoding="utf-8")) == (2, [], content)
    assert f"{output}:1" in err
    assert "give another --output" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--size", "2"), "an evaluation at an endpoint needs --output FILE"),
        (("-o", "x.txt"), "expected a name that ends in .jsonl or .parquet"),
        (("-o", "x.jsonl", "run.seed=0"), "unknown key 'run'"),
        (("-o", "x.jsonl", "task.no=1"), "unknown key 'task.no'"),
        (("-o", "x.jsonl", "--endpoint", "localhost"), "expected a URL, such as http://localhost:8000/v1"),
        (("-o", "x.jsonl", "--size", "2", "--test-fraction", "2"), "the test fraction is 2.0"),
        (("-o", "x.jsonl", "--extra-body", "[1]"), "expected a JSON object"),
        (("-o", "x.jsonl", "--size", "2", "--system", "Be brief.", "--template", "base"), "give --template chat"),
    ],
)
def test_wrong_use_is_one_line(evaluate, server, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, shown, err = evaluate(*arguments)
    assert (code, shown, server.requests) == (2, "", [])
    assert expected in err
    assert err.count("\n") == 1


def test_a_scorer_that_fails_is_reported_and_exits_1(evaluate, write_task, tmp_path):
    broken = write_task("broken", make_prompt=CHAT, score="@hookimpl\ndef score(answer): raise RuntimeError('oh')")
    code, shown, err = evaluate("--task", broken, "--size", 2, "-o", tmp_path / "out.jsonl")
    assert code == 1
    assert "reasons     error 2\n" in shown
    assert err.startswith("the scorer failed on every answer")
    assert "RuntimeError: oh" in err


def test_what_needs_an_endpoint_is_refused_without_one(run):
    for option, value in (("--retries", "3"), ("--stop", "END")):
        error = f"error: {option} has no effect without --endpoint; leave it out\n"
        assert run("eval", "--task", "x", option, value)[2] == error


LOCAL = """
from contextlib import contextmanager
from tinyzero_sdk import Completion, hookimpl, load_task
from tinyzero_sdk.evaluation.protocol import EvaluationPlan

class Sampler:
    template, settings = "base", {"x": 1}

    def sample(self, problems, keep, advance):
        advance(len(problems))
        for problem in problems:
            for sample in problem.missing:
                keep(problem, sample, Completion(f"<answer>{problem.item.ground_truth}</answer>", 3, True))

class Models:
    def plan(self, request):
        @contextmanager
        def opener():
            yield Sampler()
        task = load_task(request.task)
        return EvaluationPlan(task=task, model="local", opener=opener, max_tokens=9, size=request.size)

    def key_help(self):
        return ["more keys"]

@hookimpl
def local_models():
    return Models()
"""


def test_hook_local_models(run, install, write_task, monkeypatch):
    install("tz-local", modules={"local_module": LOCAL}, plugins={"local": "local_module"})
    plugins = tuple(plugin for plugin in load_plugins() if plugin.name == "local")
    monkeypatch.setattr("tinyzero_sdk.cli.app.load_plugins", lambda: plugins)
    assert run("eval", "--help")[1].rstrip().endswith("more keys")
    code, shown, _ = run("eval", "--task", write_task(), "--size", "5")
    assert code == 0
    assert "model       local\n" in shown
    assert "accuracy    100.0% ± 0.0" in shown
    assert "mean length 3.0 tokens" in shown
