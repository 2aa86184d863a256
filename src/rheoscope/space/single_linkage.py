"""Single-linkage clusters of tokens: chains of similar pairs."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def single_linkage_labels(cosine: Float[Tensor, "n n"], angle: float) -> Int[Tensor, " n"]:
    """Connected components of the graph of pairs within `angle`, labelled by their first token; labels propagate to a fixpoint."""
    i, j = (cosine >= math.cos(angle)).tril(-1).nonzero().unbind(-1)
    label = torch.arange(len(cosine), device=cosine.device)
    while True:
        neighbour_labels = label[torch.cat([i, j])]
        smallest = label.scatter_reduce(0, torch.cat([j, i]), neighbour_labels, "amin")
        smallest = smallest[smallest]  # pointer jumping: chains of n links need log n rounds
        if torch.equal(smallest, label):
            return label
        label = smallest
