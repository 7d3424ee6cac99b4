"""The executor `local`: policy, critic, rollout engine and reward pools in the trainer's process."""
