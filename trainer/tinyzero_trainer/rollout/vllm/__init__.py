"""The rollout engine `vllm`: start with engine.py. Restarting it after a failure is in executors/restart.py.

- client.py alone imports vLLM; build.py configures it, log.py reads the output of its process.
- parent_watchdog.py ends its process with the trainer.
- weight_transfer.py and worker_extension.py bring weights to its process, sync_check.py checks that they arrived.
"""
