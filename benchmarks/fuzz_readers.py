"""Whether damaged and hostile files of every kind are read or refused with a message, in bounded memory and time.

    python benchmarks/fuzz_readers.py [--count 100000] [--seed 0] [--only NAME]

Each trial damages one file of a real input (bits, cuts, splices, huge numbers, deep nesting, other encodings, repeated
keys, values of other types) and reads it with the code of the commands. Anything but a result, a TinyZeroError or an
OSError is unexpected, and so is a trial that takes over `HANGS` seconds of the CPU, needs more than `MEMORY_GIB` of
additional address space, or ends its process.
"""

import contextlib
import gzip
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.common import print_machine, print_table
from benchmarks.table_mutants import write_mutant
from tests.dummy_runs import write_run
from tests.environments import ROOT
from tinyzero_inspect.reader import _content as entry_content
from tinyzero_sdk import load_task
from tinyzero_sdk.data.file_task import load_file_tasks
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import ScoreColumns
from tinyzero_sdk.report.completions import read_completions
from tinyzero_sdk.report.page import report as make_page
from tinyzero_sdk.report.runs import open_run
from tinyzero_sdk.scoring import score_file as score_module
from tinyzero_sdk.scoring.compare import compare_files
from tinyzero_sdk.scoring.outputs import OutputBatch, read_outputs
from tinyzero_sdk.scoring.provenance import accept_any
from tinyzero_sdk.scoring.readers import load_reader
from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import ClosesOnExit

HANGS, MEMORY_GIB = 30.0, 2
EXPORTS = {"lm_eval": ROOT / "tests/sdk/scoring/readers", "inspect_ai": ROOT / "tests/plugins/inspect"}

ODD: list[Any] = [None, True, False, -1, 0, 7, 0.5, 1e308, float("nan"), 2**63, 10**400, "", "x", "\ud800", "\0"]
ODD += [[], {}, [[]], [None], {"x": 1}, {"role": "user", "content": 3}, [{"role": "user", "content": "hi"}], "9" * 5000]
TEXTS = [b"\0" * 8, b"9" * 5000, b"1e999", b"NaN", b"-", b"[" * 100_000, b'{"a":' * 100_000, b"a." * 20_000, b"\\ud800"]
TEXTS += [
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b'"',
    b"'''",
    b"\x80",
    b"{",
    b"}",
    b"\n\n",
    b"=",
    b"\xff" * 8,
    b"%s" * 50,
]


def damaged(content: bytes, dice: random.Random) -> bytes:
    """The same bytes with one to three kinds of damage."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        start, end = sorted(dice.randrange(len(content) + 1) for _ in range(2))
        act = dice.randrange(8)
        if act == 0 and content:
            changed = bytearray(content)
            for _ in range(dice.choice((1, 1, 8))):
                changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
            content = bytes(changed)
        elif act == 1:
            content = content[:start]
        elif act == 2:
            content = content[:start] + content[min(end, start + 64) :]
        elif act == 3:
            content = content[:start] + content[end:] + content[start : start + 1000]
        elif act == 4:
            content = content[:start] + dice.choice(TEXTS) + content[start:]
        elif act == 5:
            content = content[:start] + dice.randbytes(8) + content[start + 8 :]
        elif act == 6:
            numbers = list(re.finditer(rb"-?\d+(\.\d+)?|true|false|null", content))[:5000]
            if numbers:
                found = dice.choice(numbers)
                new = dice.choice([*TEXTS, b"true", b'"x"', b"-1", b"1e400", b"[]", b"{}", b"null"])
                content = content[: found.start()] + new + content[found.end() :]
        elif dice.random() < 0.2:
            content = content.decode("latin-1").encode(dice.choice(("utf-16", "utf-32", "utf-8")))
    return content


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(inner)


def swapped(content: bytes, dice: random.Random) -> bytes:
    """JSON with a key removed, repeated or of another value."""
    value = json.loads(content)
    for _ in range(dice.choice((1, 1, 2))):
        if not (found := list(places(value))):
            break
        container, key = dice.choice(found)
        if dice.random() < 0.2:
            del container[key]
        else:
            other, at = dice.choice(found)
            container[key] = json.loads(json.dumps(dice.choice([*ODD, other[at], [container[key]]])))
    text = json.dumps(value)
    return (text.replace("{", '{"step": 1, "score": 2, ', 1) if dice.random() < 0.1 else text).encode()


def swapped_columns(path: Path, dice: random.Random) -> None:
    """A Parquet file with a column of another type, without one, or with nulls."""
    table = pq.read_table(path)
    place = dice.randrange(table.num_columns)
    name = table.column_names[place]
    column = [dice.choice([None, *ODD[1:3]]) for _ in range(len(table))]
    kinds: list[Callable[[], Any]] = [
        lambda: pa.nulls(len(table)),
        lambda: pa.array(column, pa.bool_()),
        lambda: pa.array([dice.choice([float("nan"), 1e308, -1.0, None]) for _ in column]),
        lambda: pa.array([dice.choice(["", "x", "\0", "{}", "9" * 5000]) for _ in column]),
        lambda: pa.array([b"\xff\xfe"] * len(table)),
        lambda: pa.array([[1, 2]] * len(table)),
        lambda: pa.array([{"x": 1}] * len(table)),
        lambda: pa.array([2**63 - 1] * len(table)),
        lambda: pa.array([dice.randrange(2**40) for _ in column], pa.timestamp("us")),
        lambda: pa.array([{"a": None}] * len(table), pa.struct([("a", pa.null())])),
    ]
    act = dice.randrange(len(kinds) + 2)
    if act == len(kinds):
        table = table.drop_columns([name])
    elif act > len(kinds):
        table = table.slice(0, dice.randrange(2))
    else:
        table = table.set_column(place, name, kinds[act]())
    pq.write_table(table, path)


def damage(path: Path, dice: random.Random) -> None:
    """Damage a file; half of the time in the structure that its name promises."""
    content = path.read_bytes()
    inside = dice.random() < 0.5
    if inside and path.suffix in (".parquet", ".arrow"):
        if path.suffix == ".arrow" or dice.random() < 0.8:
            write_mutant(path, dice)
        else:
            swapped_columns(path, dice)
        return
    if inside and path.suffix == ".json":
        content = swapped(content, dice)
    elif inside and path.suffix == ".jsonl":
        lines = content.splitlines()
        place = dice.randrange(len(lines))
        lines[place] = swapped(lines[place], dice)
        content = b"\n".join(lines)
    elif inside and path.suffix == ".gz":
        content = gzip.compress(damaged(gzip.decompress(content), dice))
    elif inside and path.suffix == ".eval":
        aside = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(aside, "w") as new, path.open("rb") as file:
            chosen = dice.choice([entry.filename for entry in old.infolist()])
            for entry in old.infolist():
                text = entry_content(file, old, entry)
                act = swapped if dice.random() < 0.7 and entry.filename.endswith(".json") else damaged
                new.writestr(entry.filename, act(text, dice) if entry.filename == chosen else text)
        content = aside.getvalue()
    elif inside and path.suffix == ".safetensors":
        size = int.from_bytes(content[:8], "little")
        header = swapped(content[8 : 8 + size], dice)
        content = len(header).to_bytes(8, "little") + header + content[8 + size :]
    else:
        content = damaged(content, dice)
    path.write_bytes(content)


@dataclass(frozen=True)
class Reader:
    make: Callable[[Path], object]
    """Writes a sound input into a directory."""

    read: Callable[[Path], object]
    files: str = "*"
    """Which files of it are damaged."""

    weight: int = 1
    """Share of the trials."""


SCORED = {"score": 1.0, "correct": True, "reason": "ok", "answer": "3", "task": "countdown", "task_version": "1"}


def scored_rows(count: int = 12) -> list[dict[str, Any]]:
    problems: list[dict[str, Any]] = [{"numbers": [1 + place, 2], "target": 3 + place} for place in range(count)]
    return [
        {
            "prompt": f"Make {truth['target']} of {truth['numbers']}",
            "completion": f"<answer>{truth['numbers'][0]} + 2</answer>",
            "ground_truth": truth,
            "extra_info": {"split": "train", "key": str(place), "difficulty": 2.0},
            "data_source": "countdown",
            "parts": {"task": 1.0, "format": 0.1},
            "num_tokens": 9,
            "finished": True,
            **SCORED,
        }
        for place, truth in enumerate(problems)
    ]


def write_rows(directory: Path, *endings: str) -> None:
    rows = scored_rows()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if ".jsonl" in endings:
        (directory / "rows.jsonl").write_text(text)
    if ".gz" in endings:
        (directory / "rows.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    if ".csv" in endings:
        lines = [json.dumps(row["ground_truth"]).replace('"', '""') for row in rows]
        (directory / "rows.csv").write_text("completion,ground_truth,score\n" + "".join(f'a,"{x}",1\n' for x in lines))
    if ".parquet" in endings:
        pq.write_table(pa.Table.from_pylist(rows), directory / "rows.parquet")
    if ".arrow" in endings:
        write_stream(pa.Table.from_pylist(rows), directory / "rows.arrow")


def read_format(name: str) -> Callable[[Path], object]:
    def read(directory: Path) -> object:
        files = [directory] if name == "hf" else [one for one in directory.iterdir() if one.is_file()]
        for path in files:
            for batch in read_outputs(load_reader(name).read(path), path, accept_any):
                batch.pack(0, len(batch))
        return None

    return read


_TASKS: dict[str, Task] = {}


def countdown() -> dict[str, Task]:
    if not _TASKS:
        _TASKS["countdown"] = load_task("countdown")
    return _TASKS


def read_data(directory: Path) -> None:
    for path in [directory] if [*directory.glob("*.arrow")] else directory.iterdir():
        tasks = load_file_tasks(countdown(), str(path), test_fraction=0.3)
        for item in tasks["countdown"].dataset("train", 4):
            tasks["countdown"].make_prompt(item)
            tasks["countdown"].difficulty(item)


def read_examples(directory: Path) -> None:
    from tinyzero_trainer.config.sft import compose_sft
    from tinyzero_trainer.sft.file_examples import ExampleFile

    for path in directory.iterdir():
        config = compose_sft({"data": {"path": str(path)}, "tasks": {"countdown": {"task": "countdown"}}})
        examples = ExampleFile(str(path), config, countdown())
        examples.read(examples.places[:4], "base")


def write_examples(directory: Path) -> None:
    chat = [{"role": "user", "content": "1 + 2"}, {"role": "assistant", "content": "3"}]
    rows = [{"messages": chat}, {"prompt": "1 + 3", "completion": "4"}, *scored_rows(4)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_own_run(directory: Path) -> None:
    write_run(directory / "run", steps=4, completions=40)
    (directory / "run/checkpoints").mkdir()


def read_run(directory: Path) -> None:
    from tinyzero_trainer.cli.runs import runs
    from tinyzero_trainer.monitoring.metrics_log import read_metrics

    run = directory / "run"
    make_page([open_run(run, "run")], most=20)
    runs([run])
    runs([run], json=True)
    read_metrics(run / "metrics.jsonl")
    compare_files([run, run])


def read_scored(directory: Path) -> None:
    (path,) = directory.iterdir()
    make_page([open_run(path, "scored")], most=20)
    compare_files([path, path])


def read_viewed(directory: Path) -> None:
    """As `tinyzero view` searches and shows completions."""
    found = read_completions(sorted(directory.iterdir()))
    if len(indices := np.sort(found.select({"text": "<ANSWER>", "sort": "answer"}))):
        found.texts_at(indices)
    found.texts(found.ids(np.arange(len(found)))[::5])


class NoPool(ClosesOnExit):
    """In place of a pool of workers: no completion has an answer."""

    first_error = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        pass

    def stream(self, batches: Iterator[OutputBatch]) -> Iterator[tuple[OutputBatch, ScoreColumns]]:
        for batch in batches:
            n = len(batch.pack(0, len(batch)).completions())
            yield batch, ScoreColumns([0.0] * n, [False] * n, ["no_answer"] * n, [None] * n)


def score_whole(directory: Path) -> None:
    """As `tinyzero score` does, but for the scorer, into a file of either kind."""
    (source,) = directory.iterdir()
    task, options = countdown()["countdown"], ScoringOptions(allow_version_mismatch=True)
    with patch.object(score_module, "ScoringPool", NoPool), tempfile.TemporaryDirectory() as output:
        for ending in (".parquet", ".jsonl"):
            score_file(task, source, Path(output, f"scored{ending}"), options)


def write_config(directory: Path) -> None:
    own = '[run]\nsteps = 20\nseed = 1\noutput = "o"\n[tasks.countdown]\ntask = "countdown"\nweight = 1.0\n'
    own += '[tasks.countdown.options]\nnumbers = [3, 4]\n[model]\npath = "m"\n[data]\nprompts_per_step = 8\n'
    own += "[rollout]\ntemperature = 0.7\ngroup_size = 4\n[optimizer]\nlearning_rate = 1e-6\n"
    (directory / "config.toml").write_text(own)


def read_config(directory: Path) -> None:
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import gather, make_config

    make_config(gather(TrainConfig, {}, [], directory / "config.toml"))


def write_checkpoint(directory: Path) -> None:
    from tinyzero_trainer.checkpoint import store
    from tinyzero_trainer.config.compose import make_config
    from tinyzero_trainer.config.resume import fingerprint
    from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
    from tinyzero_trainer.controller.state import TrainerState
    from tinyzero_trainer.data.prompts import StreamState

    def fill(path: Path) -> None:
        (path / STATE_DIRECTORY).mkdir()
        TrainerState(3, None, progress={"countdown": StreamState(8, 0, 8, (8,))}).save(path / STATE_DIRECTORY)

    (directory / "checkpoints").mkdir()
    config = make_config({"run": {"task": "countdown"}})
    store.save(directory / "checkpoints", 3, fill, meta={"config": fingerprint(config), "tasks": {}})


def read_checkpoint(directory: Path) -> None:
    from tinyzero_trainer.checkpoint.run_directory import RunDirectory
    from tinyzero_trainer.config.compose import make_config
    from tinyzero_trainer.controller.checkpointer import newest_checkpoint

    newest_checkpoint(make_config({"run": {"task": "countdown"}}), RunDirectory(directory))


def write_model(directory: Path) -> None:
    for path in (ROOT / "trainer/tinyzero_trainer/tiny_model").iterdir():
        shutil.copy(path, directory)
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


def inspect_model(directory: Path) -> None:
    """As `plan`, `doctor` and a run's beginning read it, without its weights."""
    from tinyzero_trainer.models.files import find_model, hub_cache
    from tinyzero_trainer.models.hub import find_spec

    model = find_model(str(directory), directory, hub_cache())
    assert model.fault is None or str(model.fault)
    find_spec(str(directory))


def load_whole_model(directory: Path) -> None:
    import torch

    from tinyzero_trainer.data.tokenization import encode_prompt, end_token
    from tinyzero_trainer.models.loading import load_model

    model = load_model(str(directory), torch.device("cpu"))
    encode_prompt(model.tokenizer, [{"role": "user", "content": "1 + 2"}])
    end_token(model.tokenizer, model.eos_ids, chat=True)


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


def write_arrow(directory: Path) -> None:
    table = pa.Table.from_pylist([{"completion": "<answer>3</answer>", "answer": "3"}] * 9)
    write_stream(table, directory / "data-00000-of-00001.arrow")


def write_verl(directory: Path) -> None:
    rows = [{"input": "a", "output": "<answer>3</answer>", "gts": '{"target": 3}', "score": 1.0, "step": 1}] * 9
    (directory / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def copied(name: str) -> Callable[[Path], object]:
    return lambda directory: shutil.copy(EXPORTS[name.partition("-")[0]] / name, directory / name)


CASES = {
    "JSON Lines": Reader(lambda at: write_rows(at, ".jsonl"), read_format("rows"), weight=3),
    "JSON Lines, compressed": Reader(lambda at: write_rows(at, ".gz"), read_format("rows"), weight=2),
    "CSV": Reader(lambda at: write_rows(at, ".csv"), read_format("rows"), weight=2),
    "Parquet": Reader(lambda at: write_rows(at, ".parquet"), read_format("rows"), weight=3),
    "--format verl": Reader(write_verl, read_format("verl"), weight=2),
    "--format lm-eval": Reader(copied("lm_eval-0.4.13.jsonl"), read_format("lm-eval"), weight=2),
    "--format inspect, .json": Reader(copied("inspect_ai-0.3.285.json"), read_format("inspect"), weight=2),
    "--format inspect, .eval": Reader(copied("inspect_ai-0.3.285.eval"), read_format("inspect"), weight=2),
    "--format hf": Reader(write_arrow, read_format("hf"), weight=2),
    "data.path, JSON Lines": Reader(lambda at: write_rows(at, ".jsonl"), read_data, weight=2),
    "data.path, Parquet": Reader(lambda at: write_rows(at, ".parquet"), read_data, weight=2),
    "data.path, Arrow": Reader(lambda at: write_rows(at, ".arrow"), read_data),
    "examples of sft": Reader(write_examples, read_examples),
    "examples of sft, Parquet": Reader(lambda at: write_rows(at, ".parquet"), read_examples),
    "score, JSON Lines": Reader(lambda at: write_rows(at, ".jsonl"), score_whole),
    "score, Parquet": Reader(lambda at: write_rows(at, ".parquet"), score_whole, weight=4),
    "view, Parquet": Reader(lambda at: write_rows(at, ".parquet"), read_viewed, weight=2),
    "scored JSON Lines": Reader(lambda at: write_rows(at, ".jsonl"), read_scored),
    "scored Parquet": Reader(lambda at: write_rows(at, ".parquet"), read_scored),
    "run directory": Reader(write_own_run, read_run, files="run/**/*.*"),
    "configuration": Reader(write_config, read_config, weight=2),
    "checkpoint": Reader(write_checkpoint, read_checkpoint, files="checkpoints/**/*.json", weight=2),
    "model, its headers": Reader(write_model, inspect_model, files="*.*", weight=1),
    "model, loaded": Reader(write_model, load_whole_model, files="*.*"),
}


def attempt(case: Reader, original: Path, work: Path, seed: str) -> str | None:
    """Damage a copy and read it; returns what is unexpected, "refused", or None if it was read."""
    dice = random.Random(seed)
    files = sorted(path for path in original.glob(case.files) if path.is_file())
    chosen = dice.choice(files).relative_to(original)
    damage(work / chosen, dice)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            case.read(work)
    except (TinyZeroError, OSError) as error:
        return "refused" if str(error) else "no message"
    except BaseException as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "tinyzero_" in one.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} in {where}: {' '.join(str(error).split())[:120]}"
    finally:
        shutil.copy(original / chosen, work / chosen)
    return None


def serve(name: str, seeds: list[str], answers: Connection) -> None:
    """Make trials in this process and send what comes of each: its number, the outcome, and the peak memory in MB."""
    case = CASES[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as directory:
        original, work = Path(directory, "original"), Path(directory, "work")
        original.mkdir()
        case.make(original)
        shutil.copytree(original, work)
        case.read(work)  # what it imports is no memory of a damaged file
        status = Path("/proc/self/status").read_text()
        space = int(re.search(r"VmSize:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_AS, (space + MEMORY_GIB * 2**30,) * 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number, seed in enumerate(seeds):
            started = time.perf_counter()
            outcome = attempt(case, original, work, f"{name} {seed}")
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            answers.send((number, outcome, time.perf_counter() - started, peak))
    answers.send(None)


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    unexpected: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0
    peak: float = 0.0

    def add(self, outcome: str | None, seed: str) -> None:
        kind = "right" if outcome is None else outcome if outcome == "refused" else "unexpected"
        self.counts[kind] += 1
        if kind == "unexpected":
            self.unexpected.setdefault(str(outcome), seed)


def comes(answers: Connection, process: int | None, seconds: float) -> bool:
    """Whether there is an answer before the process has had so much of the CPU, or ten times as long has passed."""

    def used() -> float:
        return float(sum(psutil.Process(process).cpu_times()[:4]))

    started = used()
    for _ in range(10):
        if answers.poll(seconds):
            return True
        if used() - started > 0.9 * seconds:
            break
    return False


def run_case(name: str, seeds: list[str]) -> Tally:
    """All trials of a reader, in processes of their own: one that dies or hangs costs one trial."""
    tally, context = Tally(), multiprocessing.get_context("spawn")
    while seeds:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=serve, args=(name, seeds, theirs))
        process.start()
        theirs.close()
        done = 0
        try:
            while comes(ours, process.pid, HANGS if done else 120):
                if (answer := ours.recv()) is None:
                    done = len(seeds)
                    break
                number, outcome, seconds, peak = answer
                done = number + 1
                tally.add(outcome, seeds[number])
                tally.slowest, tally.peak = max(tally.slowest, seconds), max(tally.peak, peak)
            else:
                tally.add("hangs", seeds[done])
                done += 1
        except EOFError:
            process.join()
            assert done or tally.counts, f"{name}: the sound input cannot be read"
            tally.add(f"ends its process with {process.exitcode}", seeds[done])
            done += 1
        process.kill()
        process.join()
        seeds = seeds[done:]
    return tally


def main(
    count: Annotated[int, typer.Option(help="damaged files, of all readers together")] = 100_000,
    seed: Annotated[int, typer.Option(help="of the damage")] = 0,
    only: Annotated[str | None, typer.Option(help="one reader")] = None,
) -> None:
    """Damage files of every reader, and print what came of them; exits with 1 if anything was unexpected."""
    print_machine("pyarrow", "safetensors", "transformers")
    chosen = {name: case for name, case in CASES.items() if only in (None, name)}
    total = sum(case.weight for case in chosen.values())
    rows, faults = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    for name, case in chosen.items():
        tally = run_case(name, [f"{seed}.{place}" for place in range(-(-count * case.weight // total))])
        rows[name] = {"files": f"{tally.counts.total():,}"}
        rows[name] |= {kind: f"{tally.counts[kind]:,}" for kind in ("right", "refused", "unexpected")}
        rows[name] |= {"slowest": f"{tally.slowest:.2f} s", "memory": f"{tally.peak:.0f} MB"}
        faults[name] = tally.unexpected
        for what, where in tally.unexpected.items():
            print(f"{name}, seed {where}: {what}", flush=True)
    print_table("reader", rows)
    raise typer.Exit(int(any(faults.values())))


if __name__ == "__main__":
    typer.run(main)
