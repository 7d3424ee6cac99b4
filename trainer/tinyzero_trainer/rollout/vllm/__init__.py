"""The rollout engine `vllm`. Begin with engine.py: what it does with vLLM, and when vLLM fails.

- client.py alone imports vLLM; build.py and engine_args.py say how it is started, log.py what its process has said.
- call_timeout.py bounds how long a call may take, call_timeout.py tells how far a batch is.
- weight_transfer.py and worker.py bring weights to its process, and sync_check.py sees whether they arrived.
"""
