"""Keys of other trainers, by their names here: for messages and help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tinyzero_sdk.settings import TABLE, describe

FOREIGN_KEYS = {
    "run.output": "output_dir default_local_dir run_name experiment_name",
    "run.steps": "max_steps total_training_steps training_steps num_steps",
    "run.epochs run.steps": "num_train_epochs total_epochs epochs num_epochs",
    "run.seed": "data_seed",
    "parallel.world_size": "nnodes num_nodes num_machines num_processes",
    "parallel.dp_replicate": "deepspeed fsdp fsdp_config fsdp_size",
    "parallel.sequence_parallel": "ulysses_sequence_parallel_size sp_size",
    "ray.gpus": "n_gpus_per_node num_gpus",
    "model.path": "model_name_or_path model_name model_id",
    "model.dtype": "torch_dtype bf16 fp16 model_dtype",
    "memory.activation_checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "memory.cpu_offload": "param_offload optimizer_offload",
    "lora.rank": "lora_rank lora_r lora.r use_peft peft_config",
    "lora.alpha": "lora_alpha",
    "data.path": "train_files dataset_name dataset",
    "data.test_path": "val_files",
    "data.prompts_per_step data.batch_size": "train_batch_size batch_size per_device_train_batch_size"
    " generation_batch_size gen_batch_size",
    "data.max_prompt_tokens data.max_length": "max_prompt_length max_seq_length max_length",
    "rollout.engine": "use_vllm rollout.name",
    "rollout.group_size": "num_generations rollout.n n_samples_per_prompt group_size",
    "rollout.max_completion_tokens": "max_completion_length max_response_length response_length max_new_tokens",
    "vllm.gpu_memory_gb": "gpu_memory_utilization vllm_gpu_memory_utilization",
    "vllm.tensor_parallel": "tensor_model_parallel_size vllm_tensor_parallel_size",
    "algorithm.advantage_estimator": "adv_estimator scale_rewards",
    "algorithm.gae_lambda": "lam lambda",
    "algorithm.policy_loss": "loss_mode",
    "algorithm.loss_aggregation": "loss_agg_mode loss_type",
    "algorithm.clip_ratio_low": "epsilon clip_ratio clip_range cliprange",
    "algorithm.clip_ratio_high": "epsilon_high",
    "algorithm.dual_clip_c": "clip_ratio_c delta",
    "algorithm.kl_coefficient": "beta kl_coef kl_loss_coef init_kl_coef",
    "algorithm.kl_estimator": "kl_loss_type kl_penalty",
    "algorithm.kl_placement": "use_kl_in_reward use_kl_loss",
    "algorithm.entropy_coefficient": "entropy_coeff entropy_coef",
    "optimizer.learning_rate": "lr",
    "optimizer.warmup_steps": "lr_warmup_steps warmup_ratio lr_warmup_steps_ratio",
    "optimizer.lr_schedule": "lr_scheduler_type warmup_style",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.max_grad_norm": "grad_clip",
    "optimizer.num_mini_batches": "ppo_mini_batch_size mini_batch_size num_mini_batch steps_per_generation",
    "optimizer.update_epochs": "ppo_epochs num_iterations num_ppo_epochs",
    "optimizer.micro_batch_tokens": "ppo_max_token_len_per_gpu ppo_micro_batch_size_per_gpu micro_batch_size"
    " gradient_accumulation_steps",
    "eval.every": "eval_steps test_freq",
    "checkpoint.every": "save_steps save_freq",
    "checkpoint.keep": "save_total_limit max_actor_ckpt_to_keep",
    "log.trackers": "report_to logger wandb use_wandb",
    "log.project": "project_name",
}
"""Names in TRL, transformers, PEFT and verl, by the key here that answers them; of several keys, the first there is."""

FOREIGN_WORDS = {
    "the option --resume": "resume resume_from_checkpoint resume_mode",
    "the option --gpus": "gpus num_devices",
    "the option --task, with a reward of your own in a task file": "reward_funcs reward_function reward_fn"
    " custom_reward_function.path custom_reward_function.name",
    "the wrapper reward.wrappers=[mask_truncated]": "mask_truncated_completions overlong_filter",
    "reward.wrappers=['overlong(limit=N)']": "overlong_buffer overlong_buffer.enable soft_max_length",
    "nothing to set, since every step is in metrics.jsonl": "logging_steps logging_first_step log_every",
}
"""Names that something other than a key answers."""


def foreign_names(cls: type) -> Mapping[str, list[str]]:
    """The names in other trainers of each key of `cls` that has any."""
    known, names_of = {field.key for field in describe(cls)}, defaultdict[str, list[str]](list)
    for ours, names in FOREIGN_KEYS.items():
        if here := [key for key in ours.split() if key in known]:
            names_of[here[0]] += names.split()
    return names_of


def foreign_answer(cls: type, keys: Iterable[str]) -> str | None:
    """What answers the first name of another trainer among `keys`, in any table or none; its meaning may differ.

    Example:
        >>> from tinyzero_trainer.config import TrainConfig
        >>> foreign_answer(TrainConfig, ["run.steps", "trainer.resume_mode"])
        "unknown key 'trainer.resume_mode'; here it is the option --resume"
    """
    known = {field.key: field for field in describe(cls)}
    answers = {name: f"{key}: {known[key].help}" for key, names in foreign_names(cls).items() for name in names}
    answers |= {name: words for words, names in FOREIGN_WORDS.items() for name in names.split()}
    tables = tuple(f"{key}." for key, field in known.items() if field.type == TABLE)
    for key in keys:
        for name, answer in answers.items():
            if f".{key}".endswith(f".{name}") and key not in known and not key.startswith(tables):
                return f"unknown key {key!r}; here it is {answer}"
    return None
