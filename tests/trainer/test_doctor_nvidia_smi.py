"""What nvidia-smi prints, of GPUs that are well and of GPUs that are not."""

import dataclasses
import os
from pathlib import Path

import pytest

from tests.trainer.machines import H200, facts_of, machine
from tests.trainer.planned import config_of
from tinyzero_trainer.doctor import probe
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Torch, Wanted
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.hardware import nvml as nvidia_smi
from tinyzero_trainer.hardware.gpu import Driver, Process
from tinyzero_trainer.plan import advice
from tinyzero_trainer.plan import target_gpu as target
from tinyzero_trainer.plan.target_gpu import present_gpu

SMI = """#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, GPU-a, NVIDIA H200, 9.0, 143771, 20000, 123158, 580.82.07"
    echo "1, GPU-b, Odd, [N/A], 100, [N/A], [N/A], 580.82.07";;
*) echo "GPU-a, 4711, 123000, /usr/bin/python3";;
esac
"""


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA shows on the machine where the tests run is not what is made up here."""
    monkeypatch.setattr(target, "visible_gpus", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, SMI)
    driver = nvidia_smi.nvidia_driver((13, 0))
    first, second = driver.gpus
    assert (driver.version, driver.cuda, driver.error) == ("580.82.07", (13, 0), "")
    assert (first.capability, first.free, first.uuid) == ((9, 0), 20000 * 2**20, "a")
    assert (first.used, second.used) == (123158 * 2**20, None)  # the driver keeps some for itself
    assert first.processes == (Process(4711, "python3", 123000 * 2**20),)
    assert (second.capability, second.free, second.memory) == (None, None, 100 * 2**20)
    used = probe.with_use(Torch("2.13.0", gpus=(dataclasses.replace(H200, free=None),)), driver)
    assert (used.gpus[0].free, used.gpus[0].processes) == (first.free, first.processes)


def test_an_nvidia_smi_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "#!/bin/sh\necho Failed to initialize NVML\nexit 18\n")
    assert nvidia_smi.nvidia_driver(None).error == "nvidia-smi: Failed to initialize NVML"


HEALTHY = "0, GPU-a, NVIDIA H200, 9.0, 143771, 143000, 158, 580.82.07"
UNABLE = "Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error"


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str, uses: bytes = b"", code: int = 0) -> Driver:
    """The driver, where nvidia-smi prints this."""
    (folder / "gpus").write_text("".join(f"{line}\n" for line in lines))
    (folder / "uses").write_bytes(uses)
    script = f'#!/bin/sh\ncase "$1" in *query-gpu*) cat {folder}/gpus; exit {code};; *) cat {folder}/uses;; esac\n'
    smi(folder, monkeypatch, script)
    driver = nvidia_smi.nvidia_driver((13, 0))
    assert driver is not None
    return driver


def of_driver(driver: Driver, *gpus: object, wanted: Wanted = Wanted()) -> list[Finding]:  # noqa: B008  # frozen
    facts = facts_of(H200, driver=driver) if gpus else facts_of(driver=driver)
    return [finding for finding in examine(facts, wanted) if finding.check == "driver" and finding.level != "ok"]


@pytest.mark.parametrize("code", [0, 6])
@pytest.mark.parametrize("line", ["No devices were found", UNABLE])
def test_a_sentence_in_place_of_the_gpus_is_the_error(
    line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = asked(tmp_path, monkeypatch, line, code=code)
    assert (driver.error, driver.gpus) == (f"nvidia-smi: {line}", ())
    [finding] = of_driver(driver)
    assert (finding.level, line in finding.what) == ("error", True)
    assert present_gpu("auto") is None


def test_nothing_at_all_is_an_error_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(tmp_path, monkeypatch).error == "nvidia-smi: it names no GPU"
    assert asked(tmp_path, monkeypatch, code=9).error == "nvidia-smi: it ended with code 9"


@pytest.mark.parametrize("code", [0, 15])
@pytest.mark.parametrize(
    "line", [UNABLE, "1, GPU-b, NVIDIA H200, 9.0, [GPU is lost], [GPU is lost], [GPU is lost], 580.82.07", "1, GPU-b"]
)
def test_a_gpu_that_failed_is_a_finding_and_the_healthy_one_stays(
    line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = asked(tmp_path, monkeypatch, HEALTHY, line, code=code)
    assert (driver.version, driver.error, driver.unread) == ("580.82.07", "", (line,))
    assert [(gpu.uuid, gpu.free) for gpu in driver.gpus] == [("a", 143000 * 2**20)]
    found = present_gpu("auto")
    assert found is not None
    assert found.name == "NVIDIA H200"
    [finding] = of_driver(driver, H200)
    assert (finding.level, finding.commands, line in finding.what) == ("warning", ("nvidia-smi",), True)
    assert [finding.level for finding in of_driver(driver)] == ["error"]
    assert [finding.level for finding in of_driver(driver, wanted=Wanted(device="cpu"))] == ["note"]


def test_an_exit_code_is_not_the_healthy_gpus_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = asked(tmp_path, monkeypatch, HEALTHY, code=15)
    assert (driver.error, driver.unread) == ("", ("it ended with code 15",))
    assert HEALTHY not in repr(of_driver(driver))


def test_in_a_container_a_gpu_that_failed_is_no_gpu_that_was_not_given() -> None:
    def commands(error: str) -> tuple[str, ...]:
        facts = facts_of(driver=Driver(error=f"nvidia-smi: {error}"), machine=machine(container=True))
        return next(finding for finding in examine(facts, Wanted()) if finding.check == "driver").commands

    assert commands(UNABLE) == ("nvidia-smi",)
    assert commands("No devices were found") == ("docker run --gpus all …",)


def test_a_short_row_of_a_process_is_told_and_what_is_not_known_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = b"GPU-a, 4711\n[N/A]\nNo running processes found\nGPU-a, 7, 5, /bin/a, b\n"
    driver = asked(tmp_path, monkeypatch, HEALTHY, uses=uses)
    assert driver.gpus[0].processes == (Process(7, "a, b", 5 * 2**20),)
    [finding] = of_driver(driver, H200)
    assert (finding.level, "GPU-a, 4711" in finding.what, "N/A" in finding.what) == ("note", True, False)


def test_a_name_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = asked(tmp_path, monkeypatch, HEALTHY, uses=b"GPU-a, 7, 5, /bin/\xff\xfe\x1b[31mn\xb2\n")
    [process] = driver.gpus[0].processes
    assert process.pid == 7
    assert process.name.isprintable()
    superscript = asked(tmp_path, monkeypatch, HEALTHY.replace("143000", "\u00b2"))
    assert superscript.gpus[0].free is None


def test_many_lines_are_cut_short() -> None:
    [finding] = of_driver(Driver("580", (13, 0), (H200,), unread=(UNABLE,) * 40), H200)
    assert len(finding.what) < 400


def test_an_nvidia_smi_that_hangs_or_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 20\n")
    assert nvidia_smi.ask("--query-gpu", ["index"], timeout=0.1).error == "no answer within 0.1 s"
    smi(tmp_path, monkeypatch, "#!/nowhere/at/all\n")
    error = nvidia_smi.nvidia_driver(None).error
    assert error == "nvidia-smi: No such file or directory"


@pytest.mark.slow
def test_whatever_goes_wrong_before_a_run_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(advice, "present_gpu", fail)
    assert advice.warning(config_of()) is None
    monkeypatch.setattr(advice, "present_gpu", lambda _: target.TargetGpu("a small GPU", 2**29, None))
    assert advice.warning(config_of()) is not None
    monkeypatch.setattr(advice, "find_spec", fail)
    assert advice.warning(config_of()) is None
