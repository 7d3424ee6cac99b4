import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dummy_runs import write_run
from tests.environments import ROOT
from tinyzero_sdk.cli import main
from tinyzero_sdk.report.page import as_json, report
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.report.server import _MOST_RUNS, Library, make_server

ATTACK = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)>"


def blocks_of(text):
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(block) for block in found]


def test_the_page_allows_its_own_script_and_style_alone(run_path):
    text = report([open_run(run_path, "first")], most=100)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for part, kind in ((script, "script"), (style, "style")):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_text_of_a_model_never_stands_as_html(tmp_path):
    path = tmp_path / f"{ATTACK[:9].replace('/', '')}.jsonl"
    row = {"completion": ATTACK, "prompt": ATTACK, "ground_truth": ATTACK, "answer": ATTACK, "task": ATTACK}
    path.write_text(json.dumps(row | {"score": 0.0, "correct": False, "reason": "wrong"}))
    text = report([open_run(path, ATTACK)], most=100)
    assert ATTACK not in text
    assert text.count("<script") == text.count("</script>") == 4  # data, script, and two blocks
    packed = [gzip.decompress(base64.b64decode(block["gzip"])).decode() for block in blocks_of(text)]
    assert json.loads(packed[1])["completion"] == [ATTACK]


@pytest.mark.slow
def test_a_report_of_fewer_completions_holds_whole_problems(run_path):
    text = report([open_run(run_path, "first")], most=300)
    index, *_ = blocks_of(text)
    columns = json.loads(gzip.decompress(base64.b64decode(index["gzip"])))
    every = Library(run_path).completions(open_run(run_path)).index["problem"].to_pylist()
    problems = [columns["problem"]["values"][code] for code in columns["problem"]["codes"]]
    assert 200 < len(problems) <= 300
    assert all(problems.count(problem) == every.count(problem) for problem in set(problems))


@pytest.mark.slow
def test_the_page_knows_where_the_values_of_tokens_end(run_path, monkeypatch):
    monkeypatch.setattr("tinyzero_sdk.report.page._TOKEN_VALUES", 30_000)
    monkeypatch.setattr("tinyzero_sdk.report.page._BLOCK_ROWS", 100)
    text = report([open_run(run_path, "first")], most=10**6)
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    (run,) = json.loads(data)["runs"]
    texts = {block["first"]: gzip.decompress(base64.b64decode(block["gzip"])) for block in blocks_of(text)[1:]}
    held = {first: b'"entropies"' in block for first, block in texts.items()}
    assert 100 <= run["withTokens"] < run["kept"] == 1496
    assert held == {first: first < run["withTokens"] for first in range(0, 1496, 100)}


def test_a_run_is_drawn_once(tmp_path, run_path, capsys, monkeypatch):
    monkeypatch.chdir(run_path)
    with pytest.raises(SystemExit) as exit:
        main(["report", ".", str(run_path), "-o", str(tmp_path / "page.html")])
    assert (exit.value.code, "a run is given twice" in capsys.readouterr().err) == (2, True)


@pytest.mark.slow
def test_only_a_report_is_replaced_and_what_cannot_be_read_is_named(tmp_path, capsys):
    run = write_run(tmp_path / "run", steps=2, completions=100)
    (run / "completions" / "train_00000099_00000099.parquet").write_bytes(b"PAR1")
    page, notes, metrics = tmp_path / "page.html", tmp_path / "notes.html", run / "metrics.jsonl"
    notes.write_text("<!doctype html>my notes")
    before = metrics.read_bytes()
    for output, code, said in (
        (page, 0, f"left out of {run}: train_00000099_00000099.parquet, which cannot be read"),
        (page, 0, f"left out of {run}: train_00000099_00000099.parquet, which cannot be read"),
        (metrics, 2, "expected a name that ends in .htm or .html"),
        (notes, 2, "is not a report, so it is not replaced"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(["report", str(run), "-o", str(output)])
        assert (exit.value.code, said in capsys.readouterr().err) == (code, True)
    assert (metrics.read_bytes(), notes.read_text()) == (before, "<!doctype html>my notes")
    assert '"leftOut":["train_00000099_00000099.parquet, which cannot be read"]' in page.read_text()


@pytest.mark.slow
def test_watch_writes_the_page_again_when_a_run_has_grown(tmp_path, run_path, monkeypatch):
    run, output, seen = tmp_path / "run", tmp_path / "page.html", list[bytes]()
    shutil.copytree(run_path, run)

    def look(seconds):
        """In place of waiting: nothing happens, then the run takes a step, then the reader has enough."""
        seen.append(output.read_bytes())
        output.write_bytes(b"as it was")
        if len(seen) == 2:
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"step": 21, "a_new_metric": 1.0}\n')
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("tinyzero_sdk.cli.report.time.sleep", look)
    with pytest.raises(SystemExit) as exit:
        main(["report", str(run), "--output", str(output), "--watch", "--every", "7"])
    assert exit.value.code == 130
    assert b'"refresh":7' in seen[0]
    assert seen[1] == b"as it was"
    assert b"a_new_metric" in seen[2]
    assert b"a_new_metric" not in seen[0]


def test_panels_show_metrics_that_there_are():
    """The page finds metrics by their names, which docs/reference/metrics.md lists, as the trainer's tests see to."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    known = []
    for name in re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE):
        pieces = re.split(r"{(.*?)}", re.sub(r"TASK|PART|(?<=[/_@])K\b", "4", name))
        known += ["".join(one) for one in product(*(piece.split(", ") for piece in pieces))]
    panels = (ROOT / "tinyzero_sdk/report/static/panels.js").read_text(encoding="utf-8")
    names = re.findall(r'\["(?:\w+", ")?([\w-]+/[^"]+)"', panels)
    patterns = re.findall(r"\[/\^(.+?)\$/, ", panels)
    assert (len(names) > 20, len(patterns) > 8) == (True, True)
    assert [name for name in names if name not in known] == []
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in known)] == []


@contextmanager
def serving(directory, token=""):
    """A function that asks a server of the directory for (status, headers, body)."""
    server = make_server(directory, 0, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def get(path, **headers):
        connection = HTTPConnection("127.0.0.1", server.server_port)
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            body = response.read().decode()
        connection.close()
        return response.status, response.headers, body

    get.port = server.server_port
    yield get
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ask(run_path):
    """Ask a server of the directory above the run, without a token, for (status, body)."""
    with serving(run_path.parent) as get:

        def ask(path, host=f"127.0.0.1:{get.port}", **query):
            status, _, body = get(f"{path}?{urlencode(query, doseq=True)}", Host=host)
            return status, body

        yield ask


TOKEN = "x6Jq-token"


def test_only_who_has_the_token_is_served(run_path):
    without = ["/", "/runs", "//[::1", "/?token=", "/?token=wrong", "/?token=%ff"]
    without += [f"/?token={TOKEN}%00", f"/?token={TOKEN}x"]
    with serving(run_path.parent, TOKEN) as get:
        for path in (*without, f"/runs?token={TOKEN}"):
            status, _, body = get(path)
            assert (status, "first" in body) == (403, False)
        status, headers, body = get(f"/?newest=&token={TOKEN}")
        base, cookie = headers["Location"].removesuffix("?newest="), headers["Set-Cookie"].split("; ")
        assert (status, body, len(base) > 10) == (303, "", True)
        assert cookie[1:] == [f"Path={base}", "HttpOnly", "SameSite=Lax"]
        others = f"theme=dark; {cookie[0]}; a"
        status, headers, body = get(base, Cookie=others)
        assert (status, headers["Referrer-Policy"], TOKEN in body) == (200, "no-referrer", False)
        for path in ("runs", "describe?run=first"):
            status, headers, body = get(base + path, Cookie=others)
            assert (status, '"name":"first"' in body) == (200, True)
            for wrong in ("", "tinyzero=wrong", "tinyzero=", f"tinyzero={TOKEN}x", f"other={TOKEN}", "tinyzero=\xe9"):
                assert get(base + path, Cookie=wrong)[0] == 403
    with serving(run_path.parent, TOKEN) as get:
        assert get(base + "runs", Cookie=cookie[0])[0] == 404  # each server has a path of its own


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
def test_another_account_is_refused(tmp_path, run_path):
    """What `tinyzero view` itself shows to the user nobody: its port, and the words of its commands."""
    environment = os.environ | {"BROWSER": f'{sys.executable} -c "import sys, time; time.sleep(5)" %s &'}
    command = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", "view", str(run_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            address = re.search(r"http://\S+", process.stdout.readline())[0]
            spy = """if 1:
                import contextlib, encodings.idna, http.client, os, sys, urllib.parse
                from pathlib import Path
                address = urllib.parse.urlsplit(sys.stdin.read())
                os.setgroups([]), os.setgid(65534), os.setuid(65534)
                words = []
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    with contextlib.suppress(OSError):  # it has just ended
                        words.append(path.read_bytes())
                seen = b"".join(words)
                assert b"--port" in seen
                def get(path):
                    connection = http.client.HTTPConnection("127.0.0.1", address.port)
                    connection.request("GET", path)
                    return connection.getresponse().status
                token = address.query.partition("=")[2]
                print(token.encode() in seen, get("/"), get("/runs"), get("/?token=" + token))"""
            found = subprocess.check_output([sys.executable, "-c", spy], input=address, text=True)
            assert found.split() == ["False", "403", "403", "303"]
        finally:
            process.terminate()


def test_the_browser_is_led_by_a_file_of_this_user(tmp_path, run_path, monkeypatch, capsys):
    opened = []

    def look(address):
        path = Path(address.removeprefix("file://"))
        opened.extend([path.stat().st_mode & 0o777, path.read_text(), path])
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", look)
    for options, has_token in (([], True), (["--no-token"], False)):
        with pytest.raises(SystemExit):
            main(["view", str(run_path), "--port", "0", *options])
        address = re.search(r"http://\S+", capsys.readouterr().out)[0]
        mode, text, path = opened[-3:]
        assert (mode, f"0; {address}" in text, "?token=" in address, path.exists()) == (0o600, True, has_token, False)


def test_a_request_is_of_a_few_runs(ask):
    started = time.perf_counter()
    status, body = ask("/describe", run=["first"] * 900)
    assert (status, "at most 8 runs" in body) == (400, True)
    assert ask("/texts", run=["first"] * 9, id="x")[0] == 400
    assert time.perf_counter() - started < 5
    script = (ROOT / "tinyzero_sdk/report/static/main.js").read_text(encoding="utf-8")
    assert int(re.search(r"MOST_RUNS = (\d+);", script)[1]) <= _MOST_RUNS  # that the page asks for at once
    status, body = ask("/describe", run=["first"] * _MOST_RUNS)
    assert (status, len(json.loads(body))) == (200, _MOST_RUNS)


def test_the_server_answers_about_runs_below_its_directory_only(ask):
    status, body = ask("/runs")
    assert (status, [run["name"] for run in json.loads(body)]) == (200, ["first"])
    for name in ("../first", "/etc", "first/../first", "first/completions"):
        assert ask("/describe", run=name)[0] == 404
    assert ask("/first/config.toml")[0] == 404


def test_filters_of_another_shape_are_refused(ask):
    huge = '{"step": [1' + "0" * 400 + ", null]}"
    for filters in ("[]", "null", "{", '{"problem": {}}', '{"problem": ' + "[" * 20_000, huge):
        assert ask("/completions", run="first", filters=filters, offset=0, limit=1)[0] == 400
    for offset, limit in ((-1, 5), (0, -5), ("x", 5)):
        assert ask("/completions", run="first", filters="{}", offset=offset, limit=limit)[0] == 400


def test_the_server_answers_to_names_of_this_machine_alone(ask):
    for host in ("localhost", "127.0.0.1", "LOCALHOST:9000", "[::1]:8020"):
        assert ask("/runs", host=host)[0] == 200
    for host in ("evil.example:80", "localhost.evil.example", "127.0.0.1:80.evil.example", "[::1", ""):
        assert ask("/runs", host=host)[0] == 403


def test_the_server_lists_the_newest_run_first(tmp_path):
    for number, name in enumerate("bca"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
        os.utime(tmp_path / name / "metrics.jsonl", (number, number))
    assert [run["name"] for run in Library(tmp_path).listed()] == ["a", "c", "b"]


def test_the_server_answers_with_pages_of_completions(ask):
    wanted = json.dumps({"reason": ["ok"], "sort": "step"})
    _, body = ask("/completions", run="first", filters=wanted, offset=10, limit=5)
    found = json.loads(body)
    assert len(found["rows"]) == 5 < found["total"]
    _, body = ask("/texts", run="first", id=found["rows"][0]["id"])
    assert json.loads(body)[0]["reason"] == "ok"


def test_a_damaged_entry_hides_no_other(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    (tmp_path / "fresh.jsonl").touch()
    (tmp_path / "else.jsonl").write_text('{"prompt": 1}')
    (tmp_path / "loop").symlink_to("loop")
    assert [*Library(tmp_path).paths()] == ["run"]


def test_a_lone_surrogate_stays_json():
    assert json.loads(as_json({"a\udce9": "\\\ud800"}).encode()) == {"a\udce9": "\\\ud800"}


def test_links_out_of_the_directory_are_not_followed(tmp_path, run_path):
    (tmp_path / "link").symlink_to(run_path, target_is_directory=True)
    assert Library(tmp_path).paths() == {}
