"""The sampler behind `tinyzero eval` with a model on this machine; what it evaluates is decided in eval_config.py."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tinyzero_sdk import Completion, Task
from tinyzero_sdk.evaluation.protocol import EvaluationRequest, Keep, Problem
from tinyzero_sdk.records import Json
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.data.prompts import PromptSource
from tinyzero_trainer.data.tokenization import decode_texts
from tinyzero_trainer.executors.local.build import build_local_engine
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.hub import architecture
from tinyzero_trainer.models.loading import load_model
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.build import require_engine
from tinyzero_trainer.rollout.generation import generate
from tinyzero_trainer.rollout.torch.cost_model import FEW_SEQUENCES
from tinyzero_trainer.utils.bounds import unless_auto
from tinyzero_trainer.utils.oom import catch_out_of_memory


class LocalSampler:
    """A `Sampler` of problems in groups, each with a seed derived from its place: resuming changes no completion."""

    def __init__(
        self, config: TrainConfig, task: Task, request: EvaluationRequest, report: Callable[[str], None]
    ) -> None:
        device = choose_device(config.run.device)
        require_engine(config, device, partial(architecture, config.model.path))
        with catch_out_of_memory("the model was loaded", "take a smaller model or a GPU with more memory"):
            self._model = load_model(config.model.path, device)
            self._engine = build_local_engine(config, self._model, report)
        template, longest = config.data.prompt_template, config.data.max_prompt_tokens
        self._prompts = PromptSource(task, self._model.tokenizer, prompt_template=template, max_prompt_tokens=longest)
        self._params = SamplingParams(config.rollout.max_completion_tokens, request.temperature, request.top_p)
        self._samples, self._seed = request.samples, config.run.seed
        max_num_seqs = unless_auto(config.rollout.max_num_seqs) or FEW_SEQUENCES
        self._group_size = max(1, max_num_seqs // request.samples)
        self.template = self._prompts.template
        # A problem's completions depend on its seed and on which others are sampled with it.
        self.settings: Mapping[str, Json] = {"max_num_seqs": max_num_seqs}

    def sample(self, problems: Sequence[Problem], keep: Keep, advance: Callable[[int], None]) -> None:
        """Sample what is missing of each problem, a group of problems at a time."""
        fewer = f"give rollout.max_num_seqs={self._group_size * self._samples // 2} and another --output"
        advice = fewer if self._group_size > 1 else "ask for fewer samples, or take a smaller model"
        for start in range(0, len(problems), self._group_size):
            group = problems[start : start + self._group_size]
            if not any(problem.missing for problem in group):
                continue
            prompts = [self._prompts.prompt(problem.item) for problem in group]
            generated = generate(
                self._model,
                self._engine,
                prompts,
                self._samples,
                self._params,
                seed=derive_seed("evaluation", self._seed, start),
                on_progress=advance,
                oom_advice=advice,
            )
            texts = decode_texts(self._model.tokenizer, [generation.token_ids for _, generation in generated])
            for index, (text, (_, generation)) in enumerate(zip(texts, generated, strict=True)):
                completion = Completion(text, len(generation.token_ids), generation.finished)
                keep(group[index // self._samples], index % self._samples, completion)
