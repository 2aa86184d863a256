"""Scores written as dot products of mapped tokens plus a bias per query and per key.

`DotMaps` describes the form (two maps and two numbers); `DotForm` applies it to tokens. Nearly every score in the
literature has such a form, which lets a metric run exactly on a fused dot-product kernel. `PointwiseForm` is an
elementwise function of a dot form, for kernels that apply it to each score.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import Feature
from rheoscope.shapes import Scores


class DotForm(NamedTuple):
    """f(q_i, k_j) = scale q_i . k_j + query_bias_i + key_bias_j, exactly (a bias of None is 0).

    The query bias is constant along a row and cancels in softmax, so it is computed lazily.
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


class DotMaps(NamedTuple):
    """f(q, k) = scale phi(q) . psi(k) - norm_coefficient (|phi(q)|^2 + |psi(k)|^2): a dot product or squared distance.

    >>> from rheoscope.attention.feature_maps import Identity
    >>> x = torch.tensor([[[[0.0, 1.0], [2.0, 1.0]]]])
    >>> DotMaps(Identity(), Identity(), 2.0, 1.0).dot_form(x, x).scores()
    tensor([[[[ 0., -4.],
              [-4.,  0.]]]])
    """

    phi: Feature
    psi: Feature
    scale: float
    norm_coefficient: float = 0.0

    def dot_form(self, q: Tensor, k: Tensor) -> DotForm:
        mapped_q, mapped_k, norm_coefficient = self.phi(q), self.psi(k), self.norm_coefficient
        if not norm_coefficient:
            return DotForm(mapped_q, mapped_k, self.scale)
        return DotForm(
            mapped_q,
            mapped_k,
            self.scale,
            lambda: -norm_coefficient * torch.linalg.vecdot(mapped_q, mapped_q),
            -norm_coefficient * torch.linalg.vecdot(mapped_k, mapped_k),
        )


class PointwiseForm(NamedTuple):
    """f(q, k) = function(dot form of q and k), elementwise; `function` is None for the dot form itself."""

    dot_maps: DotMaps
    function: Callable[[Tensor], Tensor] | None = None
