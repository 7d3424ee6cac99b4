"""Findings on the machine: memory, disk, limits and the model. And `examine`, which makes them all."""

from collections.abc import Callable, Iterator

from tinyzero_trainer.doctor.cluster_checks import check_nodes, check_ray
from tinyzero_trainer.doctor.consistency_checks import (
    check_alike,
    check_shared_directory,
)
from tinyzero_trainer.doctor.facts import Facts, Requirements
from tinyzero_trainer.doctor.finding import Finding, Level, as_size
from tinyzero_trainer.doctor.gpu_checks import check_driver, check_gpus, check_visibility
from tinyzero_trainer.doctor.interconnect_checks import check_links
from tinyzero_trainer.doctor.package_checks import check_imports, check_python, check_versions
from tinyzero_trainer.doctor.placement_checks import check_placement
from tinyzero_trainer.hardware.gpu import GIB

WEIGHT_BYTES = 4
"""Master weights are float32."""

TRAINED_COPIES = 4
"""Of the weights, in memory: themselves, their gradients and AdamW's two moments."""

SAVED_COPIES = 3
"""Of the weights, in a checkpoint: themselves and AdamW's two moments."""

LITTLE_DISK = 2 * GIB
"""Below it there is a warning even if the model's size is not known."""

ENOUGH_SHARED = GIB
"""What NCCL and Ray want of /dev/shm; Docker gives 64 MiB."""

_SHARED = "ls -lh /dev/shm"

FEW_FILES, ENOUGH_FILES = 1024, 4096
"""Open files: too few for anything, and enough for Ray."""

MANY_CORES = 8


def check_cores(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Cores against scoring processes."""
    cores, workers = facts.machine.cores, requirements.workers
    what = f"{cores} CPU {'core' if cores == 1 else 'cores'}, {workers} for scoring (reward.num_workers)"
    if workers > cores:
        yield Finding("cores", "warning", what, "lower it", (f"reward.num_workers={max(1, cores - 1)}",))
    elif workers == 1 and cores >= MANY_CORES:
        yield Finding("cores", "note", what, "if scoring takes long, raise it", (f"reward.num_workers={cores // 2}",))
    else:
        yield Finding("cores", "ok", what)


def check_memory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Main memory against what the model needs there."""
    machine, size = facts.machine, facts.model.size
    what = f"{as_size(machine.memory_free)} of {as_size(machine.memory)} memory free"
    if size is None or _makes_own(facts, requirements):
        yield Finding("memory", "ok", what)
        return
    need, doing = _main_memory(facts, requirements, size)
    if machine.memory_free >= need:
        yield Finding("memory", "ok", what)
        return
    what += f"; {doing} {facts.model.name} takes at least {as_size(need)}"
    others = "end other programs, or " if machine.memory >= need else ""
    if doing.startswith("memory.cpu_offload"):
        level: Level = "warning" if machine.memory >= need else "error"  # such memory cannot be swapped out
        do = f"{others}train an adapter (lora.rank=16), leave memory.cpu_offload out, or take a smaller --model"
        yield Finding("memory", level, what, do)
    else:
        yield Finding("memory", "warning", what, f"{others}take a smaller --model")


def _main_memory(facts: Facts, requirements: Requirements, size: int) -> tuple[int, str]:
    """Bytes that a model needs in main memory, and what for."""
    loading = WEIGHT_BYTES * size
    if requirements.address is not None:
        return loading, "loading"  # all else is where Ray puts it
    if requirements.device == "cpu" or not facts.torch.gpus:
        return loading * (TRAINED_COPIES * requirements.model_copies + requirements.frozen_copies), "training"
    if requirements.host_bytes > loading:
        return requirements.host_bytes, f"memory.cpu_offload={requirements.offload} for"
    return loading, "loading"  # for a GPU the weights are only read here


def _makes_own(facts: Facts, requirements: Requirements) -> bool:
    """Whether `train` makes a model for the task, a small one, in place of the tiny one."""
    return not requirements.names_model and requirements.device != "cpu" and bool(facts.torch.gpus)


def check_disk(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """The run directory against the checkpoints that will be in it: those kept, and the one being written."""
    output, parameters = facts.output, facts.model.size
    if not output.writable:
        do = "give --output a directory that you may write"
        yield Finding("disk", "error", f"{output.path} cannot be written", do)
        return
    what = f"{as_size(output.free)} free for {output.path}"
    if parameters is None:
        low = output.free < LITTLE_DISK
        do = "give --output a directory on a larger disk" if low else ""
        yield Finding("disk", "warning" if low else "ok", what, do)
        return
    each = WEIGHT_BYTES * parameters * SAVED_COPIES * requirements.model_copies
    need = each * (requirements.keep + 1)
    what += f"; {requirements.keep} checkpoints and the next take {as_size(need)}"
    if output.free < need:
        do = f"give --output a directory on a disk with {as_size(need)} free"
        fewer = ("checkpoint.keep=2",) if requirements.keep > 2 and output.free >= 3 * each else ()
        yield Finding("disk", "error", what, do + (", or keep fewer" if fewer else ""), fewer)
    else:
        yield Finding("disk", "ok", what)


def check_shared_memory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """/dev/shm, through which processes of several GPUs and Ray pass tensors."""
    size = facts.machine.shared_memory
    if size is None:
        return
    what, free = f"{as_size(size)} of shared memory (/dev/shm)", facts.machine.shared_memory_free
    if size >= ENOUGH_SHARED:
        if free is not None and free < ENOUGH_SHARED and len(facts.torch.gpus) > 1:
            what += f", {as_size(free)} free: too little for NCCL between several GPUs"
            yield Finding("shared memory", "warning", what, "delete what ended programs left there", (_SHARED,))
        else:
            yield Finding("shared memory", "ok", what)
        return
    do, command = ("start the container with more", "docker run --shm-size=16g …")
    if not facts.machine.container:
        do, command = ("make it larger", "sudo mount -o remount,size=16G /dev/shm")
    if len(facts.torch.gpus) > 1:
        what += ", too little for NCCL between several GPUs"
        yield Finding("shared memory", "error", what, do, (command,))
    elif any(package.name in ("ray", "vllm") for package in facts.packages):
        yield Finding("shared memory", "warning", f"{what}, too little for Ray and vLLM", do, (command,))
    else:
        yield Finding(
            "shared memory", "note", f"{what}: enough for one process, not for Ray or several GPUs", do, (command,)
        )


def check_open_files(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """The limit on open files."""
    soft, hard = facts.machine.open_files
    enough = ENOUGH_FILES if any(package.name == "ray" for package in facts.packages) else FEW_FILES
    what = f"at most {soft:,} open files"
    if soft >= enough:
        yield Finding("open files", "ok", what)
    elif hard >= enough:
        yield Finding(
            "open files", "warning", what, "raise the limit in this shell", (f"ulimit -n {min(hard, 65536)}",)
        )
    else:
        do = f"the system allows {hard:,}; raise nofile in /etc/security/limits.conf, or start the container with"
        yield Finding("open files", "warning", what, do, ("docker run --ulimit nofile=65536 …",))


def check_model(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether the model is here, or can come."""
    model, cache = facts.model, facts.hub_cache
    if _makes_own(facts, requirements):
        what = "no --model: train makes a small one for the task first, in about two minutes"
        yield Finding("model", "note", what, "give --model to train another; --model tiny is the one that comes along")
    elif model.fault is not None:
        commands = (model.fault.command,) if model.fault.command else ()
        yield Finding("model", "error", model.fault.what, model.fault.do, commands)
    elif model.parameters is not None:
        yield Finding("model", "ok", f"{model.name}: {_millions(model.parameters)} parameters")
    elif model.local:
        do = "give --model a directory with config.json, safetensors and tokenizer"
        yield Finding("model", "error", f"{model.name} holds no safetensors", do)
    elif facts.offline:
        what = f"{model.name} is not in {cache.path}, and HF_HUB_OFFLINE forbids downloads"
        do = "allow them, or bring the cache from a machine that may"
        yield Finding("model", "error", what, do, ("unset HF_HUB_OFFLINE", f"hf download {model.name}"))
    elif not cache.writable:
        do = "name a directory that you may write"
        yield Finding("model", "error", f"{cache.path} cannot be written", do, ("export HF_HOME=DIR",))
    else:
        what = f"{model.name} will be downloaded into {cache.path} ({as_size(cache.free)} free)"
        yield Finding(
            "model", "note", what, "fetch it now to see whether the Hub can be reached", (f"hf download {model.name}",)
        )


CHECKS: tuple[Callable[[Facts, Requirements], Iterator[Finding]], ...] = (
    check_python,
    check_imports,
    check_versions,
    check_driver,
    check_visibility,
    check_gpus,
    check_links,
    check_cores,
    check_memory,
    check_shared_memory,
    check_open_files,
    check_disk,
    check_model,
    check_ray,
    check_nodes,
    check_alike,
    check_shared_directory,
    check_placement,
)
"""In the order in which they are shown."""


def examine(facts: Facts, requirements: Requirements) -> tuple[Finding, ...]:
    """Everything that there is to say about a machine, in the order of `CHECKS`."""
    return tuple(finding for check in CHECKS for finding in check(facts, requirements))


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
