"""Findings on memory, disk, limits and the model of this machine. And `examine`, which collects all findings."""

from collections.abc import Iterator

from tinyzero_trainer.doctor import cluster_checks, gpu_checks, package_checks
from tinyzero_trainer.doctor.cluster_checks import ENOUGH_SHARED, SHARED_FOR
from tinyzero_trainer.doctor.facts import Facts, Finding, Level, Requirements, as_size
from tinyzero_trainer.hardware.gpu import GIB

WEIGHT_BYTES = 4  # master weights are float32
TRAINED_COPIES = 4  # of the weights, in memory: themselves, their gradients and AdamW's two moments
SAVED_COPIES = 3  # of the weights, in a checkpoint: themselves and AdamW's two moments
LOW_DISK = 2 * GIB  # below it there is a warning even if the model's size is not known


def check_memory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Host memory for the weights, and on the CPU for what is trained; memory.cpu_offload is for `tinyzero plan`."""
    machine, model, here = facts.machine, facts.model, requirements.address is None
    need, purpose = WEIGHT_BYTES * (model.size or 0), "loading"
    if here and (requirements.device == "cpu" or not facts.torch.gpus):
        need *= TRAINED_COPIES * requirements.trained_models + requirements.frozen_models
        purpose = "training"
    what = f"{as_size(machine.memory_free)} of {as_size(machine.memory)} memory free"
    if machine.memory_free >= need or _makes_model(facts, requirements):
        yield Finding("memory", "ok", what)
        return
    what += f"; {purpose} {model.name} takes at least {as_size(need)}"
    yield Finding("memory", "warning", what, "end other programs, or take a smaller --model")


def _makes_model(facts: Facts, requirements: Requirements) -> bool:
    """Whether `train` makes a small model for the task; on the CPU it takes the tiny one."""
    return not requirements.names_model and requirements.device != "cpu" and bool(facts.torch.gpus)


def check_disk(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    output, parameters, keep = facts.output, facts.model.size, requirements.keep
    what = f"{as_size(output.free)} free for {output.path}"
    if not output.writable:
        yield Finding("disk", "error", f"{output.path} is not writable", "give --output a directory that is")
    elif parameters is None:
        low = output.free < LOW_DISK
        do = "give --output a directory on a larger disk" if low else ""
        yield Finding("disk", "warning" if low else "ok", what, do)
    else:
        need = WEIGHT_BYTES * parameters * SAVED_COPIES * requirements.trained_models * (keep + 1)
        what += f"; {keep} checkpoints and the next take {as_size(need)}"
        if output.free >= need:
            yield Finding("disk", "ok", what)
            return
        do = f"give --output a directory on a disk with {as_size(need)} free, or keep fewer (checkpoint.keep)"
        yield Finding("disk", "error", what, do)


def check_shared_memory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """/dev/shm, through which the processes of several GPUs and of Ray pass tensors."""
    machine = facts.machine
    if machine.shared_memory is None:
        return
    what = f"{as_size(machine.shared_memory)} of shared memory (/dev/shm)"
    if machine.shared_memory >= ENOUGH_SHARED:
        yield Finding("shared memory", "ok", what)
        return
    users = facts.installed.keys() & {"ray", *package_checks.ENGINES}
    level: Level = "error" if len(facts.torch.gpus) > 1 else "warning" if users else "note"
    what += f", too little for {SHARED_FOR[level]}" if level in SHARED_FOR else ""
    do, command = "make it larger", "sudo mount -o remount,size=16G /dev/shm"
    if machine.container:
        do, command = "start the container with more", "docker run --shm-size=16g …"
    yield Finding("shared memory", level, what, do, (command,))


def check_model(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether the model is here and intact, or can be downloaded."""
    model, cache = facts.model, facts.hub_cache
    if _makes_model(facts, requirements):
        what = "no --model: train first makes a small one for the task, in about two minutes"
        do = "give --model to train another; --model tiny is the one that comes with the trainer"
        yield Finding("model", "note", what, do)
    elif model.fault is not None:
        yield Finding("model", "error", model.fault.what, model.fault.do, model.fault.commands)
    elif model.parameters is not None:
        count = model.parameters
        size = f"{count / 1e9:.1f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"
        yield Finding("model", "ok", f"{model.name}: {size} parameters")
    elif facts.offline:
        what = f"{model.name} is not in {cache.path}, and HF_HUB_OFFLINE forbids downloads"
        do = "allow them, or copy the cache from a machine that has it"
        yield Finding("model", "error", what, do, ("unset HF_HUB_OFFLINE", f"hf download {model.name}"))
    elif not cache.writable:
        what = f"{cache.path} is not writable"
        yield Finding("model", "error", what, "name a directory that is", ("export HF_HOME=DIR",))
    else:
        what = f"{model.name} will be downloaded into {cache.path} ({as_size(cache.free)} free)"
        do = "download it now to see whether the Hugging Face Hub can be reached"
        yield Finding("model", "note", what, do, (f"hf download {model.name}",))


CHECKS = (
    *package_checks.CHECKS,
    *gpu_checks.CHECKS,
    *(check_memory, check_shared_memory, check_disk, check_model),
    *cluster_checks.CHECKS,
)
"""In the order in which they are shown."""


def examine(facts: Facts, requirements: Requirements) -> tuple[Finding, ...]:
    return tuple(finding for check in CHECKS for finding in check(facts, requirements))
