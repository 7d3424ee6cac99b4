import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import threading
from http.client import HTTPConnection
from itertools import product
from urllib.parse import urlencode

import pytest

from tests.dummy_runs import write_run
from tests.environments import ROOT
from tinyzero_sdk.cli import main
from tinyzero_sdk.report.page import as_json, report
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.report.server import Library, make_server

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


@pytest.fixture
def ask(run_path):
    """Ask a server of the directory above the run for (status, body)."""
    server = make_server(run_path.parent, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def get(path, host=f"127.0.0.1:{server.server_port}", **query):
        connection = HTTPConnection("127.0.0.1", server.server_port)
        connection.request("GET", f"{path}?{urlencode(query)}", headers={"Host": host})
        with connection.getresponse() as response:
            body = response.read().decode()
        connection.close()
        return response.status, body

    yield get
    server.shutdown()
    thread.join()
    server.server_close()


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
