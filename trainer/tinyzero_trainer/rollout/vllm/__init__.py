"""The rollout engine `vllm`. Begin with engine.py: what it does with vLLM, and when vLLM fails.

- connection.py alone imports vLLM; build.py and settings.py say how it is started, log.py what its process has said.
- calls.py bounds how long a call may take, progress.py tells how far a batch is.
- transfer.py and worker.py bring weights to its process, and sync_check.py sees whether they arrived.
"""
