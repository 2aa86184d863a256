"""A score as a dot product: what was done to tokens before it, and what is added for each query and for each key.

`Fold` is the plan (two maps and two numbers), `DotForm` the same with tokens put in. Nearly every score of the
literature has one, and that is what lets a metric run on a fused dot-product kernel, exactly. `Pointwise` is a function of
one, for kernels that apply it to every score as they compute it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import Feature
from rheoscope.shapes import Scores


class DotForm(NamedTuple):
    """f(q_i, k_j) = scale q_i . k_j + query_bias_i + key_bias_j, exactly (a bias of None stands for 0).

    The query bias is constant along a row, which softmax does not see: it is computed only when asked for.
    """

    q: Tensor
    k: Tensor
    scale: float
    query_bias: Callable[[], Float[Tensor, "b h m"]] | None = None
    key_bias: Float[Tensor, "b h n"] | None = None

    def scores(self) -> Scores:
        s = self.q @ self.k.mT * self.scale
        if self.query_bias is not None:
            s = s + self.query_bias()[..., :, None]
        return s if self.key_bias is None else s + self.key_bias[..., None, :]


class Fold(NamedTuple):
    """f(q, k) = scale phi(q) . psi(k) - square (|phi(q)|^2 + |psi(k)|^2): a dot product, or a squared distance.

    >>> from rheoscope.attention.feature_maps import Identity
    >>> x = torch.tensor([[[[0.0, 1.0], [2.0, 1.0]]]])
    >>> Fold(Identity(), Identity(), 2.0, 1.0).form(x, x).scores()
    tensor([[[[ 0., -4.],
              [-4.,  0.]]]])
    """

    phi: Feature
    psi: Feature
    scale: float
    square: float = 0.0

    def form(self, q: Tensor, k: Tensor) -> DotForm:
        a, b, c = self.phi(q), self.psi(k), self.square
        if not c:
            return DotForm(a, b, self.scale)
        return DotForm(a, b, self.scale, lambda: -c * torch.linalg.vecdot(a, a), -c * torch.linalg.vecdot(b, b))


class Pointwise(NamedTuple):
    """f(q, k) = of(fold(q, k)), entry by entry; `of` is None where the score is the fold itself."""

    fold: Fold
    of: Callable[[Tensor], Tensor] | None = None
