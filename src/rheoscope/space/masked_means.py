"""Numbers of many texts side by side, of which some tokens do not count: sums, means and gaps.

`there` (b, n), or (n) of one text, is True where a token counts, None where all do, so that nothing is done for texts without gaps.
What stands where a token does not count is never read: it may be anything, NaN too.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

There = Bool[Tensor, "*b n"] | None


def along(there: Bool[Tensor, "*b n"], x: Shaped[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """`there`, with as many axes as a table whose last one is tokens."""
    return there.reshape(*there.shape[:-1], *(1,) * (x.ndim - there.ndim), there.shape[-1])


def kept(x: Float[Tensor, "*m n"], there: There, other: float = 0) -> Float[Tensor, "*m n"]:
    """The table with `other` in the place of tokens that do not count.

    >>> kept(torch.tensor([[1.0, 2.0]]), torch.tensor([[True, False]]), torch.nan).tolist()
    [[1.0, nan]]
    """
    return x if there is None else torch.where(along(there, x), x, other)


def kept_rows(x: Float[Tensor, "*m n d"], there: There) -> Float[Tensor, "*m n d"]:
    """Clouds with 0 in the place of tokens that do not count."""
    return x if there is None else torch.where(along(there, x[..., 0])[..., None], x, 0)


def counts(x: Float[Tensor, "*m n"], there: There) -> Tensor | int:
    """How many tokens of each text count, to divide by."""
    return x.shape[-1] if there is None else along(there, x).sum(-1)


def mean(x: Float[Tensor, "*m n"], there: There) -> Float[Tensor, "*m"]:
    """The mean over the tokens that count.

    >>> mean(torch.tensor([[1.0, 3.0, torch.nan]]), torch.tensor([[True, True, False]])).tolist()
    [2.0]
    """
    return x.mean(-1) if there is None else kept(x, there).sum(-1) / counts(x, there)


def centred(x: Float[Tensor, "b n d"], there: There) -> Float[Tensor, "b n d"]:
    """Clouds seen from their means; 0 where a token does not count."""
    if there is None:
        return x - x.mean(-2, keepdim=True)
    x = kept_rows(x, there)
    return kept_rows(x - x.sum(-2, keepdim=True) / there.sum(-1)[..., None, None], there)
