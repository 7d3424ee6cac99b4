"""That the plan knows what too little `vllm.gpu_memory_gb` is, and does not take it for a GPU that is too small."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.configurations import call
from tests.trainer.plan.planned import HALF_B, SPECS, config_of
from tinyzero_trainer.estimate.engine_memory import GB, needed_by_vllm
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.estimate.workload import workload_on
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.plan import advice
from tinyzero_trainer.plan.plan import make_plan
from tinyzero_trainer.plan.target_gpu import TargetGpu

LARGER = "Qwen/Qwen2.5-1.5B"
VLLM = "rollout.engine=vllm"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gib", "words"),
    [
        *((HALF_B, 24, (f"vllm.gpu_memory_gb={size}",)) for size in (0.5, 1, 1.5, 2, 5)),
        (LARGER, 22.5, ("vllm.gpu_memory_gb=4", "rollout.max_num_seqs=64")),
    ],
)
def test_little_memory_for_vllm_is_no_reason_that_nothing_fits(model: str, gib: float, words: tuple[str, ...]) -> None:
    spec, config, memory = SPECS[model], config_of(VLLM, *words, model=model), int(gib * GIB)
    assert make_plan(spec, config_of(VLLM, *words[1:], model=model), memory).fits
    assert make_plan(spec, config, memory).fits


@pytest.mark.slow
@given(
    st.sampled_from([HALF_B, LARGER]),
    st.floats(0.1, 60),
    st.sampled_from([None, False, True]),
    st.sampled_from([None, 16, 64, 480]),
    st.integers(6, 80),
)
@settings(max_examples=6, deadline=None)
def test_what_vllm_is_given_never_decides_whether_something_fits(
    model: str, size: float, sleep: bool | None, sequences: int | None, gib: int
) -> None:
    spec = SPECS[model]
    open_ = with_settings(config_of(VLLM, model=model), {"vllm.sleep_mode": sleep, "rollout.max_num_seqs": sequences})
    given_ = with_settings(open_, {"vllm.gpu_memory_gb": size})
    left_out, found = (make_plan(spec, config, gib * GIB) for config in (open_, given_))
    assert found.fits or not left_out.fits
    if found.fits:
        least = needed_by_vllm(spec, found.config, workload_on(found.config), sequences=1)
        given_now = found.config.vllm.gpu_memory_gb
        assert given_now is not None
        assert given_now * GB + GB / 100 >= least


def test_the_plan_says_that_vllm_has_no_room_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--gpu", "A100", "--model", LARGER, VLLM)
    code, out, _ = call(capsys, *words, "vllm.gpu_memory_gb=1")
    out = " ".join(out.split())
    assert "vllm.gpu_memory_gb=1 is too small: weights, workspaces and one sequence are predicted to take " in out
    assert "the requested settings fit" not in out
    [line] = [line for line in out.split("to train with them: ") if line.startswith("tinyzero train")]
    assert line.count("vllm.gpu_memory_gb=") == 1
    assert code == 0
    assert "micro_batch_tokens" not in line  # nothing else is amiss
    again = [word for word in line.split() if word.startswith("vllm.")]
    out = call(capsys, *words, *again)[1]
    assert "too small" not in out
    found = json.loads(call(capsys, *words, "vllm.gpu_memory_gb=1", "--json")[1])
    assert 3.1 * GB < found["vllm_needs"] < 10 * GB
    assert json.loads(call(capsys, *words, *again, "--json")[1])["vllm_needs"] == 0


def test_train_says_so_too() -> None:
    def said(*words: str, gib: int = 80) -> str | None:
        config: Any = config_of(VLLM, *words, model=LARGER)
        return advice.warning_for(SPECS[LARGER], config, TargetGpu("A100", gib * GIB, find_gpu_spec("A100")))

    line = said("vllm.gpu_memory_gb=1") or ""
    assert line.startswith(
        "vllm.gpu_memory_gb=1 is too small: weights, workspaces and one sequence are predicted to take "
    )
    assert "leave it out" in line
    cure = [word for word in line.partition(";")[2].split() if "=" in word]
    assert said(*cure) is None
    assert said() is None
    assert "\n" not in line
    nothing = said("vllm.gpu_memory_gb=1", gib=3) or ""
    assert "no settings were found that fit" in nothing
