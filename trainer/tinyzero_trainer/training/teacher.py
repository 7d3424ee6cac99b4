"""The teacher of on-policy distillation: a frozen model with the policy's tokenizer, which scores its completions."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tinyzero_trainer.distributed.fsdp import on_device, ranks_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.logprobs import PolicyModel, TokenStatistics, frozen
from tinyzero_trainer.training.micro_batches import MicroBatch, in_batch_order
from tinyzero_trainer.training.packing import splitter
from tinyzero_trainer.types import Rollout


class Teacher:
    """A model of any size and architecture; over several ranks as the policy is."""

    def __init__(self, language_model: LanguageModel, token_budget: int) -> None:
        """`language_model` is sharded already if it ever is; `token_budget` is that of a micro-batch."""
        self.model, self._pad_id = PolicyModel.of(language_model.model), language_model.pad_id
        self._rows: int = language_model.model.config.get_text_config().vocab_size
        self.micro_batch_tokens = token_budget
        self._split = splitter(language_model, self.model, "auto")

    def logprobs(self, rollouts: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log-probability of every sampled token."""
        ranks = ranks_of(self.model)

        def logprobs(batch: MicroBatch) -> Tensor:
            # The policy's embedding may be padded to more rows: a token beyond the teacher's counts as padding.
            tokens, targets = (ids.where(ids < self._rows, self._pad_id) for ids in (batch.tokens, batch.targets))
            batch = replace(batch, tokens=tokens, targets=targets)
            statistics: TokenStatistics = self.model(batch, temperature=temperature)
            return statistics.logprobs

        with frozen(self.model.body), on_device(self.model):
            batches = self._split(rollouts, token_budget=self.micro_batch_tokens, ranks=ranks)
            return in_batch_order(batches, logprobs, rollouts, ranks)
