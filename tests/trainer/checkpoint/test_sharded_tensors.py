"""Any number of ranks resumes what any other number has saved; a single rank writes one file."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.faults import Faults
from tests.trainer.distributed.sharded import CASES, CPU, NOW, PLAIN, make_policy, synthetic_batch
from tests.trainer.distributed.test_ranks import OPTIMIZER, copies
from tests.trainer.processes import on_ranks
from tests.trainer.samples import build_policy
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.checkpoint.sharded_tensors import check_sharded, load_sharded, load_whole, save_sharded
from tinyzero_trainer.checkpoint.store import DamagedCheckpointError
from tinyzero_trainer.config import CriticConfig, LoraConfig
from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group, shard
from tinyzero_trainer.models.loading import LanguageModel, load_model, save_model
from tinyzero_trainer.models.lora import DIRECTORY as ADAPTER
from tinyzero_trainer.models.lora import Adapter
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.build import _load
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.optimizer import Optimizer


def test_one_rank_writes_and_reads_shards_too_and_nothing_is_pickled(tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(3, 2), "count": torch.tensor(7.0)}
    with process_group(CPU):
        save_sharded(tmp_path / "shards", tensors)
    assert {path.suffix for path in (tmp_path / "shards").iterdir()} == {".safetensors"}
    check_sharded(tmp_path / "shards", {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()})
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load_sharded(tmp_path / "shards", found)  # without a process group
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ({"matrix": ((3, 2), torch.float32)}, "of count it has float32, expected none"),
        (
            {"matrix": ((3, 3), torch.float32), "count": ((), torch.float32)},
            "has 3 × 2 float32, expected 3 × 3 float32",
        ),
        ({"matrix": ((3, 2), torch.int64), "count": ((), torch.float32)}, "has 3 × 2 float32, expected 3 × 2 int64"),
        ({"bias": ((3, 2), torch.float32)}, "of bias it has none, expected 3 × 2 float32"),
    ],
)
def test_tensors_that_the_model_has_not_are_refused_sharded_or_not(expected, fault, tmp_path: Path) -> None:
    tensors = {"matrix": torch.randn(3, 2), "count": torch.tensor(7.0)}
    save_file(tensors, tmp_path / "whole.safetensors")
    with process_group(CPU):
        save_sharded(tmp_path / "shards", tensors)
    for load, path in ((load_whole, "whole.safetensors"), (check_sharded, "shards")):
        with pytest.raises(DamagedCheckpointError, match=rf"{path} does not fit the model: .*{fault}"):
            load(tmp_path / path, expected)


def test_shards_that_are_missing_or_no_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpointError, match=r"shards\.safetensors is missing"):
        check_sharded(tmp_path / "shards", {})
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/model.safetensors").write_bytes(b"junk" * 99)
    with pytest.raises(DamagedCheckpointError, match=r"shards: "):
        check_sharded(tmp_path / "shards", {})


def test_what_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with process_group(CPU), pytest.raises(OSError, match=r"exists \(rank 0\)"):
        save_sharded(tmp_path / "file", {"matrix": torch.ones(2)})


# ---- several processes ----------------------------------------------------------------------------------------------


def begin(start: str, directory: str, batch: TrainingBatch, options: FsdpOptions = PLAIN) -> dict[str, Tensor]:
    """Two updates, saved; with an adapter in its own directory."""
    weights = {}
    for case in ("all weights", "LoRA"):
        policy = make_policy(_load(start, options), CASES[case], options)
        policy._optimizer = Optimizer(policy.language_model.model, OPTIMIZER)
        critic = Critic(_load(start, options), settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
        path = Path(directory, case)
        path.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            policy.update(batch, NOW)
            critic.update(batch)
        save_model(path, policy.language_model)
        policy.save(path)
        critic.save(path)
        found = copies(named_weights(policy.language_model.model))
        weights |= {f"{case}/{name}": value for name, value in found.items()}
    return weights


def resume(start: str, directory: str, batch: TrainingBatch) -> dict[str, Any]:
    """One more update from what was saved."""
    results: dict[str, Any] = {}
    for case in ("all weights", "LoRA"):
        path = Path(directory, case)
        language_model = load_model(str(path) if case == "all weights" else start, CPU)
        if case == "LoRA":
            adapter = Adapter(language_model.model, LoraConfig(rank=4), seed=0, start=None)
            adapter.load(path / ADAPTER)
            shard(PolicyModel(language_model.model), PLAIN)
            policy = build_policy(replace(language_model, adapter=adapter), optimizer=OPTIMIZER, max_tokens=40)
        else:
            policy = make_policy(language_model, CASES[case], PLAIN)
        policy._optimizer = Optimizer(policy.language_model.model, OPTIMIZER)
        policy.load(path)
        critic = Critic(load_model(start, CPU), settings=CriticConfig(), optimizer=OPTIMIZER, options=PLAIN)
        critic.load(path)
        results[f"{case}/values"] = critic.values(batch.rollouts)
        results[f"{case}/logprobs"] = policy.logprobs(batch.rollouts, 0.8)
        results[f"{case}/metrics"] = critic.update(batch) | policy.update(batch, NOW)
        results[f"{case}/weights"] = copies(named_weights(policy.language_model.model))
    return results


FOUR = pytest.mark.nightly(reason="four processes; replicas and sequence-parallel groups are saved as they are trained")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "options"),
    [
        pytest.param(2, PLAIN, id="two"),
        pytest.param(
            4, replace(PLAIN, replicas=2, sequence_parallel=2), id="two replicas, sequence parallel", marks=FOUR
        ),
    ],
)
@pytest.mark.fault(
    "F16",
    "A run is resumed on another number of ranks",
    made="saved on two (and four), loaded on one and three; whole models and LoRA, policy and critic",
    seen="",
    kept="weights to the bit; values and log-probabilities to 1e-5, gradient norms to rounding",
)
def test_a_run_saved_on_several_ranks_resumes_on_one_and_three(
    fault_row: Faults, count: int, options: FsdpOptions, toy_model: LanguageModel, tmp_path: Path
) -> None:
    save_model(tmp_path / "start", toy_model)
    start, saved = str(tmp_path / "start"), str(tmp_path / "saved")
    batch = pickle.loads(pickle.dumps(synthetic_batch(toy_model)))
    weights = on_ranks(count, begin, tmp_path, start, saved, batch, options)[0]
    for case in ("all weights", "LoRA"):
        files = [path for path in Path(saved, case).rglob("*") if path.is_file()]
        assert not any(path.suffix in (".pt", ".bin", ".pkl", ".distcp", ".metadata") for path in files)
        assert len(list(Path(saved, case, "optimizer").iterdir())) == count  # replicas write each shard once
        # The exported model is whole.
        plain = load_model(str(Path(saved, case)), CPU)
        for name, value in plain.model.state_dict().items():
            assert torch.equal(value, weights[f"{case}/{name}"])
    with process_group(CPU):
        alone = resume(start, saved, batch)
    for results in on_ranks(3, resume, tmp_path, start, saved, batch):
        for key, expected in alone.items():
            if key.endswith("metrics"):
                assert results[key].keys() == expected.keys()
                assert results[key]["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-4)
                assert results[key]["critic/vf_loss"] == pytest.approx(expected["critic/vf_loss"], rel=1e-4)
            elif key.endswith("weights"):
                for name, value in expected.items():
                    torch.testing.assert_close(results[key][name], value, rtol=0, atol=1e-3)
            else:
                torch.testing.assert_close(results[key], expected, rtol=0, atol=1e-5)
    fault_row.check("")


@pytest.mark.slow
def test_a_run_saved_on_one_rank_resumes_on_two(toy_model: LanguageModel, tmp_path: Path) -> None:
    save_model(tmp_path / "start", toy_model)
    start, saved = str(tmp_path / "start"), str(tmp_path / "saved")
    batch = synthetic_batch(toy_model)
    with process_group(CPU):
        begin(start, saved, batch)
        alone = resume(start, saved, batch)
    moments = load_file(Path(saved, "all weights", "optimizer.safetensors"))
    assert {name.partition("/")[0] for name in moments} == {"exp_avg", "exp_avg_sq", "step"}
    for results in on_ranks(2, resume, tmp_path, start, saved, batch):
        for key in ("all weights/values", "LoRA/values", "all weights/logprobs", "LoRA/logprobs"):
            torch.testing.assert_close(results[key], alone[key], rtol=0, atol=1e-5)
