"""Masked sums and means over the tokens of many texts in one padded tensor.

`valid` (b, n), or (n) for one text, is True for tokens that count; None means all, which costs nothing.
Values at other tokens are never used: they may be anything, even NaN.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

ValidTokens = Bool[Tensor, "*b n"] | None


def broadcast_mask(valid: Bool[Tensor, "*b n"], x: Shaped[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """`valid` with as many axes as a table whose last axis is tokens."""
    return valid.reshape(*valid.shape[:-1], *(1,) * (x.ndim - valid.ndim), valid.shape[-1])


def fill_invalid(x: Float[Tensor, "*m n"], valid: ValidTokens, fill_value: float = 0) -> Float[Tensor, "*m n"]:
    """The table with `fill_value` at invalid tokens.

    >>> fill_invalid(torch.tensor([[1.0, 2.0]]), torch.tensor([[True, False]]), torch.nan).tolist()
    [[1.0, nan]]
    """
    return x if valid is None else torch.where(broadcast_mask(valid, x), x, fill_value)


def zero_invalid_rows(x: Float[Tensor, "*m n d"], valid: ValidTokens) -> Float[Tensor, "*m n d"]:
    """Clouds with 0 at invalid tokens.

    >>> zero_invalid_rows(torch.tensor([[1.0, 2.0], [torch.nan, 3.0]]), torch.tensor([True, False])).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    if valid is None:
        return x
    if valid.ndim == 1 and not x.is_cuda:  # a fraction of the time; on a GPU the list of tokens would be a wait
        return x.index_fill(-2, (~valid).nonzero()[:, 0], 0)
    return torch.where(broadcast_mask(valid, x[..., 0])[..., None], x, 0)


def valid_counts(x: Float[Tensor, "*m n"], valid: ValidTokens) -> Tensor | int:
    """The number of valid tokens per text, as a denominator."""
    return x.shape[-1] if valid is None else broadcast_mask(valid, x).sum(-1)


def masked_mean(x: Float[Tensor, "*m n"], valid: ValidTokens) -> Float[Tensor, "*m"]:
    """The mean over valid tokens.

    >>> masked_mean(torch.tensor([[1.0, 3.0, torch.nan]]), torch.tensor([[True, True, False]])).tolist()
    [2.0]
    """
    return x.mean(-1) if valid is None else fill_invalid(x, valid).sum(-1) / valid_counts(x, valid)


def centre_points(x: Float[Tensor, "b n d"], valid: ValidTokens) -> Float[Tensor, "b n d"]:
    """Clouds minus their means; 0 at invalid tokens."""
    if valid is None:
        return x - x.mean(-2, keepdim=True)
    x = zero_invalid_rows(x, valid)
    return zero_invalid_rows(x - x.sum(-2, keepdim=True) / valid.sum(-1)[..., None, None], valid)
