"""A model's files: how large it is, and what the doctor and loading say where they are broken or do not go together."""

import json
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.trainer.conftest import random_model
from tests.trainer.doctor.machines import facts_of
from tinyzero_sdk.progress import Progress
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Requirements
from tinyzero_trainer.errors import Fault
from tinyzero_trainer.models import files as model_files
from tinyzero_trainer.models.files import Model, cached_snapshot, find_model, start_loading
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.loading import ModelError, load_model

CPU = torch.device("cpu")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 99\n"


def empty_snapshot(cache: Path) -> Path:
    """Where the Hub's cache keeps the version of org/name that is current."""
    snapshot = cache / "models--org--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text("abc")
    return snapshot


class Hub(BaseHTTPRequestHandler):
    """Answers for one repository, as the Hugging Face Hub does."""

    files: ClassVar[dict[str, bytes]]

    def do_GET(self) -> None:
        body = self.files.get(self.path.rpartition("/")[2], b"")
        if "/tree/" in self.path:
            listed = [
                {"type": "file", "path": name, "size": len(text), "oid": name} for name, text in self.files.items()
            ]
            body = json.dumps(listed).encode()
        elif self.path.startswith("/api/"):
            body = json.dumps({"id": "org/name", "sha": "a" * 40}).encode()
        self.send_response(200)
        for name, value in (("Content-Length", len(body)), ("ETag", f'"{len(body)}"'), ("X-Repo-Commit", "a" * 40)):
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *values: object) -> None:
        pass


@pytest.mark.slow
def test_a_download_counts_its_bytes_and_takes_only_what_is_loaded(
    toy_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub.files = {path.name: path.read_bytes() for path in toy_model_path.iterdir()}
    wanted, size = set(Hub.files), pytest.approx(sum(map(len, Hub.files.values())) / 1e6)
    Hub.files |= {"pytorch_model.bin": b"the same again", "consolidated.safetensors": b"and again"}
    phases = list[list[object]]()

    class Seen(Progress):
        def phase(self, name: str, total: float | None = None, unit: str = "", done: float = 0) -> None:
            phases.append([name, total, done])

        def update(self, done: float, name: str | None = None) -> None:
            phases[-1][2] = done

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{endpoint}/{{repo_id}}/resolve/a/{{filename}}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        Thread(target=server.serve_forever, daemon=True).start()
        start_loading("org/name", Seen())
        server.shutdown()
    downloading, loading = "downloading org/name from the Hugging Face Hub", ["loading the model", None, 0]
    assert phases == [[downloading, None, 0], [downloading, size, size], loading]
    snapshot = cached_snapshot("org/name", tmp_path)
    assert snapshot is not None
    assert {path.name for path in snapshot.iterdir()} == wanted
    phases.clear()
    for here in ("org/name", None, "tiny", str(toy_model_path)):
        start_loading(here, Seen())
    assert phases == 4 * [loading]


def test_a_models_size_is_read_from_its_headers(toy_model_path: Path, tmp_path: Path) -> None:
    held = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(toy_model_path).parameters())
    shape = replace(find_spec(str(toy_model_path)), name="m")
    assert find_model("m", toy_model_path, tmp_path) == Model("m", True, held, shape=shape)
    snapshot = empty_snapshot(tmp_path)
    toy_model_path.rename(snapshot)
    assert find_model("m", Path("org/name"), tmp_path) == Model("m", False, held, shape=shape)
    (snapshot / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0[1, 2]  ")
    broken = find_model("m", Path("org/name"), tmp_path)
    assert broken.parameters is None
    assert broken.fault.commands == ("hf download org/name --force-download",)
    seven = find_model("Qwen/Qwen2.5-7B", Path("Qwen/Qwen2.5-7B"), tmp_path)
    assert (seven.parameters, seven.size) == (None, 7_615_616_512)
    assert find_model("nobody/nothing", Path("nobody/nothing"), tmp_path).size is None


def test_what_is_missing_in_the_cache_will_be_downloaded(toy_model_path: Path, tmp_path: Path) -> None:
    snapshot = empty_snapshot(tmp_path)
    split_in_two(toy_model_path)
    toy_model_path.rename(snapshot)
    (snapshot / "model-2.safetensors").unlink()
    assert find_model("m", Path("org/name"), tmp_path) == Model("m", False, None)
    (snapshot / model_files.INDEX).write_text("{")
    assert find_model("m", Path("org/name"), tmp_path).fault is not None


def test_weights_in_several_files(toy_model_path: Path, tmp_path: Path) -> None:
    whole = find_model("m", toy_model_path, tmp_path)
    split_in_two(toy_model_path)
    (toy_model_path / "consolidated.safetensors").write_text("what transformers does not load")
    assert find_model("m", toy_model_path, tmp_path) == whole


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def split_in_two(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = {name: f"model-{1 + index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(names.values()):
        held = {name: tensors[name] for name in tensors if names[name] == file}
        save_file(held, directory / file, {"format": "pt"})
    (directory / model_files.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def find_fault(directory: Path) -> Fault | None:
    return find_model("m", directory, directory).fault


def cut(file: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size]) and None


def put(file: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(text) and None


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def lose_a_part(folder: Path) -> None:
    split_in_two(folder)
    (folder / "model-2.safetensors").unlink()


def lose_the_index(folder: Path) -> None:
    split_in_two(folder)
    (folder / model_files.INDEX).write_text("{oops")


BROKEN = {
    "cut off": (cut("model.safetensors", -50), "model.safetensors is cut off, or", "hf download"),
    "another file": (put("model.safetensors", "<!DOCTYPE html>"), "is no safetensors file", "hf download"),
    "pointer": (put("model.safetensors", POINTER), "model.safetensors is a pointer of Git LFS", "lfs pull"),
    "pointer of a tokenizer": (put("tokenizer.json", POINTER), "tokenizer.json is a pointer of Git LFS", "lfs pull"),
    "a tokenizer that is no JSON": (put("tokenizer.json", "{oops"), "tokenizer.json is not valid JSON", "hf download"),
    "a part that is missing": (lose_a_part, "model-2.safetensors is missing", "hf download"),
    "an index that is no JSON": (lose_the_index, "index.json is not valid JSON", "hf download"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no safetensors", ""),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing", "hf download"),
    "config that is no object": (put("config.json", "[]"), "config.json holds no JSON object", "hf download"),
    "config without a kind": (put("config.json", "{}"), "config.json names no model_type", "hf download"),
    "a word for a size": (configured(hidden_size="x"), "config.json has impossible sizes", "hf download"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_a_line_of_train_and_a_finding(name: str, toy_model_path: Path, tmp_path: Path) -> None:
    breaks, message, command = BROKEN[name]
    breaks(toy_model_path)
    with pytest.raises(ModelError) as refused:
        load_model(str(toy_model_path), CPU)
    line = str(refused.value)
    assert message in line
    assert "\n" not in line
    facts = facts_of(model=find_model("m", toy_model_path, tmp_path))
    [finding] = [finding for finding in examine(facts, Requirements()) if finding.check == "model"]
    assert finding.level == "error"
    assert f"{finding.what}; {finding.do}" in line
    assert not command or any(command in one for one in finding.commands)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_whole_models_have_no_fault(kind: str, tied: bool, tmp_path: Path) -> None:
    model = random_model(kind)
    config = type(model.config)(**model.config.to_dict() | {"tie_word_embeddings": tied})
    type(model)(config).save_pretrained(tmp_path)
    assert find_fault(tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 300, "pad_token_id": None}, "embed_tokens.weight is of (1252, 32) and not of (300, 32)"),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, "is missing, and "),
    ],
)
def test_weights_that_do_not_fit_the_config_are_named(
    changes: dict[str, object], message: str, toy_model_path: Path
) -> None:
    configured(**changes)(toy_model_path)
    with pytest.raises(ModelError, match=r"its weights do not fit its config\.json") as refused:
        load_model(str(toy_model_path), CPU)
    assert message in str(refused.value)


def test_a_path_is_quoted_where_it_is_to_be_typed(toy_model_path: Path) -> None:
    folder = toy_model_path.rename(toy_model_path.with_name("my model"))
    (folder / "model.safetensors").write_text(POINTER)
    fault = find_fault(folder)
    assert fault.commands == (f"git -C '{folder}' lfs pull",)
