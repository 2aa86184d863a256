"""The terms of a sum over features: the largest ones, and the shares of features, of the error and of everything else."""

import re
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.running.feature_components import ERROR_NAME, OTHER_NAME

FEATURE_NAME = re.compile(rf"f\d+|{re.escape(OTHER_NAME)}")
"""The name of a feature, or of the active features that share a part."""


def shares_of_pairs(
    contributions: Float[Tensor, "from to"], from_names: list[str], to_names: list[str]
) -> dict[str, Float[Tensor, ""]]:
    """The shares of a sum over pairs: pairs of two features, pairs with an error on a side, and all others."""
    from_feature, to_feature = _is_feature(from_names), _is_feature(to_names)
    from_error, to_error = _is_error(from_names), _is_error(to_names)
    return _shares(contributions, from_feature[:, None] & to_feature, from_error[:, None] | to_error)


def shares_of_parts(contributions: Float[Tensor, " c"], names: list[str]) -> dict[str, Float[Tensor, ""]]:
    """The shares of a sum over parts: features, the error, and all others.

    >>> shares_of_parts(torch.tensor([1.0, 2.0, 1.0]), ["f3", "features.error", "L2.mlp"])["error_share"].item()
    0.5
    """
    return _shares(contributions, _is_feature(names), _is_error(names))


def largest_pairs(
    contributions: Float[Tensor, "from to"], from_names: list[str], to_names: list[str], top: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The largest terms of a sum over pairs with their shares, and their names as coordinates."""
    flat = contributions.flatten()
    order = flat.abs().argsort(descending=True, stable=True)[:top]
    values = {"largest": flat[order], "largest_share": flat[order] / flat.sum()}
    pairs = [divmod(index, len(to_names)) for index in order.tolist()]
    names = [from_names[a] for a, _ in pairs], [to_names[b] for _, b in pairs]
    return values, {
        "term": [f"{a} × {b}" for a, b in zip(*names, strict=True)],
        "term_from": ("term", names[0]),
        "term_to": ("term", names[1]),
    }


def _shares(contributions: Tensor, is_feature: Bool[Tensor, "*c"], is_error: Bool[Tensor, "*c"]) -> dict[str, Tensor]:
    kinds = {"feature_share": is_feature, "error_share": is_error, "rest_share": ~is_feature & ~is_error}
    return {
        name: contributions[mask.to(contributions.device)].sum() / contributions.sum() for name, mask in kinds.items()
    }


def _is_feature(names: list[str]) -> Bool[Tensor, " c"]:
    return torch.tensor([FEATURE_NAME.fullmatch(name) is not None for name in names])


def _is_error(names: list[str]) -> Bool[Tensor, " c"]:
    return torch.tensor([name == ERROR_NAME for name in names])
