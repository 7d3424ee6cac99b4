"""What a model is, to the plan: every parameter counted, as the code counts, without a download where it can be."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.trainer.advisor.planned import COMMON, HALF_B, PUBLISHED, SPECS
from tests.trainer.configurations import call
from tests.trainer.models.test_files import empty_snapshot
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.models.hub import find_spec, refuse_unreachable
from tinyzero_trainer.models.spec import well_known

ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON),
    "llama, grouped, tied": LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True),
    "llama, biases": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama, wide heads": LlamaConfig(**COMMON, head_dim=32, num_key_value_heads=1),
    "mistral": MistralConfig(**COMMON, num_key_value_heads=2),
    "qwen2": Qwen2Config(**COMMON, num_key_value_heads=2),
    "qwen2, tied": Qwen2Config(**COMMON, num_key_value_heads=4, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=32),
    "qwen3, biases, tied": Qwen3Config(
        **COMMON, num_key_value_heads=2, head_dim=16, attention_bias=True, tie_word_embeddings=True
    ),
    "gpt2": GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_parameters_are_counted_exactly(name: str, tmp_path: Path) -> None:
    config = ARCHITECTURES[name]
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    spec = find_spec(str(tmp_path))
    assert spec.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert spec.tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    assert (spec.hidden, spec.layers, spec.vocabulary) == (64, config.num_hidden_layers, 100)
    if name != "gpt2":
        attention = model.model.layers[0].self_attn
        assert (spec.attention, spec.kv) == (attention.q_proj.out_features, attention.k_proj.out_features)


def test_well_known_models_need_no_download() -> None:
    assert {name: SPECS[name].parameters for name in PUBLISHED} == PUBLISHED
    assert well_known("Qwen/Qwen2.5-0.5B-Instruct") == replace(SPECS[HALF_B], name="Qwen/Qwen2.5-0.5B-Instruct")
    assert well_known("Qwen/Qwen2.5-Math-7B") == replace(SPECS["Qwen/Qwen2.5-7B"], name="Qwen/Qwen2.5-Math-7B")
    assert well_known("Qwen/Qwen2.5-0.5B-Something") is None


def test_the_tiny_model_and_a_directory(toy_model: Any, toy_model_path: Path) -> None:
    assert find_spec(None) == find_spec("tiny")
    assert find_spec(None).parameters == 653_824
    assert find_spec(str(toy_model_path)).parameters == toy_model.parameters


def test_the_hubs_cache_is_read_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    ARCHITECTURES["qwen2"].save_pretrained(empty_snapshot(tmp_path))
    assert find_spec("org/name", download=False).hidden == 64
    with pytest.raises(SettingsError, match="org/other is not in the Hub's cache"):
        find_spec("org/other", download=False)


LLAMA = {key: value for key, value in LlamaConfig(**COMMON).to_dict().items() if key != "is_encoder_decoder"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is '0', expected a whole number"),
        ({"vocab_size": 10**400}, "vocab_size is '1000"),
        ({"hidden_size": 2, "head_dim": None}, "head_dim is '0'"),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "'t5' is no causal LM",
        ),
        ({"model_type": "vit"}, "'vit' is no causal LM that transformers knows"),
        ({"model_type": "nobody-knows"}, "nobody-knows"),
        (
            {"model_type": "gemma3"},
            "'gemma3' is multimodal, and only text models are trained; give a text model, such as one of",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "is quantised (fp8), which cannot be trained"),
        ({"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, which predicts no next token"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}, "it brings code of its own in auto_map"),
    ],
)
def test_each_fault_is_one_line(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    content = {**LLAMA, **changes}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(SettingsError) as caught:
        find_spec(str(tmp_path))
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert len(message) < 350 + len(str(tmp_path))


def test_a_file_that_is_missing_or_has_a_number_without_end_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not describe a language model"):
        find_spec(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA).replace('"vocab_size": 100', '"vocab_size": 1e400'))
    with pytest.raises(SettingsError, match="vocab_size is 'inf'"):
        find_spec(str(tmp_path))


@given(st.dictionaries(st.sampled_from(sorted(LLAMA)), st.none() | st.booleans() | st.integers() | st.floats()))
def test_a_shape_has_sizes_or_is_refused(changes: dict[str, Any]) -> None:
    with TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps({**LLAMA, **changes, "model_type": "llama"}))
        try:
            spec = find_spec(directory)
        except SettingsError:
            return
    assert min(spec.parameters, spec.hidden, spec.layers, spec.heads, spec.kv_heads, spec.head_size) > 0


@pytest.mark.parametrize("left_out", ["num_key_value_heads", "head_dim", "intermediate_size"])
@pytest.mark.parametrize("kind", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_what_is_left_out_is_what_transformers_takes(kind: Any, left_out: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 32, "vocab_size": 50}
    given = {**sizes, "intermediate_size": 96, "num_key_value_heads": 16, "head_dim": 16, "tie_word_embeddings": True}
    del given[left_out]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind.model_type, **given}))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind(**given))
    assert find_spec(str(tmp_path)).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    """Makes the Hub a server of this machine, at a port, with an empty cache."""

    def at(port: int) -> None:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", (endpoint := f"http://127.0.0.1:{port}"))
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{")[2]
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{endpoint}/{{{template}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")

    return at


def test_a_name_that_is_nowhere_is_refused_quickly(
    hub: Callable[[int], None], toy_task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub(9)
    with pytest.raises(SettingsError, match=r"'org/other': .* http.* cannot be reached") as caught:
        find_spec("org/other")
    assert "\n" not in str(caught.value)
    for command, more in {"train": ("--output", str(tmp_path)), "sft": ("--output", str(tmp_path)), "eval": ()}.items():
        code, _, error = call(capsys, command, "--task", toy_task, "--model", "other", "run.device=cpu", *more)
        assert (code, error.count("\n")) == (2, 1)  # and not a word of loading
        assert "cannot find the model 'other': there is no such directory, and http://127.0.0.1:9 cannot be" in error


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (
            404,
            "RepoNotFound",
            "has none of that name, or a private one that needs HF_TOKEN; give --mod",
        ),
        (403, "GatedRepo", "asks to accept its terms at http://127.0.0.1:"),
        (503, "", None),  # transformers says more
    ],
)
def test_what_the_hub_answers_is_told(
    status: int, code: str, reason: str | None, hub: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hub(server.server_port)
        expected = pytest.raises(SettingsError, match=reason) if reason else nullcontext()
        with expected:
            refuse_unreachable("org/other")
        server.shutdown()
