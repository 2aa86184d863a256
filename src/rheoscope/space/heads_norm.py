"""A norm between the outputs of all heads and W_O."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.space.model_parts import Norm
from rheoscope.space.safe_arithmetic import at_least_float32


@dataclass(frozen=True, eq=False)
class HeadsNorm:
    """A norm between the outputs of all heads and their output matrix (BitNet, DiffLlama, Kosmos-2).

    The norm reads a row z. Coordinate c of head h adds `factor[h, c]` times itself to coordinate `index[h, c]` of z, so several
    heads may share a coordinate: DiffLlama subtracts one half of its heads from the other. The norm divides each group of
    `width` coordinates by one length, centred if it `subtracts_mean`, and then applies `gain` and `bias`.

    Every head belongs to one group, so its displacement is Δ_h = c_i o_h W_O, where c_i is the scale of the norm for token i and its
    group. The factor, the centring and the gain are part of W_O (`fold`).

    >>> import torch
    >>> norm = HeadsNorm(torch.arange(4).view(2, 2), torch.ones(2, 2), 4, torch.ones(4), torch.zeros(4), 0.0)
    >>> norm.scale(torch.full((2, 3, 2), 2.0)).flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000])
    """

    index: Int[Tensor, "h e"]
    factor: Float[Tensor, "h e"]
    width: int
    gain: Float[Tensor, " z"]
    bias: Float[Tensor, " z"]
    eps: float
    subtracts_mean: bool = False

    def __repr__(self) -> str:
        return f"<{'LayerNorm' if self.subtracts_mean else 'RMSNorm'} of head outputs>"

    @cached_property
    def _norm(self) -> Norm:
        return Norm(eps=self.eps, subtracts_mean=self.subtracts_mean)

    def rows(self, outputs: Float[Tensor, "*b h n e"]) -> Float[Tensor, "*b n groups w"]:
        """What the norm reads, in float32 or better. Columns of the outputs beyond those of the norm do not count."""
        device = outputs.device
        columns = at_least_float32(outputs[..., : self.factor.shape[-1]])
        signed = (columns * self.factor.to(columns)[:, None]).transpose(-3, -2).flatten(-2)
        z = signed.new_zeros(*signed.shape[:-1], len(self.gain))
        return z.index_add(-1, self.index.flatten().to(device), signed).unflatten(-1, (-1, self.width))

    def scale(self, outputs: Float[Tensor, "*b h n e"]) -> Float[Tensor, "*b h n 1"]:
        """c_i of every head and token, from the outputs of all heads."""
        scale = self._norm.scale(self.rows(outputs))[..., (self.index[:, 0] // self.width).to(outputs.device), 0]
        return scale.mT[..., None]

    def apply(self, outputs: Float[Tensor, "*b h n e"]) -> Float[Tensor, "*b n z"]:
        """What the output matrix reads."""
        z = self._norm.normalise(self.rows(outputs)).flatten(-2)
        return z * self.gain.to(z) + self.bias.to(z)

    def fold(self, W: Float[Tensor, "z d"]) -> Float[Tensor, "h e d"]:
        """W_O: the output matrix after this norm, as it acts on the outputs of heads divided by their length."""
        groups = (self.gain.to(W)[:, None] * W).unflatten(0, (-1, self.width))
        groups = groups - groups.mean(1, keepdim=True) if self.subtracts_mean else groups
        return groups.flatten(0, 1)[self.index.to(W.device)] * self.factor.to(W)[..., None]
