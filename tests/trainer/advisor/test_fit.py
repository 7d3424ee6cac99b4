"""What is decided where a setting is left to the rollout engine."""

from tests.trainer.advisor.planned import ASYNC, GRPO, GRPO_1024, HALF_B, SPECS, config_of, on, phase_of
from tinyzero_trainer.advisor.fit import predict_within, settle
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.hardware.gpu import GIB


def test_vllm_is_left_awake_where_there_is_room() -> None:
    config = config_of(*GRPO_1024, "rollout.engine=vllm")
    awake = settle(SPECS[HALF_B], config, 130 * GIB).vllm
    asleep = settle(SPECS[HALF_B], config, 30 * GIB).vllm
    assert (awake.sleep_mode, asleep.sleep_mode) == (False, True)
    assert awake.gpu_memory_gb == asleep.gpu_memory_gb
    cramped = settle(SPECS[HALF_B], config, 12 * GIB).vllm
    assert cramped.gpu_memory_gb < awake.gpu_memory_gb
    kept = settle(SPECS[HALF_B], with_settings(config, {"vllm.gpu_memory_gb": 5.0, "vllm.sleep_mode": False}), 12 * GIB)
    assert (kept.vllm.gpu_memory_gb, kept.vllm.sleep_mode) == (5.0, False)


def test_the_torch_engine_keeps_its_memory_where_there_is_room() -> None:
    config, spec = config_of("rollout.max_completion_tokens=1024", "rollout.max_num_seqs=256"), SPECS[HALF_B]
    kept, given_back = (predict_within(spec, config, gib * GIB) for gib in (60, 30))
    assert kept.peak - given_back.peak > 4 * GIB
    assert not given_back.worst.of("rollout")
    [reading] = [part.size for part in kept.phases[0].parts if part.what == "prefill"]
    assert kept.worst.of("rollout") == kept.phases[0].of("rollout") - reading > 4 * GIB


def test_the_torch_engine_gives_its_memory_back_where_memory_is_to_be_saved() -> None:
    config = config_of("memory.cpu_offload=idle", *GRPO_1024)
    assert not phase_of(predict_within(SPECS[HALF_B], config, 140 * GIB), "update_actor").of("rollout")


def test_dedicated_engines_have_their_gpus_to_themselves() -> None:
    spec, config = (
        SPECS["Qwen/Qwen2.5-7B"],
        config_of(*GRPO, "rollout.engine=vllm", "rollout.max_completion_tokens=8192"),
    )
    colocated, dedicated = (settle(spec, on(config, 4, rollout__num_engines=count), 60 * GIB).vllm for count in (0, 1))
    assert (colocated.sleep_mode, dedicated.sleep_mode) == (True, "auto")
    assert dedicated.gpu_memory_gb > colocated.gpu_memory_gb  # type: ignore[operator]
    ahead = with_settings(on(config, 4, rollout__num_engines=1), ASYNC)  # which refuses any value of vllm.sleep_mode
    assert settle(spec, ahead, 60 * GIB).vllm == dedicated
