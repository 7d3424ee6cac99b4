"""A model of a few thousand parameters, and a task for tests."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from filelock import FileLock
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from tests.trainer.configurations import typed
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.checkpoint import store as checkpoint
from tinyzero_trainer.checkpoint.run_directory import newest_model
from tinyzero_trainer.config import NewModelConfig
from tinyzero_trainer.config import model_defaults as presets
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.sft import warm_start
from tinyzero_trainer.controller import ending, session
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.models import loading
from tinyzero_trainer.models.loading import LanguageModel, from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.monitoring.metrics_log import MetricsLog
from tinyzero_trainer.sft.train import fine_tune

torch.set_num_threads(1)  # the models are so small that a second thread only waits

TOY_TASK = Path(__file__).with_name("toy_task.py")
SHAPE = NewModelConfig(hidden_size=32, layers=2, head_size=16, mlp_size=48, context=256)


@pytest.fixture(autouse=True)
def _no_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, also on a machine that has one."""
    monkeypatch.setattr(nvml, "sees_gpu", lambda device: False)


@pytest.fixture
def float8_gpu() -> torch.device:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with float8")
    return torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _scored_in_process(scored_in_process: None) -> None:
    """Runs start no process, unless a test asks for `real_workers`."""


@pytest.fixture(autouse=True)
def _no_curve_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as a short run. Fixtures of a module or session still draw it, as any run does."""
    monkeypatch.setattr(ending, "plot_curve", lambda *args, **kwargs: None)


_tokenizers: dict[tuple[tuple[str, bytes], ...], PreTrainedTokenizerBase] = {}
_read_tokenizer = loading._read_tokenizer


@pytest.fixture(autouse=True)
def _a_tokenizer_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run would read it again, which takes as long as a step of it; nothing changes one after that."""

    def read(source: str) -> PreTrainedTokenizerBase:
        others = ("model.safetensors", "manifest.json", "tinyzero.toml", "used_by")
        files = sorted(path for path in Path(source).glob("*") if path.is_file() and path.name not in others)
        made_of = tuple((path.name, path.read_bytes()) for path in files)
        if not made_of:  # not a directory
            return _read_tokenizer(source)
        if made_of not in _tokenizers:
            _tokenizers[made_of] = _read_tokenizer(source)
        return _tokenizers[made_of]

    monkeypatch.setattr(loading, "_read_tokenizer", read)


def _pattern(name: str) -> str:
    """Matches the metrics that a name in docs/reference/metrics.md stands for."""
    text = re.sub(r"{(.*?)}", lambda found: f"({found[1].replace(', ', '|')})", name)
    return re.sub(r"TASK|PART|(?<=[/_@])K\b", "[^/]+", text)


PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
EXPLAINED = re.findall(r"^\| `(.*?)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
KNOWN = re.compile("|".join(map(_pattern, EXPLAINED)))


@pytest.fixture(autouse=True)
def _every_metric_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """What any test's run writes is in docs/reference/metrics.md."""

    class CheckedLog(MetricsLog):
        def append(self, step: int, metrics: Mapping[str, Any]) -> None:
            assert [name for name in metrics if not KNOWN.fullmatch(name)] == []
            super().append(step, metrics)

    monkeypatch.setattr(session, "MetricsLog", CheckedLog)


@pytest.fixture(scope="session")
def toy_task() -> str:
    return str(TOY_TASK)


@pytest.fixture
def mute_task(tmp_path: Path) -> str:
    """The same without demonstrations."""
    text = TOY_TASK.read_text()
    (tmp_path / "mute.py").write_text(text[: text.index("@hookimpl\ndef demonstrate")])
    return str(tmp_path / "mute.py")


@pytest.fixture
def toy_model() -> LanguageModel:
    """Random weights; equal in every test."""
    tokenizer = build_tokenizer()
    return from_parts("toy", build_model(SHAPE, tokenizer, seed=0), tokenizer)


@pytest.fixture
def toy_model_path(toy_model: LanguageModel, tmp_path: Path) -> Path:
    save_model(tmp_path / "model", toy_model)
    return tmp_path / "model"


def random_model(kind: str, vocab_size: int = 97) -> torch.nn.Module:
    """A Llama-like model with weights large enough that its attention is far from uniform."""
    common = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    torch.manual_seed(0)
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**common, tie_word_embeddings=True))
    elif kind == "sliding":  # a layer that sees four tokens, and one that sees all
        layers = ["sliding_attention", "full_attention"]
        model = Qwen2ForCausalLM(Qwen2Config(**common, use_sliding_window=True, sliding_window=4, layer_types=layers))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16))
    else:
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
        model = LlamaForCausalLM(LlamaConfig(**common, rope_parameters=rope, attention_bias=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(params=["qwen2", "qwen3", "llama"])
def any_model(request: pytest.FixtureRequest) -> torch.nn.Module:
    """Each architecture that the fused decoder runs: biased, normalised and plain projections, grouped heads."""
    return random_model(request.param)


@pytest.fixture(scope="session")
def warm_model(toy_task: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that adds one-digit numbers badly: a start from which runs can learn."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all workers: the first that needs the model trains it
    with FileLock(folder / "warm.lock"):
        if not (folder / "warm").is_dir():
            make_warm_model(toy_task, folder / "warm")
    return folder / "warm"


def make_warm_model(toy_task: str, output: Path) -> None:
    values = {
        "run": {"output": f"{output}.run", "device": "cpu", "steps": 150},
        "tasks": {"toy_task": {"task": toy_task, "options": {"limit": 5}}},
        "new_model": {"hidden_size": 32, "layers": 2, "head_size": 16, "mlp_size": 48, "context": 64},
        "data": {"batch_size": 32, "test_fraction": 0.4, "prompt_template": "base"},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 20},
        "rollout": {"max_completion_tokens": 8},
        "eval": {"num_problems": 8, "greedy": False},
        "settings": {"optimizer": {"learning_rate": 1e-3}},
    }
    fine_tune(warm_start(values))
    Path(newest_model(f"{output}.run")).rename(output)


@pytest.fixture
def built_in_preset(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The tiny model's defaults; empty unless a test adds some."""
    settings: dict = {}
    nothing: dict = {"settings": {}, "warmed_on": []}
    content = {"warmed_on": [{"task": "countdown", "options": {}}], "settings": settings}
    monkeypatch.setattr(presets, "_read", lambda model: content if model is None else nothing)
    return settings


@pytest.fixture
def saved_run(built_in_preset: dict, tmp_path: Path) -> Path:
    """A run directory with its configuration and a checkpoint."""
    directory = tmp_path / "run"
    config = make_config(typed("task.numbers=[3]", "run.steps=50", "data.prompt_template=compact", task="countdown"))
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "config.toml").write_text(tomli_w.dumps(to_mapping(config)))
    checkpoint.save(directory / "checkpoints", 10, lambda path: (path / "weights").touch(), meta={})
    return directory
