"""Which rollout engine a run gets."""

from collections.abc import Callable
from functools import partial

import torch

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import compute_dtype, device_of
from tinyzero_trainer.estimate.engine_buffers import FEW_SEQUENCES
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.decoder import FusedDecoder
from tinyzero_trainer.rollout.engine import RolloutEngine
from tinyzero_trainer.rollout.torch_engine import TorchEngine
from tinyzero_trainer.rollout.vllm.version import require_vllm
from tinyzero_trainer.rollout.weight_sync import WeightSource, named_weights, plain_class


def require_engine(config: TrainConfig, device: torch.device, *, here: bool = True) -> None:
    """Refuse an engine that is not there, or cannot do what is asked of it, before a model is loaded for it.

    Args:
        config: the run's.
        device: that it is to be on.
        here: whether it is to be on this machine; another's may have vLLM where this one has none.

    Raises:
        VllmMissing: there is none that fits.
        VllmError: a setting is none for this device.
    """
    if config.rollout.engine == "vllm":
        from tinyzero_trainer.rollout.vllm.engine_args import refuse_impossible

        if here:
            require_vllm()
        refuse_impossible(config, device)


def build_engine(
    config: TrainConfig,
    language_model: LanguageModel,
    note: Callable[[str], None] = lambda _: None,
    *,
    source: WeightSource | None = None,
    number: int = 0,
) -> RolloutEngine:
    """The engine that `rollout.engine` names, with the weights that the model has now.

    Args:
        config: the run's.
        language_model: the policy's.
        note: is told of what the user should know.
        source: gives the policy's weights; None = `named_weights`.
        number: which of the run's engines it is.

    Raises:
        VllmMissing: see `require_engine`.
        VllmError: see there; or vLLM does not start.
    """
    device = device_of(language_model.model)
    require_engine(config, device)
    source = source or partial(named_weights, language_model.model)
    if config.rollout.engine == "vllm":
        from tinyzero_trainer.rollout.vllm.build import build_vllm

        return build_vllm(config, language_model, source, number)
    if device.type == "cuda":
        if FusedDecoder.fits(language_model.model):
            return _build_graph_engine(config, language_model, source, device, note)
        note(
            f"rollout.engine=torch has no CUDA graphs for {plain_class(language_model.model).__name__} as this model "
            "is set up, so completions are generated slowly; rollout.engine=vllm is the faster one for it"
        )
    return TorchEngine(
        language_model.model,
        eos_ids=language_model.eos_ids,
        pad_id=language_model.pad_id,
        max_num_seqs=config.rollout.max_num_seqs or FEW_SEQUENCES,
    )


def _build_graph_engine(
    config: TrainConfig,
    language_model: LanguageModel,
    source: WeightSource,
    device: torch.device,
    note: Callable[[str], None],
) -> RolloutEngine:
    return GraphEngine(
        language_model.model,
        source,
        eos_ids=language_model.eos_ids,
        pad_id=language_model.pad_id,
        max_num_seqs=config.rollout.max_num_seqs,
        dtype=compute_dtype(config.model.dtype, device),
        device=device,
        keep_memory=config.memory.cpu_offload is None,
        note=note,
    )
