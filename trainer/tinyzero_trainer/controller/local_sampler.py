"""Models on this machine, for `tinyzero eval`: what the user asked for as a plan, and the sampler that carries it out.

The command itself, its output file and the scoring belong to the SDK. No torch before a model is opened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tinyzero_sdk import Completion, Task
from tinyzero_sdk.evaluation.protocol import EvaluationPlan, EvaluationRequest, Keep, Problem, Sampler
from tinyzero_sdk.records import Json
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.utils.startup import without_collector

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_trainer.rollout import SamplingParams


class LocalModels:
    """See `tinyzero_sdk.evaluation.protocol.LocalModels`."""

    def plan(self, request: EvaluationRequest) -> EvaluationPlan:
        """How to evaluate a model of transformers', or the tiny one that comes with the trainer.

        Raises:
            SettingsError: a setting is unknown, has no effect here, or does not fit.
        """
        from tinyzero_trainer.config.compose import gather
        from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of
        from tinyzero_trainer.controller.eval_config import evaluation_config
        from tinyzero_trainer.utils.threads import calm_threads

        flags = {
            "run.task": request.task,
            "run.seed": request.seed,
            "model.path": request.model,
            "data.prompt_template": request.template,
            "data.test_fraction": request.test_fraction,
            "eval.num_problems": request.size,
            "rollout.max_completion_tokens": request.max_tokens,
        }
        config = evaluation_config(gather(TrainConfig, flags, request.overrides))
        (task,) = load_tasks(
            config.task_specs,
            allow_unsafe_scorers=request.allow_unsafe_scorers,
        ).values()
        calm_threads()
        return EvaluationPlan(
            task=task,
            model=str(directory_of(config.model.path) or TINY_MODEL),
            opener=lambda: _open(config, task, request),
            size=config.eval.num_problems,
            test_fraction=config.data.test_fraction,
            split=request.split,
            samples=request.samples,
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=config.rollout.max_completion_tokens,
            seed=config.run.seed,
            workers=config.reward.num_workers,
            timeout=config.reward.timeout,
            memory_limit_gb=config.reward.memory_limit_gb,
        )

    def key_help(self) -> "Iterable[RenderableType]":
        """The keys of the configuration that bear on an evaluation."""
        from tinyzero_trainer.config.help import key_help
        from tinyzero_trainer.controller.eval_config import EVALUATION_KEYS

        return key_help(TrainConfig, only=EVALUATION_KEYS)


@contextmanager
def _open(config: TrainConfig, task: Task, request: EvaluationRequest) -> Iterator[Sampler]:
    from tinyzero_trainer.monitoring.progress import Progress

    with Progress() as display:
        display.phase("loading PyTorch")
        with without_collector():
            from tinyzero_trainer.rollout import SamplingParams
            from tinyzero_trainer.utils.oom import catch_out_of_memory

        display.phase("loading the model")
        params = SamplingParams(config.rollout.max_completion_tokens, request.temperature, request.top_p)
        with catch_out_of_memory("the model was loaded", "take a smaller model or a card with more memory"):
            sampler = LocalSampler(config, task, params, samples=request.samples, note=display.log)
    yield sampler


class LocalSampler:
    """See `tinyzero_sdk.evaluation.protocol.Sampler`.

    Problems are taken in groups, each with a seed of its own, so that an evaluation that goes on gives what one that
    was never stopped gives.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        params: "SamplingParams",
        *,
        samples: int,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            config: names the model and its device; of `run.seed` the sampling derives.
            task: whose prompts are worded.
            params: how to draw.
            samples: completions of each problem.
            note: is told of what the user should know.
        """
        from tinyzero_trainer.data.prompts import PromptSource
        from tinyzero_trainer.executors.local import build_local_engine
        from tinyzero_trainer.models.device import choose_device
        from tinyzero_trainer.models.loading import load_model
        from tinyzero_trainer.rollout.build import FEW_SEQUENCES

        self._model = load_model(config.model.path, choose_device(config.run.device))
        self._config, self._engine = config, build_local_engine(config, self._model, note)
        self._prompts = PromptSource(task, self._model.tokenizer, config.data)
        self._params, self._samples, self._seed = params, samples, config.run.seed
        most = config.rollout.max_num_seqs or FEW_SEQUENCES
        self._at_a_time = max(1, most // samples)
        self.template = self._prompts.template
        # What a problem's draw depends on beside its own seed: which others are drawn with it.
        self.settings: Mapping[str, Json] = {"max_num_seqs": most}

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """See `Sampler`.

        Raises:
            ModelError: a prompt and the longest completion do not fit into the model's context.
        """
        for start in range(0, len(problems), self._at_a_time):
            group = problems[start : start + self._at_a_time]
            if any(problem.missing for problem in group):
                self._sample_group(group, derive_seed("evaluation", self._seed, start), keep, advance)

    def _sample_group(self, group: Sequence[Problem], seed: int, keep: Keep, advance: Callable[[int], None]) -> None:
        from tinyzero_trainer.data.tokenization import decode_texts
        from tinyzero_trainer.rollout.generate import check_context, generate
        from tinyzero_trainer.utils.oom import catch_out_of_memory

        prompts = [self._prompts.word(problem.item) for problem in group]
        check_context(self._model, prompts, self._params.max_tokens)
        fewer = f"give rollout.max_num_seqs={self._at_a_time * self._samples // 2} and another --output"
        advice = fewer if self._at_a_time > 1 else "ask for fewer samples, or take a smaller model"
        with catch_out_of_memory("completions were generated", advice):
            generated = generate(self._engine, prompts, self._samples, self._params, seed=seed, on_progress=advance)
        texts = decode_texts(self._model.tokenizer, [generation.token_ids for _, generation in generated])
        for index, (text, (_, generation)) in enumerate(zip(texts, generated, strict=True)):
            completion = Completion(text, len(generation.token_ids), generation.finished)
            keep(group[index // self._samples], index % self._samples, completion)
