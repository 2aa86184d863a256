"""Clusters of tokens that chains of near pairs connect."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def linked(cosine: Float[Tensor, "n n"], angle: float) -> Int[Tensor, " n"]:
    """Components of the graph of near pairs, each named by its first token: labels flow along links until none changes."""
    i, j = (cosine >= math.cos(angle)).tril(-1).nonzero().unbind(-1)
    label = torch.arange(len(cosine), device=cosine.device)
    while True:
        along = label[torch.cat([i, j])]
        least = label.scatter_reduce(0, torch.cat([j, i]), along, "amin")
        least = least[least]  # jump on: chains of n links need log n rounds
        if torch.equal(least, label):
            return label
        label = least
