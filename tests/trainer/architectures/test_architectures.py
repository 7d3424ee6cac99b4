"""What each engine and the trainer do with eight architectures is what docs/training/architectures.md says."""

from pathlib import Path

import pytest

from tests.trainer.architectures.checks import CPU, IN_VLLM, IN_VLLM_ON_GPU, ON_CPU, ON_GPU, Shared, check_engine
from tests.trainer.architectures.table import PAGE, read_results, with_table
from tests.trainer.architectures.tiny import ARCHITECTURES
from tinyzero_trainer.models.loading import load_model
from tinyzero_trainer.rollout import TorchEngine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("architectures"))


def test_the_table_is_what_the_checks_found() -> None:
    page = PAGE.read_text()
    assert with_table(page, read_results()) == page


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("check", ON_CPU)
def test_on_the_cpu(check: str, name: str, shared: Shared) -> None:
    assert ON_CPU[check](name, shared) == read_results()["cells"][name][check]


@pytest.mark.minutes
@pytest.mark.nightly(reason="starts vLLM nine times; the slow tests start it once, for Qwen2")
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("check", IN_VLLM)
def test_in_vllm(check: str, name: str, shared: Shared) -> None:
    assert IN_VLLM[check](name, shared) == read_results()["cells"][name][check]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("check", ON_GPU | IN_VLLM_ON_GPU)
def test_on_a_gpu(check: str, name: str, shared: Shared) -> None:
    found = (ON_GPU | IN_VLLM_ON_GPU)[check](name, shared)
    assert found == read_results()["cells"][name].get(check, found)  # "not run" is no cell


@pytest.mark.slow
def test_a_real_chat_model_generates_what_transformers_does(smollm2: Path) -> None:
    language_model = load_model(str(smollm2), CPU)
    questions = ("What is 3 * 4?", "Say hello in French.", "Name the numbers from one to ten, separated by commas.")
    prompts = [
        language_model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    check_engine(TorchEngine(language_model), language_model, prompts=prompts)
