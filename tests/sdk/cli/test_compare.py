"""`tinyzero compare`, as it is typed."""

import json

import pytest

from tests.sdk.scoring.test_compare import rows_of, two_models


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, correct in zip("ab", two_models(30), strict=True):
        paths.append(tmp_path / f"{name}.jsonl")
        rows = rows_of(correct, sampling={"model": name})
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def test_table_json_and_exit_codes(run, files, monkeypatch):
    monkeypatch.chdir(files[0].parent)
    names = [path.name for path in files]
    code, out, err = run("compare", *names, "--pass-at", "1,3", "--limit", 1)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "settings that differ: sampling.model a → b" in out
    report = json.loads(run("compare", *names, "--pass-at", "3", "--json")[1])
    (comparison,) = report["comparisons"]
    assert report["problems"] == 30
    assert [one["name"] for one in comparison["metrics"]] == ["mean score", "pass@3", "cut off", "tokens"]
    accuracy, (low, high) = comparison["accuracy"], comparison["accuracy"]["interval"]
    row = next(line for line in out.splitlines() if line.startswith("b.jsonl  ")).split()
    assert row[2:4] == [f"{accuracy['other']:.1%}", f"{100 * accuracy['difference']:+.1f}"]
    assert row[5::2] == [f"{100 * low:+.1f}", f"{100 * high:+.1f}"]
    assert f"... {comparison['better'] - 1} more (--limit, or --json)" in out
    assert f"better on {comparison['better']} problems, {comparison['newly_solved']} of them newly solved" in out

    with files[1].open("a") as file:
        file.write("not JSON\n")
    code, out, _ = run("compare", *names)
    assert code == 1
    assert "not compared: 1 row of b.jsonl unreadable" in out
    needs = "compare needs something to compare with: tinyzero compare BASELINE OTHER..."
    assert run("compare", names[0])[::2] == (2, f"error: a.jsonl is one file; {needs}\n")


@pytest.mark.parametrize("samples", ["1", "99", "1000000000", "-5"])
def test_a_bootstrap_of_few_or_endless_samples_is_refused(run, files, samples):
    expected = f"error: --bootstrap={samples}: expected from 100 to 100,000 samples, such as 1000\n"
    assert run("compare", *files, "--bootstrap", samples) == (2, "", expected)


def test_few_differing_problems_are_reported(run, files):
    out = run("compare", files[0], files[0])[1]
    assert "no problem differs in accuracy: its interval says nothing about other problems" in out
    lines = files[0].read_text().splitlines()
    row = json.loads(lines[0])
    lines[0] = json.dumps(row | {"correct": not row["correct"]})
    files[1].write_text("\n".join(lines))
    out = run("compare", *files)[1]
    assert "only 1 problem with another accuracy, too few to rely on its interval" in out
