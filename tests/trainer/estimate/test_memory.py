"""Host memory that offloading takes. The memory of GPUs is tested against the code in test_estimate_and_code.py."""

import pytest

from tests.trainer.plan.planned import config_of
from tinyzero_trainer.estimate.memory import host_bytes
from tinyzero_trainer.models.hub import find_spec

SPEC = find_spec("Qwen/Qwen2.5-7B")


@pytest.mark.parametrize(
    ("words", "bytes_each"),
    [
        ((), 0),
        (("memory.cpu_offload=always",), 16),
        (("memory.cpu_offload=idle",), 12),
        (("memory.cpu_offload=always", "algorithm.kl_coefficient=0.01"), 18),
        (("memory.cpu_offload=idle", "algorithm.kl_coefficient=0.01"), 14),
        (("memory.cpu_offload=idle", "algorithm.kl_coefficient=0.01", "model.dtype=float32"), 16),
    ],
)
def test_bytes_of_a_parameter_in_host_memory(words: tuple[str, ...], bytes_each: int) -> None:
    assert host_bytes(SPEC, config_of(*words)) == bytes_each * SPEC.parameters


def test_a_critic_doubles_it_and_an_adapter_takes_little() -> None:
    critic = host_bytes(SPEC, config_of("memory.cpu_offload=always", "algorithm.advantage_estimator=gae"))
    assert critic == 32 * SPEC.parameters - 12 * SPEC.embedding  # the language model head, which no critic trains
    adapter = host_bytes(SPEC, config_of("memory.cpu_offload=always", "lora.rank=8", "algorithm.kl_coefficient=0.01"))
    assert adapter == 4 * SPEC.parameters + 16 * SPEC.adapter(8)
