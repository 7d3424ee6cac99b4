"""Runs the same step repeatedly: on a CUDA device as a captured graph, elsewhere by calling it."""

import contextlib
from collections.abc import Callable, Hashable

import torch


class GraphRunner:
    """Steps by key. The tensors that a step reads and writes must keep their addresses."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.forget()

    def forget(self) -> None:
        """Drop all steps and their memory; what they read may be freed now."""
        self._runs: dict[Hashable, Callable[[], None]] = {}
        # The stream stays: memory used on one is not reused on another, and cuBLAS never frees its workspace of each.
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._runs

    def prepare(self, key: Hashable, step: Callable[[], None]) -> None:
        """Prepare a step. It runs once before it is captured, so that libraries choose their kernels and workspaces."""
        if self._stream is None:
            step()
            self._runs[key] = step
            return
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
            # Not torch.cuda.graph, which empties the allocator's cache each time. Other threads may keep allocating.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it fails as well, and would hide the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._runs[key] = graph.replay

    def run(self, key: Hashable) -> None:
        self._runs[key]()
