"""The benchmark that writes the table of `rollout.engine=auto`: with fakes in place of engines, and with `torch`."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines
from benchmarks.common import with_content
from tinyzero_trainer.advisor.engine_choice import EngineSpeed, read_speeds

CASES = {name: engines.CASES[name] for name in ("short", "few")}
PUBLISHED = read_speeds()
Report = Callable[[str, int], None]


def measured(monkeypatch: pytest.MonkeyPatch, output: Path, fake: Callable[[str, Report], str]) -> list[EngineSpeed]:
    """The rows for a shape whose engines are fakes."""
    monkeypatch.setattr(engines, "write_model", lambda directory, shape: 5)
    monkeypatch.setattr(engines, "measure", lambda job, limit, report: fake(job["engine"], report))
    engines.measure_shape("0.5B", CASES, "NVIDIA H200", "2026-12-01", 9.0, 1, output)
    return [row for row in read_speeds(output) if row.parameters == 5]


def test_both_engines_make_a_row_and_other_rows_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake(engine: str, report: Report) -> str:
        for number, case in enumerate(CASES):
            report(case, {"torch": 20, "vllm": 10}[engine] + number)
        return ""

    few, short = measured(monkeypatch, tmp_path / "table.toml", fake)
    assert (few.sizes, few.torch, few.vllm, few.date) == ((5, 64, 140, 1024), 21, 11, "2026-12-01")
    assert (short.sizes, short.torch, short.vllm) == ((5, 1024, 140, 256), 20, 10)
    assert [row for row in read_speeds(tmp_path / "table.toml") if row.parameters != 5] == PUBLISHED


def test_an_engine_that_fails_leaves_its_number_out_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(engine: str, report: Report) -> str:
        report("short", 20)
        return "" if engine == "torch" else "out of memory"

    few, short = measured(monkeypatch, tmp_path / "table.toml", fake)
    assert (few.torch, few.vllm, short.is_complete) == (None, None, True)
    assert "0.5B, vllm: no number for few: out of memory" in capsys.readouterr().out


def test_what_is_finished_is_kept_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake(engine: str, report: Report) -> str:
        report("short", 20)
        if engine == "vllm":
            raise KeyboardInterrupt
        return ""

    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, tmp_path / "table.toml", fake)
    [short] = [row for row in read_speeds(tmp_path / "table.toml") if row.parameters == 5]
    assert short.is_complete


def test_a_new_row_replaces_the_old_one_unless_a_number_is_missing() -> None:
    old = PUBLISHED[0]
    new, failed = replace(old, torch=1, date="2026-12-01"), replace(old, vllm=None)
    assert engines.merged(PUBLISHED, [new]) == [new, *PUBLISHED[1:]]
    assert engines.merged(PUBLISHED, [failed]) == PUBLISHED
    assert engines.merged([failed], [replace(failed, torch=1)])[0].torch == 1


def test_the_page_has_the_table() -> None:
    page = engines.README.read_text(encoding="utf-8")
    assert with_content(page, {"engines": engines.shown(PUBLISHED)}) == page


@pytest.mark.slow
def test_an_engine_times_its_cases_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    cases = {name: asdict(case.for_cpu()) for name, case in CASES.items()}
    engines.work({"engine": "torch", "model": "tiny", "device": "cpu", "repeat": 2, "cases": cases})
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in found] == list(CASES)
    assert all(line["tokens_per_s"] > 0 for line in found)


@pytest.mark.nightly(reason="three processes import torch, which takes most of its time; its parts are tested above")
def test_it_measures_on_the_cpu(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = tmp_path / "table.toml"
    options: dict[str, Any] = {"shape": None, "repeat": 1, "limit": 300, "write_docs": False, "worker": None}
    engines.main(case=["few"], device="cpu", output=output, **options)
    [row] = [row for row in read_speeds(output) if row.gpu == "CPU"]
    assert (row.sizes[1:], row.vllm) == ((2, 4, 32), None)
    assert row.torch
    assert row.torch > 0
    out = capfd.readouterr().out
    assert "10M, vllm: no number for few: vLLM is not installed" in out
    assert "| 9.9M, 2 × (4 + 32) tokens on CPU |" in out
