"""`test_real_vllm.py` needs vLLM, which is not installed here: `../test_vllm_cpu.py` runs it where it is."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["test_real_vllm.py"]
