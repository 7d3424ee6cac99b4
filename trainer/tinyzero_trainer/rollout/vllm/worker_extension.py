"""An extension of vLLM's worker that loads new weights. Imported only in the engine's process.

client.py sends them, in the messages of weight_transfer.py. vLLM mixes the class into its own worker, hence the prefix
of the methods' names.
"""

from typing import Any

import torch
from torch import Tensor

from tinyzero_trainer.rollout.vllm.parent_watchdog import exit_with_trainer
from tinyzero_trainer.rollout.vllm.weight_transfer import unpacked

exit_with_trainer()  # this module is the first of ours that the process imports, before it allocates anything


class WeightReceiver:
    """Methods for `collective_rpc`."""

    def tinyzero_receive(self, message: bytes) -> None:
        """Load the weights of a message from `weight_transfer.packed` in another process of this machine."""
        with unpacked(message) as weights:
            self.tinyzero_load(weights)

    def tinyzero_load(self, weights: list[tuple[str, Tensor]]) -> None:
        """Load weights by the names of the plain transformers model; on a CPU all of them at once."""
        worker: Any = self
        with torch.no_grad():
            if worker.device.type == "cpu":
                # Its kernels use reordered copies of the matrices, which loading into the model alone would not update.
                worker.reload_weights(weights_iterator=iter(weights))
            else:
                worker.get_model().load_weights(weights)
                torch.cuda.synchronize()  # the sender writes over them when this returns
