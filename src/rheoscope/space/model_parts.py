"""Norms and rotary positions as the model itself computes them."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.position import TokenEncoding, rotation_from_encoding
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.autograd_pullback import pullback_by_autograd

Projected = tuple[Float[Tensor, "b h n k"], Float[Tensor, "b g n k"], Float[Tensor, "b g n e"]]


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of the model: `apply` is its module, the other fields describe it. `Norm()` is no norm.

    apply(x) = x̂ * gain + bias, with x̂ = x / rms(x), or centred x / std(x) if `subtracts_mean`.
    """

    apply: Callable[[Tensor], Tensor] = lambda x: x
    gain: Float[Tensor, "*h d"] | None = None
    bias: Float[Tensor, "*h d"] | None = None
    eps: float | None = None
    subtracts_mean: bool = False

    def __repr__(self) -> str:
        return f"<{'no norm' if self.eps is None else 'LayerNorm' if self.subtracts_mean else 'RMSNorm'}>"

    def normalise(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """x̂, the token before gain and bias; x itself without a norm."""
        if self.eps is None:
            return x
        if x.is_cuda and not x.requires_grad:  # one fused kernel
            torch_norm = torch.nn.functional.layer_norm if self.subtracts_mean else torch.nn.functional.rms_norm
            return torch_norm(x, x.shape[-1:], eps=self.eps)
        return self.centre(x) * self.scale(x)

    def centre(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """x C: x minus its mean under LayerNorm, else x itself."""
        return x - x.mean(-1, keepdim=True) if self.subtracts_mean else x

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        """The factor of the norm for each token: x̂ = scale(x) x C."""
        if self.eps is None:
            return torch.ones_like(x[..., :1])
        return (self.centre(x).square().mean(-1, keepdim=True) + self.eps).rsqrt()

    def normed(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """x̂ * gain + bias in the precision of x, where `apply` rounds as the model does."""
        y = self.normalise(x)
        y = y if self.gain is None else y * self.gain.to(x.dtype)
        return y if self.bias is None else y + self.bias.to(x.dtype)

    def fold(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        """C D_g W: a matrix after this norm, as it acts on x̂."""
        W = W if self.gain is None else self.gain.to(W.dtype)[:, None] * W
        return W - W.mean(-2, keepdim=True) if self.subtracts_mean else W

    def fold_before(self, W: Float[Tensor, "*h d k"]) -> Float[Tensor, "*h d k"]:
        """W C D_g: a matrix before this norm. Its rows are those of the norm, up to the scale of each token."""
        W = self.centre(W)
        return W if self.gain is None else W * self.gain.to(W.dtype)


@dataclass(frozen=True, eq=False)
class NormAcrossHeads(Norm):
    """A norm of queries or keys that divides the rows (h, n, k) of all heads by one length per token."""

    def normalise(self, x: Float[Tensor, "*b h n k"]) -> Float[Tensor, "*b h n k"]:
        return self.centre(x) * self.scale(x)

    def centre(self, x: Float[Tensor, "*b h n k"]) -> Float[Tensor, "*b h n k"]:
        """x minus its mean over the coordinates of all heads, under LayerNorm."""
        return x - x.mean((-3, -1), keepdim=True) if self.subtracts_mean else x

    def scale(self, x: Float[Tensor, "*b h n k"]) -> Float[Tensor, "*b 1 n 1"]:
        assert self.eps is not None
        return (self.centre(x).square().mean((-3, -1), keepdim=True) + self.eps).rsqrt()


@dataclass(frozen=True, eq=False)
class LatentNorm(Norm):
    """A norm of the latent vector z from which rows are computed (latent attention): rows = scale(z) z B in some coordinates.

    `to_latent` recovers z from the rows z B of all heads. `is_scaled` marks the coordinates that come from z.
    """

    to_latent: Float[Tensor, "hk r"] | None = None
    is_scaled: Float[Tensor, " k"] | None = None

    def normalise(self, x: Float[Tensor, "*b h n k"]) -> Float[Tensor, "*b h n k"]:
        return x * self.scale(x)

    def scale(self, x: Float[Tensor, "*b h n k"]) -> Float[Tensor, "*b 1 n k"]:
        assert self.eps is not None
        assert self.to_latent is not None
        assert self.is_scaled is not None
        is_scaled = self.is_scaled.to(x)
        z = (x * is_scaled).transpose(-3, -2).flatten(-2) @ self.to_latent.to(x)
        scale = (z.square().mean(-1, keepdim=True) + self.eps).rsqrt()[..., None, :, :]
        return scale * is_scaled + (1 - is_scaled)


@dataclass(frozen=True, eq=False)
class NetworkRotation(TokenEncoding):
    """A rotation by the network's own code: `rotate(x, positions)` rotates rows x at their positions."""

    rotate: Callable[[Tensor, Tensor], Tensor]

    def encode(self, x: Tensor, token_positions: Tensor) -> Tensor:
        return self.rotate(x, token_positions)

    @abstractmethod
    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        """R(delta) with q_i R(i) (k_j R(j))^T = q_i R(i - j) k_j^T, read off the network's own tables."""

    def pullback(self, token_positions: Tensor, dy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Rotation is linear, so its pullback is the same at any rows, here at zeros."""
        with torch.enable_grad():
            x = torch.zeros_like(dy, requires_grad=True)
            return pullback_by_autograd(self.rotate(x, token_positions), x, dy), {}

    def select_heads(self, heads: list[int]) -> "NetworkRotation":
        return self


@dataclass(frozen=True, eq=False)
class ModelRotary(NetworkRotation):
    """The model's own rotary map by the position of a token. `rotate_back(y, positions)`, if known, is its transpose."""

    rotate_back: Callable[[Tensor, Tensor], Tensor] | None = None

    def pullback(self, token_positions: Tensor, dy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The transposed rotation, as a rotation by the opposite angle. Autograd would read the memory more often."""
        if self.rotate_back is None:
            return super().pullback(token_positions, dy)
        return self.rotate_back(dy, token_positions), {}

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        return rotation_from_encoding(self.rotate, offset, width, template)


@dataclass(frozen=True, eq=False)
class PlaceRotary(NetworkRotation):
    """The model's own rotation by the row and the column of a patch, in images of one size with `n_tokens` tokens.

    Offsets count columns: R(δ) lies between a patch and the patch δ columns to its left. The last two tokens are neighbours.
    """

    n_tokens: int

    def encode(self, x: Tensor, token_positions: Tensor) -> Tensor:
        if len(token_positions) and int(token_positions.max()) >= self.n_tokens:
            raise RheoscopeError(
                Message(
                    "this model rotates the {n} tokens of an image by their places, got {received} tokens",
                    n=self.n_tokens,
                    received=int(token_positions.max()) + 1,
                )
            )
        return self.rotate(x, token_positions)

    def rotation_matrix(self, offset: int, width: int, template: Tensor) -> Float[Tensor, "k k"]:
        places = torch.tensor([self.n_tokens - 2, self.n_tokens - 1], device=template.device).repeat_interleave(width)
        axes = torch.eye(width, dtype=template.dtype, device=template.device).repeat(2, 1)
        left, right = self.rotate(axes[None, None], places)[0, 0].split(width)
        step = right @ left.mT if offset >= 0 else left @ right.mT
        return torch.linalg.matrix_power(step, abs(offset))
