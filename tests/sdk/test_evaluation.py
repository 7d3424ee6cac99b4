"""`tinyzero eval` at an endpoint: what is asked, what is kept, what goes wrong, and going on after a kill."""

import functools
import json
import os
import signal
import ssl
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from tests.sdk.fake_endpoint import serve
from tinyzero_sdk import endpoint as endpoint_module
from tinyzero_sdk import load_task
from tinyzero_sdk.cli import main
from tinyzero_sdk.endpoint import EndpointOptions, plan_endpoint
from tinyzero_sdk.errors import DataError, SettingsError, TinyZeroError
from tinyzero_sdk.evaluation import EVALUATION_SEED, EvaluationRequest, evaluate
from tinyzero_sdk.extensions import load_extensions
from tinyzero_sdk.sample_file import SampleFile

CHAT = """
@hookimpl
def make_prompt(item, template):
    text = f"say {item.data['number']}"
    return [{"role": "user", "content": text}] if template == "chat" else text
"""
OPTIONS = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Options:
    digits: int = 3
@hookimpl
def options(): return Options
"""


class Quiet:
    """An observer that only remembers."""

    def __init__(self):
        self.seen = []

    def sampling(self, kept, ahead, total):
        assert kept + ahead <= total
        self.seen.append((kept, total))

    def scoring(self, share):
        pass


TLS = functools.cache(ssl.create_default_context)  # a client reads all certificates for each, which takes a while


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: TLS())
    with serve() as running:
        yield running


@pytest.fixture
def task(write_task):
    return write_task(make_prompt=CHAT, extra=OPTIONS)


@pytest.fixture
def run(capsys, monkeypatch, server, task):
    """`tinyzero eval` at the server: (exit code, stdout, stderr)."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")

    def run(*arguments, url=None):
        words = ["--task", task, "--model", "m", "--endpoint", url or server.url, *map(str, arguments)]
        with pytest.raises(SystemExit) as left:
            main(["eval", *words])
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    return run


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_completion_is_kept_with_all_that_belongs_to_it(run, server, task, tmp_path):
    output = tmp_path / "out.jsonl"
    code, shown, told = run("--size", 6, "-n", 4, "--seed", 3, "--max-tokens", 32, "task.digits=2", "-o", output)
    assert (code, told) == (0, "")
    assert [line.split()[0] for line in shown.splitlines()[:4]] == ["task", "model", "problems", "accuracy"]
    assert "pass@k" in shown
    assert "50.0 % ± 0.0" in shown
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
    sampling = rows[0]["sampling"]
    assert {name: sampling[name] for name in ("model", "seed", "temperature", "max_tokens", "task_options")} == {
        "model": "m",
        "seed": 3,
        "temperature": 1.0,
        "max_tokens": 32,
        "task_options": {"digits": 2},
    }
    assert sampling["endpoint"] == server.url
    assert "secret-key" not in output.read_text(encoding="utf-8")
    assert all(request["n"] == 4 and request["path"].endswith("/chat/completions") for request in server.requests)
    assert len({request["seed"] for request in server.requests}) == len(server.requests) == 6


def test_text_goes_to_the_completions_endpoint_and_json_to_stdout(run, server, tmp_path):
    output = tmp_path / "out.parquet"
    arguments = ("--size", 4, "--template", "base", "--max-tokens", 3, "--temperature", 0, "-o", output, "--json")
    code, shown, _ = run(*arguments)
    found = json.loads(shown)
    assert (code, found["problems"], found["samples"], found["by_reason"]) == (0, 4, 1, {"ok": 2, "wrong": 2})
    assert (found["mean_length"], found["accuracy"], found["standard_error"]) == (7.0, 0.5, pytest.approx(0.2887, 1e-3))
    assert all("n" not in request and "seed" not in request for request in server.requests)
    assert {request["path"] for request in server.requests} == {"/v1/completions"}
    table = pq.read_table(output)
    assert (table["finished"].to_pylist(), table["token_count"].to_pylist()) == ([False] * 4, [7] * 4)
    assert run(*arguments)[0] == 0  # goes on from out.jsonl, where nothing is missing
    assert len(server.requests) == 4


def test_another_configuration_is_refused_by_name(run, server, tmp_path):
    output = tmp_path / "out.jsonl"
    assert run("--size", 2, "-o", output)[0] == 0
    before = output.read_bytes()
    for change, expected in {
        ("--temperature", 0.5): "with temperature=1.0, and this one has temperature=0.5",
        ("--size", 2, "task.digits=4"): 'with task_options={"digits": 3}, and this one has task_options={"digits": 4}',
        ("--size", 3): "with size=2, and this one has size=3",
    }.items():
        code, _, told = (
            run("--size", 2, "-o", output, *change) if "--size" not in change else run(*change, "-o", output)
        )
        assert code == 2
        assert expected in told
        assert told.count("\n") == 1
    assert output.read_bytes() == before
    assert len(server.requests) == 2


@pytest.mark.parametrize("content", ['{"completion": "x"}\n', "no json\n", '{"sampling": {}, "sample": 0}\n'])
def test_another_file_is_never_written_to(run, server, tmp_path, content):
    output = tmp_path / "out.jsonl"
    output.write_text(content, encoding="utf-8")
    code, _, told = run("--size", 2, "-o", output)
    assert (code, server.requests, output.read_text(encoding="utf-8")) == (2, [], content)
    assert f"{output}:1" in told
    assert "give another --output" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--size", "2"), "an evaluation at an endpoint needs --output FILE"),
        (("-o", "x.txt"), "expected a name that ends in .jsonl or .parquet"),
        (("-o", "x.jsonl", "data.test_share=0.5"), "unknown key 'data'"),
        (("-o", "x.jsonl", "task.no=1"), "unknown key 'task.no'"),
        (("-o", "x.jsonl", "--endpoint", "localhost"), "expected a URL, such as http://localhost:8000/v1"),
        (("-o", "x.jsonl", "--size", "2", "--test-share", "2"), "the test share is 2.0"),
    ],
)
def test_wrong_use_is_one_line(run, server, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, shown, told = run(*arguments)
    assert (code, shown, server.requests) == (2, "", [])
    assert expected in told
    assert told.count("\n") == 1


def test_a_scorer_that_fails_is_told_and_exits_1(run, write_task, tmp_path):
    broken = write_task("broken", make_prompt=CHAT, score="@hookimpl\ndef score(answer): raise RuntimeError('oh')")
    code, shown, told = run("--task", broken, "--size", 2, "-o", tmp_path / "out.jsonl")
    assert code == 1
    assert "reasons     error 2\n" in shown
    assert told.startswith("task 'broken' failed on every answer")
    assert "RuntimeError: oh" in told
    assert "RuntimeError: oh" in told


def test_a_task_whose_columns_are_in_the_way(run, write_task, tmp_path):
    code = "@hookimpl\ndef generate_dataset(): return (Item(n, {'sample': n, 'number': n}) for n in range(99))"
    told = run("--task", write_task("taken", generate_dataset=code), "--size", 2, "-o", tmp_path / "out.jsonl")[2]
    assert "has a column 'sample' of its own, which an evaluation writes" in told


def test_what_needs_an_endpoint_is_refused_without_one(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--task", "x", "--retries", "3"])
    assert capsys.readouterr().err == "error: --retries has no effect without --endpoint; leave it out\n"


# ---- servers as they are ---------------------------------------------------------------------------------------------


@pytest.fixture
def sample(server, task, tmp_path, monkeypatch):
    """Sample three problems, without the command line and without scoring."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    monkeypatch.setattr(endpoint_module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr("tinyzero_sdk.evaluation._score", lambda *_: None)
    monkeypatch.setattr("tinyzero_sdk.evaluation._sum_up", lambda *_: None)

    def sample(size=3, samples=2, **options):
        output = tmp_path / "out.jsonl"
        request = EvaluationRequest(task=task, model="m", size=size, samples=samples)
        observer = Quiet()
        evaluate(plan_endpoint(request, EndpointOptions(server.url, **options)), output, observer)
        assert observer.seen[-1] == (size * samples, size * samples)
        return rows_of(output)

    return sample


def test_one_completion_at_a_time_where_the_server_takes_no_notice_of_n(server, sample):
    server.takes_n = False
    rows = sample(samples=3, concurrency=1)
    assert len(rows) == len(server.requests) == 9
    assert [request.get("n") for request in server.requests] == [3, *[None] * 8]
    assert {row["token_count"] for row in rows} == {7}


def test_one_completion_at_a_time_where_the_server_refuses_n(server, sample):
    refusal = (400, {"error": {"message": "n must be 1"}})
    server.intervene = lambda number, request: refusal if "n" in request else None
    assert len(sample(concurrency=3)) == 6


def test_the_limit_under_the_name_that_the_server_wants(server, sample):
    def intervene(number, request):
        if "max_tokens" in request:
            return 400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead."}}
        request["max_tokens"] = request["max_completion_tokens"]
        return None

    server.intervene = intervene
    assert len(sample()) == 6


def test_an_answer_without_usage_or_text(server, sample):
    server.counts_tokens = False
    server.intervene = lambda number, request: (
        (200, {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": None}}]})
        if number == 1
        else None
    )
    rows = sample(samples=1, concurrency=1)
    assert next(row["completion"] for row in rows) == ""
    assert {row["token_count"] for row in rows} == {None}


def test_requests_that_fail_are_repeated(server, sample):
    failures = {1: (429, {"error": {"message": "slow down"}}), 2: (500, "oops"), 3: (503, ""), 5: (200, "{no json")}
    server.intervene = lambda number, request: failures.get(number)
    assert len(sample(concurrency=1, retries=4)) == 6
    assert len(server.requests) == 3 + len(failures)


@pytest.mark.parametrize(
    ("reply", "tries", "expected"),
    [
        ((500, {"error": {"message": "out of memory"}}), 3, "answered 500 3 times (Error code: 500"),
        ((429, {"error": {"message": "quota"}}), 3, "answered 429 3 times"),
        ((404, {"error": {"message": "no such model"}}), 1, "has no model 'm', or is not the base of an API"),
        ((400, {"error": {"message": "too long"}}), 1, "refuses the request (Error code: 400"),
        ((200, "{no json"), 3, "gave an answer that is no JSON"),
        ((200, '{"choices": "x"}'), 3, "gave an answer without choices, 3 times"),
        ((200, "[]"), 3, "without choices, 3 times"),
        ((200, {"choices": [{}]}), 3, "without choices, 3 times"),
        ((200, {"choices": [None, {"message": {"content": ["x"]}}]}), 3, "without choices, 3 times"),
    ],
)
def test_a_failure_for_good_is_one_line_and_keeps_what_there_is(server, sample, tmp_path, reply, tries, expected):
    server.intervene = lambda number, request: reply if number > 1 else None
    with pytest.raises(TinyZeroError, match=r"^[^\n]*$") as caught:
        sample(samples=1, concurrency=1, retries=2)
    assert expected in str(caught.value)
    assert len(server.requests) == 1 + tries
    assert len(rows_of(tmp_path / "out.jsonl")) == 1
    server.intervene = lambda number, request: None
    assert len(sample(samples=1)) == 3
    assert len(server.requests) == 1 + tries + 2


def test_a_wrong_key_is_named_and_never_shown(server, sample, monkeypatch):
    server.key = "another"
    with pytest.raises(TinyZeroError, match=r"refuses access \(401\); check the key in OPENAI_API_KEY") as caught:
        sample()
    assert "secret-key" not in str(caught.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(TinyZeroError, match="put the key into the environment as MY_KEY"):
        sample(key_variable="MY_KEY")
    monkeypatch.setenv("MY_KEY", "another")
    assert len(sample(key_variable="MY_KEY")) == 6


def test_a_server_that_repeats_the_key_does_not_make_us_print_it(server, sample):
    server.intervene = lambda number, request: (422, {"error": {"message": "you said Bearer secret-key"}})
    with pytest.raises(TinyZeroError, match="refuses the request") as caught:
        sample()
    assert "secret-key" not in str(caught.value)


def test_a_slow_server_is_given_up_after_the_timeout(server, sample):
    server.delay = 0.5
    with pytest.raises(TinyZeroError, match=r"did not answer within 0\.1 s, 1 times; raise --timeout"):
        sample(size=1, samples=1, timeout=0.1, retries=0)


def test_no_server(sample, server, tmp_path):
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(TinyZeroError, match=r"cannot reach http://127\.0\.0\.1:9/v1 .*is it running\?"):
        sample(retries=0)
    assert not (tmp_path / "out.jsonl").exists()  # nothing came, so nothing is left


def test_so_many_requests_at_a_time_and_no_more(server, sample):
    server.delay = 0.02
    sample(size=12, samples=1, concurrency=3)
    assert server.busiest == 3


def test_without_the_package_it_says_what_to_install(sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(TinyZeroError, match=r"pip install 'tinyzero-sdk\[endpoint\]'"):
        sample()


# ---- going on --------------------------------------------------------------------------------------------------------


def row(index):
    return {"extra_info": {"index": index}, "completion": "x"}


def test_a_torn_last_line_is_cut_off(tmp_path):
    path = tmp_path / "out.jsonl"
    with SampleFile(path, {"a": 1}) as file:
        assert file.append((0, 0), row(0))
        assert file.append((1, 0), row(1))
        assert not file.append((1, 0), row(1))
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for end in (second, second + 1, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with SampleFile(path, {"a": 1}) as file:
            assert ((0, 0) in file, (1, 0) in file) == (True, False)
            file.append((1, 0), row(1))
        assert path.read_bytes() == whole


def test_a_signal_amid_an_append_loses_nothing(tmp_path, monkeypatch):
    def interrupted(file):
        raise KeyboardInterrupt

    path = tmp_path / "out.jsonl"
    monkeypatch.setattr("tinyzero_sdk.sample_file._SYNC_SECONDS", -1.0)
    with SampleFile(path, {}) as file, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.append((0, 0), row(0))
    assert path.exists()
    with SampleFile(path, {}) as file:
        assert (0, 0) in file


def test_one_writer_at_a_time(tmp_path):
    with (
        SampleFile(tmp_path / "out.jsonl", {}),
        pytest.raises(SettingsError, match="another evaluation is writing to"),
    ):
        SampleFile(tmp_path / "out.jsonl", {})


def test_a_setting_that_is_new_or_gone_is_a_difference(tmp_path):
    with SampleFile(tmp_path / "out.jsonl", {"a": 1, "b": 2}) as file:
        file.append((0, 0), row(0))
    for settings, name in (({"a": 1}, "b=2, and this one has b=null"), ({"a": 1, "b": 2, "c": "x"}, "c=null, .* c=x")):
        with pytest.raises(SettingsError, match=name):
            SampleFile(tmp_path / "out.jsonl", settings)


def test_a_directory_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        SampleFile(tmp_path / "no" / "out.jsonl", {})


def evaluate_in_a_process(server, task, output):
    words = [
        "--task",
        task,
        "--model",
        "m",
        "--endpoint",
        server.url,
        "--size",
        "30",
        "-n",
        "2",
        "--output",
        str(output),
    ]
    code = "from tinyzero_sdk.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "eval", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_lines(path, count):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.005)
    raise AssertionError("no completions came")


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_result(server, task, tmp_path):
    server.delay = 0.05
    output = tmp_path / "out.jsonl"
    for killed in range(3):
        process = evaluate_in_a_process(server, task, output)
        wait_for_lines(output, 10 + 12 * killed)
        process.kill()
        process.communicate()
    kept = {line for line in output.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")}
    with output.open("ab") as file:
        file.write(b'{"torn')
    process = evaluate_in_a_process(server, task, output)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
    rows = rows_of(output)
    assert [(row["extra_info"]["index"], row["sample"]) for row in rows] == [
        (i, s) for i in range(30) for s in range(2)
    ]
    added = ("score", "correct", "reason", "answer", "task", "task_version", "task_options", "task_wrappers")
    without = [json.dumps({key: row[key] for key in row if key not in added}).encode() + b"\n" for row in rows]
    assert kept <= set(without)  # what was paid for is still there, as it was
    assert len(kept) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_evaluation_says_how_to_go_on(server, task, tmp_path, number, code):
    server.delay = 0.3
    output = tmp_path / "out.jsonl"
    process = evaluate_in_a_process(server, task, output)
    wait_for_lines(output, 1)
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=10)
    assert process.returncode == code
    assert "completions are kept in" in told
    assert "the same command goes on there" in told
    assert "Traceback" not in told


# ---- the hook --------------------------------------------------------------------------------------------------------

LOCAL = """
from contextlib import contextmanager
from tinyzero_sdk import Completion, hookimpl, load_task
from tinyzero_sdk.evaluation import EvaluationPlan

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


def test_hook_local_models(install, write_task, capsys, monkeypatch):
    install("tz-local", modules={"local_module": LOCAL}, plugins={"local": "local_module"})
    extensions = tuple(extension for extension in load_extensions() if extension.name == "local")
    monkeypatch.setattr("tinyzero_sdk.cli.app.load_extensions", lambda: extensions)
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    assert capsys.readouterr().out.rstrip().endswith("more keys")
    with pytest.raises(SystemExit) as left:
        main(["eval", "--task", write_task(), "--size", "5"])
    shown = capsys.readouterr().out
    assert (left.value.code or 0) == 0
    assert "model       local\n" in shown
    assert "accuracy    100.0 % ± 0.0" in shown
    assert "mean length 3.0 tokens" in shown
