"""Weights to another process from a trainer whose allocator has expandable segments. Needs a CUDA device, no vLLM."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import subprocess, sys, torch
from tinyzero_trainer.distributed.cuda_allocator import current_settings, expand_segments, expands
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.rollout.vllm.weight_transfer import packed

RECEIVE = '''
import sys, torch
from tinyzero_trainer.rollout.vllm.weight_transfer import unpacked
with unpacked(sys.stdin.buffer.read()) as weights:
    print([(name, tensor.dtype == torch.bfloat16, float(tensor.double().sum())) for name, tensor in weights])
'''


def kinds(size):
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment["active_size"] >= size]
    return {segment["is_expandable"] for segment in segments}


expand_segments(make_config({"run": {"task": "countdown"}}))  # leaves alone what the environment says
kept = torch.ones(2**24, device="cuda")
free = torch.ones(2**26, device="cuda")
del free  # a free block of an expandable segment, large enough for the bucket
assert kinds(2**24) == {True}, kinds(2**24)
for size in (2**24, 2**4):  # of large blocks, and of small ones
    ones, twos = torch.ones(size), torch.full((8,), 2.0)
    weights = [(name, tensor.to("cuda", torch.bfloat16)) for name, tensor in (("a", ones), ("b", twos))]
    with packed(weights) as bucket:
        assert expands(current_settings())
        if size == 2**24:
            assert kinds(2**24) == {False, True}, kinds(2**24)
        done = subprocess.run([sys.executable, "-c", RECEIVE], input=bucket, capture_output=True)
    print(size, done.stdout.decode(), done.stderr.decode()[-2000:], flush=True)
    assert eval(done.stdout) == [("a", True, float(size)), ("b", True, 16.0)]
assert expands(current_settings())
print("passed")
"""


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", None])
def test_a_bucket_reaches_another_process_from_a_trainer_with_expandable_segments(variable: str | None) -> None:
    others = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    environment = others | ({variable: "max_split_size_mb:512,expandable_segments:True"} if variable else {})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("passed\n")
