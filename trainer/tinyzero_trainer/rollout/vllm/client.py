"""The client of vLLM: drives its LLMEngine step by step. The only module that imports vLLM."""

import contextlib
import multiprocessing
import os
import threading
import warnings
from array import array
from collections.abc import Collection, Iterator, Mapping
from time import monotonic
from typing import Any

from tinyzero_trainer.rollout.engine import Group, SamplingParams
from tinyzero_trainer.rollout.vllm.log import EngineLog, quiet_logger
from tinyzero_trainer.types import Generation

END_SECONDS = 10.0  # for a start whose processes were killed to end, and for a killed process to end


class VllmClient:
    """vLLM in its own process, or in this one. All methods but `alive` and `kill` may fail or hang with the engine."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str | None],
        eos_ids: Collection[int],
        *,
        separate_process: bool,
        log: EngineLog,
    ) -> None:
        self._arguments, self._environment, self._eos_ids = arguments, environment, sorted(eos_ids)
        self.separate_process, self._log = separate_process, log
        self._engine: Any = None
        self._processes: list[Any] = []
        self._other_children = set[Any]()
        self._started = threading.Event()  # unset only while `start` runs
        self._started.set()

    def start(self) -> None:
        """Start it with dummy weights, before any other call; takes up to minutes."""
        self._other_children = set(multiprocessing.active_children())
        self._started.clear()
        quiet_logger()
        output = self._log.captured() if self.separate_process else contextlib.nullcontext()
        try:
            with output, _environment(self._environment), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice to vLLM's authors
                self._engine = start_engine(self._arguments, separate_process=self.separate_process)
        finally:
            self._processes = self._new_children()
            self._started.set()

    def _new_children(self) -> list[Any]:
        children = multiprocessing.active_children() if self.separate_process else []
        return [child for child in children if child not in self._other_children]

    def add(self, name: str, group: Group, params: SamplingParams, seed: int) -> None:
        """Request a group's completions; the first has this seed, the others the numbers that follow."""
        from vllm.sampling_params import RequestOutputKind
        from vllm.sampling_params import SamplingParams as VllmParams

        vllm_params = VllmParams(
            n=len(group.completions),
            max_tokens=group.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            seed=seed,
            stop_token_ids=[] if params.ignore_eos else self._eos_ids,
            ignore_eos=params.ignore_eos,
            logprobs=0 if params.logprobs else None,  # of the sampled token, and no others
            flat_logprobs=params.logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(name, {"type": "token", "prompt_token_ids": group.prompt}, vllm_params)

    def step(self) -> dict[str, list[Generation]]:
        """Wait for the next tokens; returns the completions of the requests that they finish, by name."""
        return {output.request_id: _generations(output) for output in self._engine.step() if output.finished}

    def abort(self, names: list[str]) -> None:
        self._engine.abort_request(names)

    def call_workers(self, method: str, argument: Any) -> None:
        """Call a method of worker_extension.py in each of vLLM's workers."""
        self._engine.collective_rpc(method, args=(argument,))

    def reset_prefix_cache(self) -> bool:
        """Drop the prefix cache; False if requests still use it."""
        return bool(self._engine.reset_prefix_cache())

    def sleep(self) -> None:
        """Free all memory; the weights are lost."""
        self._engine.sleep(level=2)

    def wake(self, what: str) -> None:
        """Allocate memory again: `weights`, then, when these are sent, `kv_cache`."""
        self._engine.wake_up(tags=[what])

    def alive(self) -> bool:
        """Whether its processes run; before it is started, True."""
        return all(process.is_alive() for process in self._processes)

    def kill(self) -> None:
        """End it at once, even while it starts; from any thread."""
        end, starting = monotonic() + END_SECONDS, True
        while starting and monotonic() < end:  # it may start more processes until then
            starting = not self._started.wait(0.1)
            processes = self._new_children() if starting else self._processes
            for process in processes:
                process.kill()
            for process in processes:
                process.join(END_SECONDS)

    def close(self) -> None:
        self._engine.engine_core.shutdown()
        self._engine = None


def start_engine(arguments: Mapping[str, Any], *, separate_process: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor import Executor

    # As vLLM's offline class, whose limits for a step suit throughput.
    usage = UsageContext.LLM_CLASS
    config = EngineArgs(**arguments).create_engine_config(usage)
    return LLMEngine(
        vllm_config=config,
        executor_class=Executor.get_class(config),
        log_stats=False,
        usage_context=usage,
        multiprocess_mode=separate_process,
    )


def _generations(output: Any) -> list[Generation]:
    """The completions of a request, in order."""
    generations = []
    for completion in sorted(output.outputs, key=lambda completion: int(completion.index)):
        logprobs = completion.logprobs
        if logprobs is not None:  # a flat list, in which the sampled token is the first at its position
            logprobs = array("d", (logprobs.logprobs[start] for start in logprobs.start_indices))
        generations.append(Generation(array("i", completion.token_ids), logprobs, completion.finish_reason == "stop"))
    return generations


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Variables set, or (None) unset, within."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set_environment(changes)
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
