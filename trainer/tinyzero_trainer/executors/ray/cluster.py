"""Ray itself, started for the run or already running, and the placement group of the run's actors."""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.distributed.parallel_dims import Resources
from tinyzero_trainer.executors.ray import watch
from tinyzero_trainer.utils.signals import SIGNALS

T = TypeVar("T")

OBJECT_STORE_BYTES = 2**30
"""Size of the object store of a Ray that is started for the run: it holds batches, never weights."""

RESOURCES_SECONDS = 60.0
"""To wait for the resources of a shared cluster."""

CONNECT_SECONDS = 5.0


class RayError(TinyZeroError):
    """Ray is not installed, cannot be reached, or has too few free resources."""


def import_ray() -> Any:
    """The library `ray`; raises a RayError if it cannot be imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it sends statistics otherwise
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise RayError(
            f"run.executor='ray' needs Ray ({reason}); install it with: pip install 'tinyzero-trainer[ray]'"
        ) from error
    return ray


@contextmanager
def placement_group(config: RayConfig, bundles: Sequence[Resources]) -> Iterator[Any]:
    """A placement group with these bundles; at the end this process leaves Ray, which removes it.

    Raises:
        RayError: Ray cannot be reached or started, or has too few free resources.
    """
    import torch  # late: `tinyzero doctor` uses this module where torch may be broken

    ray = import_ray()
    try:
        # Counted without initializing CUDA.
        if config.address is None and config.gpus > (present := torch.cuda.device_count()):
            raise RayError(
                f"ray.gpus={config.gpus}, but there are {present} GPUs on this machine; lower it, or name a Ray with "
                "more by --address"
            )
        start(config, bundles)
        watch.check_servers()
        group = ray.util.placement_group(list(bundles), strategy="PACK")
        if not group.wait(RESOURCES_SECONDS):
            needed, free = _total(bundles), ray.available_resources()
            text, there = (
                ", ".join(f"{amounts.get(name, 0):g} {name}" for name in needed) for amounts in (needed, free)
            )
            more = f"; `tinyzero doctor --address {config.address}` shows what is free where" if config.address else ""
            raise RayError(f"Ray has too few free resources: the run needs {text}, and {there} are free{more}")
        yield group
    except Exception as error:
        if not isinstance(error, TinyZeroError):
            watch.check_servers()  # what has died is the reason of whatever Ray raises
        raise
    finally:
        watch.shut_down(ray)


def ask_gpu_node(config: RayConfig, ask: Callable[[], T]) -> T | None:
    """What `ask` returns where the Ray at an address has a GPU; None if it has none, or none is free.

    Raises:
        RayError: see `placement_group`.
    """
    ray = import_ray()
    start(config, [])
    try:
        if not ray.cluster_resources().get("GPU"):
            return None
        task = ray.remote(num_cpus=0, num_gpus=0.01)(ask).remote()
        done, _ = ray.wait([task], timeout=RESOURCES_SECONDS)
        return cast(T, ray.get(task)) if done else None
    finally:
        ray.shutdown()


def start(config: RayConfig, bundles: Sequence[Resources]) -> None:
    """Start Ray for these bundles, or connect to the one at an address, unless that is done; imports no torch.

    Ray gets none of the run's signals: its own handlers end a run without a checkpoint.

    Raises:
        RayError: Ray cannot be reached or started.
    """
    if (ray := import_ray()).is_initialized():
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ray's processes inherit it: what ends a whole session, job or container signals them too, and nothing could be
    # saved without them.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, set(SIGNALS) - {signal.SIGINT})
    try:
        _connect(ray, config, bundles)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        if threading.current_thread() is threading.main_thread():  # Ray installs none in others
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _connect(ray: Any, config: RayConfig, bundles: Sequence[Resources]) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    # For each worker that dies Ray prints a paragraph on standard output, which no setting prevents; calls.py makes one
    # line of it.
    ray._private.worker.print_to_stdstream = lambda *args, **kwargs: None
    check_address(config.address)
    before = _children(ray)
    try:
        if config.address is not None:
            ray.init(config.address, **quiet)
            return
        # If the trainer is killed, Ray's helper processes look for their dead cluster this long before they exit.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "10")
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is the lowest priority
        # Else `ray.init` waits for workers that it starts in advance, and for ever, with the GIL held, if one dies.
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        os.environ.setdefault("RAY_enable_worker_prestart", "0")
        # Else its server keeps a record of the last 100,000 calls, which only a dashboard reads.
        os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
        ray.init(
            "local",
            num_cpus=int(_total(bundles).get("CPU", 0)),  # a count of actors, and not of cores
            num_gpus=config.gpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            **quiet,
        )
        watch.look_after(_children(ray) - before)
    except Exception as error:  # a bare one where a process of Ray dies while it starts
        for process in _children(ray) - before:
            process.kill()
            process.wait()
        reason = in_one_line(str(error))
        if config.address is None:
            raise RayError(f"Ray cannot be started: {reason}") from error
        raise RayError(
            f"ray.address={config.address!r}: {reason}; `tinyzero doctor --address {config.address}` looks for the "
            "reason; `ray start` prints the address, and if it runs with RAY_AUTH_MODE=token, set that here too, with "
            "the same RAY_AUTH_TOKEN"
        ) from error


def _children(ray: Any) -> set[Any]:
    """The processes of Ray that this one has started."""
    import psutil  # late: `tinyzero doctor` imports this module where the extra `ray` may be missing

    library, children = str(Path(ray.__file__).parent), set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # one of another library, which has ended meanwhile
            if any(library in word for word in child.cmdline()):
                children.add(child)
    return children


def check_address(address: str | None) -> None:
    """Raise a RayError if this is not an address, or nothing listens there."""
    if address is None or address == "auto":
        return
    if "://" in address or not is_host_and_port(address):
        raise RayError(
            f"ray.address={address!r} is not an address of Ray; give auto, or HOST:PORT as `ray start --head` prints it"
        )
    if reason := not_listening(address):
        raise RayError(f"there is no Ray at ray.address={address!r} ({reason}); `ray start` prints the address")


def is_host_and_port(address: str) -> bool:
    """Whether it has the form HOST:PORT.

    Example:
        >>> [is_host_and_port(address) for address in ("10.0.0.1:6379", "10.0.0.1", "head:70000")]
        [True, False, False]
    """
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 2**16


def not_listening(address: str) -> str | None:
    """Why nothing listens at HOST:PORT; None if something does. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, UnicodeError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def in_one_line(text: str) -> str:
    """The first line of Ray's message; the versions, if they do not match.

    Example:
        >>> in_one_line("Failed to connect\\nand more")
        'Failed to connect'
    """
    if "Version mismatch" in text:
        theirs, _, ours = text.partition("Version mismatch")[2].partition("This process")
        versions = [", ".join(re.findall(r"(?:Ray|Python): [^\s,]+", part)).replace(":", "") for part in (theirs, ours)]
        return f"{versions[0]} there, {versions[1]} here"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return line.partition(". Ensure ")[0]  # what follows is a paragraph on tokens


def _total(bundles: Sequence[Resources]) -> Resources:
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0) for bundle in bundles) for name in names}
