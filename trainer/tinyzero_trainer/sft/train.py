"""Supervised fine-tuning of a pretrained model or of a new decoder, on examples of tasks or of a file.

Reinforcement learning finds nothing in a model that never succeeds: examples show it how an attempt is written. Those
of a task may be fallible; reinforcement learning corrects what they get wrong.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from math import ceil

from safetensors import SafetensorError

from tinyzero_sdk import Task
from tinyzero_sdk.console import percent, plural
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.workers.process import count_cores
from tinyzero_trainer.checkpoint.run_directory import RunDirectory, RunDirectoryError, errors_in_one_line
from tinyzero_trainer.config import SftConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.sft import DEFAULT_EPOCHS, DEFAULT_STEPS
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.ending import TrainResult
from tinyzero_trainer.controller.loop import take_steps
from tinyzero_trainer.controller.session import Session, open_session
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.kinds import find_executor
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import from_parts, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.sft.batches import Batches, batch_stream, prepare_workers
from tinyzero_trainer.sft.examples import Encoder
from tinyzero_trainer.sft.file_examples import ExampleFile
from tinyzero_trainer.sft.step import SftEvaluation, SftStep, accuracy_of

MAX_WORKERS = 4
FILE = "data.path"
"""Name of the file's examples in the state of a run."""


def fine_tune(
    config: SftConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Fine-tune by a resolved configuration; arguments and errors are those of `tinyzero_trainer.fine_tune`."""
    with open_fine_tuning(config, resume=resume, tasks=tasks, progress=progress) as (session, step, evaluation):
        return take_steps(session, step, evaluation)


@contextmanager
def open_fine_tuning(
    config: SftConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Session, SftStep, SftEvaluation]]:
    """The session of `fine_tune`, and what it repeats."""
    compose({}, config.settings, needs_task=False)  # impossible settings stop here, not in the run that uses them
    if tasks is None:
        wrappers = config.workers_config.wrappers_with_limit()
        tasks = load_tasks(config.task_specs, wrappers=wrappers, allow_unsafe_scorers=config.reward.allow_unsafe)
    num_workers = _num_workers(config)
    if num_workers:
        prepare_workers()
    with progress or Progress() as display:
        file = None
        if config.data.path is not None:  # its faults are found before a model is loaded
            display.phase(f"reading {config.data.path}")
            file = ExampleFile(config.data.path, config, tasks)
            count = len(file.held_out[1])
            hint = "" if count else "; a held-out loss takes data.test_path, or a larger data.test_fraction"
            display.log(f"{len(file.places):,} examples to learn from, {count:,} held out{hint}")
        if config.run.steps is None and config.run.seconds is None:
            config = replace(config, run=replace(config.run, steps=_steps(config, file, display), epochs=None))
        if config.model.path is None and not resume:
            _make_new_model(config)

        with open_session(config.workers_config, config, display, resume=resume, tasks=tasks) as session:
            state, workers, model = session.state, session.workers, session.workers.language_model
            if file is not None:
                saved = state.progress.setdefault(FILE, StreamState(data_version=file.version))
                if saved.data_version != file.version:
                    raise SettingsError(
                        f"{file.path} has changed since the checkpoint was saved; restore it, or start a run in "
                        "another --output"
                    )
            data = replace(config.data, max_length=min(config.data.max_length, model.context))
            encoder = Encoder(model.tokenizer, model.eos_ids)
            batches = Batches(replace(config, data=data), tasks, encoder, file, state.step)
            display.phase("making held-out examples")
            held_out = [
                example for source in batches.sources() for example in source.held_out(config.eval.num_problems)
            ]
            if file is not None and len(file.held_out[1]) and not held_out:
                display.warn(f"all held-out examples are longer than {data.max_length:,} tokens: no loss is measured")
            right = accuracy_of(held_out, tasks) if file is None or file.asks_tasks else {}
            for name, fraction in right.items():
                little = "; reinforcement learning can choose among attempts that differ (docs/reference/hooks.md)"
                display.log(f"{percent(fraction)} of the examples of {name} are right{little if fraction == 1 else ''}")
            evaluation = SftEvaluation(
                *(session.config, workers, session.eval_tasks, session.stop, held_out, right),
                is_new=config.model.path is None,
            )
            with closing(batch_stream(batches, num_workers)) as stream:
                yield session, SftStep(config, workers, stream, state), evaluation


def _steps(config: SftConfig, file: ExampleFile | None, display: Progress) -> int:
    """The steps of `run.epochs`, where neither steps nor seconds are given."""
    if file is None:
        return DEFAULT_STEPS
    epochs, count, size = config.run.epochs or DEFAULT_EPOCHS, len(file.places), config.data.batch_size
    if count < size:
        display.warn(f"data.batch_size={size} is more than the {plural(count, 'example')}; give less, for more steps")
    steps = ceil(epochs * count / size)
    display.log(f"{plural(epochs, 'epoch')} = {plural(steps, 'step')}")
    return steps


def _make_new_model(config: SftConfig) -> None:
    """Save a decoder with random weights as the starting model, whole or not at all."""
    directory = config.new_model_directory
    aside = directory.with_name("new_model.tmp")
    with RunDirectory.open(config.run.output):  # another process may be training from the model that is there
        tokenizer = build_tokenizer()
        model = build_model(config.new_model, tokenizer, derive_seed("weights", config.run.seed))
        try:
            with errors_in_one_line(directory):
                save_model(aside, from_parts("a new decoder", model, tokenizer))
                if directory.exists():
                    shutil.rmtree(directory)
                aside.rename(directory)
        except SafetensorError as error:  # of the system, as on a full disk
            raise RunDirectoryError(f"cannot write {directory}: {first_line(error)}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _num_workers(config: SftConfig) -> int:
    if config.data.num_workers is not None:
        return config.data.num_workers
    own_processes = find_executor(config.run.executor).own_processes
    on_gpu = config.ray.gpus > 0 if own_processes else choose_device(config.run.device).type == "cuda"
    return min(MAX_WORKERS, max(1, count_cores() - 1)) if on_gpu and config.data.path is None else 0
