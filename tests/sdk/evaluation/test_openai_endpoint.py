"""Servers as they are: what they leave out, refuse and repeat, and how they fail."""

import asyncio
import json
import re
import sys
from contextlib import suppress
from unittest.mock import Mock

import pytest

from tests.sdk.evaluation.conftest import rows_of
from tests.sdk.evaluation.endpoint_answers import CASES, mutations, reply, stream
from tests.sdk.evaluation.fake_endpoint import complete
from tinyzero_sdk import RewardPart
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.evaluation.evaluate import evaluate
from tinyzero_sdk.evaluation.openai_endpoint import EndpointOptions, plan_endpoint
from tinyzero_sdk.evaluation.protocol import EvaluationRequest
from tinyzero_sdk.judge import Judge
from tinyzero_sdk.openai_client import _AnswerError, _read, said


@pytest.fixture
def sample(server, task, tmp_path, monkeypatch):
    """Sample three problems, without the command line and without scoring."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    monkeypatch.setattr("tinyzero_sdk.openai_client.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("tinyzero_sdk.scoring.score_file.score_file", lambda *_: Mock(seconds=1.0))

    def sample(size=3, samples=2, overrides=(), **options):
        output = tmp_path / "out.jsonl"
        sampled = {name: options.pop(name) for name in ("temperature", "top_p", "seed") if name in options}
        request = EvaluationRequest(task=task, model="m", overrides=overrides, size=size, samples=samples, **sampled)
        observer = Mock()
        evaluate(plan_endpoint(request, EndpointOptions(server.url, **options)), output, observer)
        kept, finished, total = observer.sampling.call_args.args
        assert (kept, finished, total) == (size * samples, 0, size * samples)
        return rows_of(output)

    return sample


@pytest.mark.slow
def test_one_completion_at_a_time_where_the_server_ignores_n(server, sample):
    server.takes_n = False
    rows = sample(samples=3, concurrency=1)
    assert len(rows) == len(server.requests) == 9
    assert [request.get("n") for request in server.requests] == [3, *[None] * 8]
    assert {row["token_count"] for row in rows} == {7}


BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


@pytest.mark.slow
@BY_NAME
def test_an_evaluation_takes_what_servers_answer(case, server, sample, capsys):
    texts, expected = [], case.get("expected", {})

    def intervene(number, request):
        texts.append(complete(request["messages"][-1]["content"], 0))
        return reply(case, number, request, texts[-1])

    server.intervene = intervene
    asked = {"size": 1, "concurrency": 1, "retries": 1, "temperature": 0.7, "top_p": 0.9, "seed": 3}
    if "error" in expected:
        with pytest.raises(TinyZeroError, match=expected["error"]):
            sample(**asked)
        return
    rows = sample(**asked)
    text = "" if "withheld" in expected else texts[0]
    found = [(row["completion"].removesuffix("\u2028"), row.get("reasoning_content"), row["finished"]) for row in rows]
    assert found == [(text, expected.get("thought"), expected.get("finished", True))] * 2
    assert {row["token_count"] for row in rows} == {expected.get("tokens", 7)}
    warnings = re.findall("^warning: .*", capsys.readouterr().err, re.MULTILINE)
    assert [expected["warning"] in one for one in warnings] == [True] * ("warning" in expected)
    assert len(server.requests) == expected.get("requests", len(server.requests))


@pytest.mark.slow
@BY_NAME
def test_a_judge_takes_what_servers_answer(case, server, monkeypatch, tmp_path):
    monkeypatch.setenv("TINYZERO_CACHE_DIR", str(tmp_path))
    expected, grades = case.get("expected", {}), json.dumps({"explanation": "Good.", "good": 1.0})
    server.intervene = lambda number, request: reply(case, number, request, grades)
    judge = Judge({"good": RewardPart(description="It is good.")}, model="m", base_url=server.url, temperature=0.7)

    async def ask():
        try:
            if "times" in case:  # the scorer asks again
                with pytest.raises(ValueError, match=r"an error in its answer|broke off"):
                    await judge.score(question="?", answer="!")
            return await judge.score(question="?", answer="!")
        finally:
            await judge.aclose()

    if {"error", "withheld"} & {*expected}:
        with pytest.raises((TinyZeroError, ValueError), match=expected.get("error", ".").replace("2 times", "1 time")):
            asyncio.run(ask())
    else:
        assert asyncio.run(ask()).correct


@pytest.mark.slow
def test_the_command_meets_a_server_that_refuses_all_that_can_be_left_out(server, task, run, tmp_path):
    """Several completions, then temperature, top-p and seed, then what is no stream."""

    def intervene(number, request):
        for name in ("n", "temperature", "top_p", "seed"):
            if name in request:
                return 422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]}
        if not request.get("stream"):
            return 400, {"error": {"message": "Set stream to true: this model gives nothing but streams."}}
        return 200, stream([{"content": complete(request["messages"][-1]["content"], 0)}]), "text/event-stream"

    server.intervene = intervene
    words = ["--size", 4, "-n", 2, "--temperature", 0.7, "--seed", 1, "--output", tmp_path / "out.jsonl"]
    code, _, err = run("eval", "--task", task, "--endpoint", server.url, "--model", "m", *words)
    assert code == 0, err
    assert len(rows_of(tmp_path / "out.jsonl")) == 8
    for name in ("temperature", "top_p", "seed"):
        assert err.count(f"does not take {name}, which is left out") == 1


def test_any_answer_is_read_or_refused():
    """Every value of an answer, of a stream and of an error, replaced by others."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "1"}]
    answers = [json.dumps(one) for case in CASES[:3] for one in mutations(case["body"])]
    for event in mutations(
        {"choices": [{"index": 0, "delta": {"content": parts}, "finish_reason": "stop"}], "usage": {}}
    ):
        answers.append(f"data: {json.dumps(event)}\n\n{stream([])}")
    nested = '{"choices":' + "[" * 900 + "]" * 900 + "}"
    answers += ["", "[", "[" * 100_000, "data: [DONE]", "data:", "data: " + "[" * 100_000, nested]
    read = 0
    for answer in answers:
        with suppress(_AnswerError):
            read += sum(isinstance(completion.text, str) for completion in _read(answer).completions)
    assert read > 100
    deep = {}
    for _ in range(2000):
        deep = {"message": [deep], "error": deep}
    for body in (*mutations({"detail": [{"loc": ["n"], "msg": "no"}], "code": "x", "message": {"error": "y"}}), deep):
        assert isinstance(said(body), str)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "tries", "expected"),
    [
        ((500, {"error": {"message": "out of memory"}}), 3, "answered 500 3 times (out of memory)"),
        ((429, {"error": {"message": "quota"}}), 3, "answered 429 3 times"),
        ((404, {"error": {"message": "no such model"}}), 1, "has no model 'm', or is not the base of an API"),
        ((400, {"error": {"message": "too long"}}), 1, "rejects the request (400: too long)"),
        ((200, "{no json"), 3, "returned an answer that is not JSON"),
        ((200, {"choices": [None, {"message": {"content": ["x"]}}]}), 3, "without choices 3 times"),
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
    server.intervene = lambda number, request: (422, {"error": {"message": "you said Bearer secret-key"}})
    server.key = ""
    with pytest.raises(TinyZeroError, match="rejects the request") as caught:
        sample()
    assert "secret-key" not in str(caught.value)
    server.intervene, server.key = lambda number, request: None, "another"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(TinyZeroError, match="set the environment variable MY_KEY"):
        sample(key_variable="MY_KEY")
    monkeypatch.setenv("MY_KEY", "another")
    assert len(sample(key_variable="MY_KEY")) == 6


def test_a_slow_server_times_out(server, sample):
    server.delay = 0.5
    with pytest.raises(TinyZeroError, match=r"did not answer within 0\.1 s, 1 time; raise the timeout"):
        sample(size=1, samples=1, timeout=0.1, retries=0)


def test_no_server(sample, server, tmp_path):
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(TinyZeroError, match=r"cannot reach http://127\.0\.0\.1:9/v1 .*is it running\?"):
        sample(retries=0)
    assert not (tmp_path / "out.jsonl").exists()  # nothing came, so nothing is left


@pytest.mark.slow
def test_concurrency_is_kept(server, sample):
    server.delay = 0.02
    sample(size=12, samples=1, concurrency=3)
    assert server.busiest == 3


def test_without_the_package_it_says_what_to_install(sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(TinyZeroError, match=r"pip install 'tinyzero-sdk\[endpoint\]'"):
        sample()


def test_problems_of_a_file_are_asked_as_they_stand(server, task, sample, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"Say {n}!"}], "ground_truth": n} for n in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = f"data.test_path={tmp_path / 'test.jsonl'}"
    rows = sample(samples=1, overrides=[file, "task.digits=2"])
    assert sorted(request["messages"][0]["content"] for request in server.requests) == ["Say 0!", "Say 1!", "Say 2!"]
    assert all(f"Say {row['reward_model']['ground_truth']}!" == row["prompt"][0]["content"] for row in rows)
    for word, template, message in (
        ("data.size=3", None, "expected a file as data.path or data.test_path"),
        (file, "base", "--template has no effect"),
    ):
        request = EvaluationRequest(task=task, model="m", overrides=[word], template=template)
        with pytest.raises(TinyZeroError, match=message):
            plan_endpoint(request, EndpointOptions(server.url))


def test_what_a_reasoning_model_takes_and_gives(server, task, sample, run):
    def intervene(number, request):
        message = {"content": "<answer>1</answer>", "reasoning_content": f"hm {number}"}
        return 200, {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}

    server.intervene = intervene
    rows = sample(size=1, system="Be brief.", stop=["END"], extra_body={"top_k": 20, "chat": {"a": 1}})
    assert [row["reasoning_content"] for row in rows] == ["hm 1", "hm 2"]
    request = server.requests[0]
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][0]["content"] == "Be brief."
    assert (request["stop"], request["top_k"], request["chat"]) == (["END"], 20, {"a": 1})
    with pytest.raises(TinyZeroError, match=r"with system=Be brief\., not system=Be long"):
        sample(size=1, system="Be long.")
