"""The user's loss function as engines take it: by the batch's tensors, its buffers changed once a step.

Engines remember a loss function by what it is, so the same one comes out at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from hush.arguments import check_size
from hush.buffers import Once
from hush.gradients.check import refuse_memories

Losses = Callable[..., Tensor]


class Prepared:
    """Makes the loss functions of a model's steps ready."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._flattened: tuple[Losses, Any, Losses] | None = None
        self._changing: list[Tensor] = []  # buffers that every pass changes
        self._looked = False  # on two examples or more: until then again at every batch
        self._once: Once | None = None

    def ready(self, losses: Losses, batch: Sequence[Any], size: int) -> tuple[Losses, list[Any]]:
        """The loss function of a step's batch of `size` examples, and the batch's tensors."""
        if all(isinstance(part, Tensor) for part in batch):
            leaves, on_leaves = list(batch), losses
        else:
            leaves, shape = tree_flatten(batch)
            on_leaves = self._on_leaves(losses, shape)
        check_size(leaves, size)
        if not self._looked:
            self._changing, self._looked = refuse_memories(self._model, on_leaves, leaves), size > 1
        if self._changing:
            if self._once is None or self._once.losses is not on_leaves:
                self._once = Once(on_leaves, self._changing)
            self._once.begin(leaves, size)
            return self._once, leaves
        return on_leaves, leaves

    def _on_leaves(self, losses: Losses, shape: Any) -> Losses:
        if self._flattened is None or self._flattened[0] is not losses or self._flattened[1] != shape:
            self._flattened = (losses, shape, lambda *leaves: losses(*tree_unflatten(leaves, shape)))
        return self._flattened[2]
