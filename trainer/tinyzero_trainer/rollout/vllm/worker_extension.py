"""Within vLLM's worker: takes new weights. Imported by the engine's process, and by no other module here.

What sends them is weight_transfer.py. vLLM mixes the class into its own worker, so its methods' names begin with ours.
"""

from typing import Any

import torch
from torch import Tensor

from tinyzero_trainer.rollout.vllm.parent_watchdog import end_with_the_trainer
from tinyzero_trainer.rollout.vllm.weight_transfer import opened

end_with_the_trainer()  # the import is the first of ours that the process comes to, long before it has anything to do


class WeightReceiver:
    """What `collective_rpc` may call beside vLLM's own methods."""

    def tinyzero_receive(self, parcel: bytes) -> None:
        """Load the weights of a parcel that `transfer.wrapped` made in another process of this machine."""
        with opened(parcel) as weights:
            self.tinyzero_load(weights)

    def tinyzero_load(self, weights: list[tuple[str, Tensor]]) -> None:
        """Load weights by the names of the plain transformers model; all of it at once, unless on a GPU."""
        worker: Any = self
        with torch.no_grad():
            if worker.device.type == "cpu":
                # Its kernels have the matrices in another order, which loading into the model alone would not renew.
                worker.reload_weights(weights_iterator=iter(weights))
            else:
                worker.get_model().load_weights(weights)
                torch.cuda.synchronize()  # the sender writes over them when this returns
