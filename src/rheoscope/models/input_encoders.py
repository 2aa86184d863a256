"""What a task knows of its tokens before anything is learned, where they are more than names: points of a plane, patches of an image."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.models.transformer import Embedding


@runtime_checkable
class HasTokenFeatures(Protocol):
    """A task whose tokens are known by numbers: a row for each id, of zeros where nothing is known."""

    def token_features(self) -> Float[Tensor, "v f"]: ...


@torch.no_grad()
def init_embedding(model: nn.Module, task: object) -> None:
    """Let the embedding begin as a linear map of what a task knows of its tokens; afterwards every row learns by itself.

    **Formula** W_E ← K W, K (vocabulary, f) what is known and W the first f rows of W_E as they were drawn. Tokens of which
    nothing is known, and models of tasks that know nothing, stay as they were.

    **Laws** a function of the drawn weights: what starts alike goes on alike, whatever the way to attend.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Numbers:
    ...     def token_features(self):
    ...         return torch.tensor([[1.0], [2.0], [0.0]])
    >>> model = nn.ModuleDict({"embed": Embedding(3, 2)})
    >>> init_embedding(model, Numbers())
    >>> torch.equal(model["embed"].weight[1], 2 * model["embed"].weight[0])
    True
    """
    if not isinstance(task, HasTokenFeatures):
        return
    for module in model.modules():
        if isinstance(module, Embedding):
            K = task.token_features().to(module.weight)
            has_features = (K != 0).any(-1, keepdim=True)
            module.weight.copy_(torch.where(has_features, K @ module.weight[: K.shape[1]], module.weight))
