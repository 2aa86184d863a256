"""Initial embeddings from token features, for tasks whose tokens are points of a plane or image patches."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.models.linear_maps import Embedding


@runtime_checkable
class HasTokenFeatures(Protocol):
    """A task with features of its tokens: one row per id, zeros for tokens without features."""

    def token_features(self) -> Float[Tensor, "v f"]: ...


@torch.no_grad()
def init_embedding(model: nn.Module, task: object) -> None:
    """Initialise the embedding as a linear map of the token features. Afterwards every row is trained freely.

    **Formula** W_E ← K W, where K (vocabulary, f) are the features and W the first f rows of W_E as drawn. Tokens without
    features, and models of tasks without features, stay unchanged.

    **Laws** The result is a function of the drawn weights. Models that start with equal weights get equal embeddings.

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
