"""Running the same step again and again: on a CUDA device as a graph, elsewhere by calling it."""

import contextlib
from collections.abc import Callable, Hashable

import torch


class GraphRunner:
    """Steps by a key. What a step reads and writes must stay where it is."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.forget()

    def forget(self) -> None:
        """Give up all steps, and their memory; what they read may go now."""
        self._runs: dict[Hashable, Callable[[], None]] = {}
        # The stream stays: memory that was used on one is not used again on another, and cuBLAS never gives back the
        # workspace that it has for each.
        self._pool = None if self._stream is None else torch.cuda.graph_pool_handle()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._runs

    def prepare(self, key: Hashable, step: Callable[[], None]) -> None:
        """Make a step ready. It runs once: libraries choose their kernels and workspaces before it is captured."""
        if self._stream is None:
            step()
            self._runs[key] = step
            return
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
            # Not torch.cuda.graph, which empties the allocator's cache each time. Other threads may go on allocating.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it complains as well, and would hide the reason
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._runs[key] = graph.replay

    def run(self, key: Hashable) -> None:
        """Run the step of this key."""
        self._runs[key]()
