"""Which GPUs torch has kernels for, and which build of torch has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.doctor.machines import CU124, CU130
from tinyzero_trainer.hardware.compute_capability import build_for, has_kernels


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((9, 0), ["sm_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((8, 9), ["sm_80", "sm_86"], True),  # a newer minor version of the same major one
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 1), ["sm_120"], True),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for newer GPUs
        ((12, 0), ["compute_90a"], False),  # but not where it is for one architecture
        ((10, 3), ["sm_100f"], True),
        ((10, 0), ["sm_103f"], False),
        ((12, 0), ["sm_100f"], False),
        ((6, 1), ["sm_60"], True),
        ((6, 1), ["sm_70", "compute_70"], False),
        ((9, 0), ["gfx942"], False),
        ((9, 0), [], False),
    ],
)
def test_which_code_runs_on_which_gpu(capability: tuple[int, int], archs: list[str], runs: bool) -> None:
    assert has_kernels(capability, archs) is runs


@given(st.tuples(st.integers(5, 13), st.integers(0, 9)), st.tuples(st.integers(5, 13), st.integers(0, 9)))
def test_ptx_runs_wherever_its_machine_code_runs(code: tuple[int, int], gpu: tuple[int, int]) -> None:
    number = f"{code[0]}{code[1]}"
    machine_code, ptx = has_kernels(gpu, [f"sm_{number}"]), has_kernels(gpu, [f"compute_{number}"])
    assert ptx or not machine_code
    assert ptx == (code <= gpu)


PUBLISHED = {"cu126": CU124, "cu129": CU130[:-1], "cu130": CU130}


@given(st.sampled_from([(5, 0), (6, 1), (7, 0), (7, 5), (8, 6), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]))
def test_the_proposed_torch_has_kernels_and_fits_the_driver(capability: tuple[int, int]) -> None:
    for driver in [None, (12, 4), (12, 9), (13, 2)]:
        build = build_for(capability, driver)
        assert has_kernels(capability, PUBLISHED[build])
        assert int(build[2:4]) <= (driver or (12, 0))[0]
