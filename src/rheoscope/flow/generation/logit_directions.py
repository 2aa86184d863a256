"""The directions of E along which components add to the logits of given tokens, with the scale of the final norm fixed."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.view import View

NORM_BIAS, UNEMBED_BIAS = "final_norm.bias", "unembed.bias"
"""The names of the components behind the last point, as in the analysis of one prediction."""


@dataclass(frozen=True, eq=False)
class LogitDirections:
    """A component c of the point of row i adds ⟨c, `directions[i]`⟩ to the logit of the target of row i, minus the mean logit.

    `constants` are the contributions of biases behind the last point. `mean_logits` are the mean logits of the vocabulary. All
    parts together are the logit before a cap.
    """

    directions: Float[Tensor, "r d"]
    constants: dict[str, Float[Tensor, " r"]]
    mean_logits: Float[Tensor, " r"]


@dataclass(frozen=True, eq=False)
class Unembedding:
    """The unembedding of a View with its mean over the vocabulary, which is computed once."""

    view: View
    matrix: Float[Tensor, "d vocabulary"]
    mean: Float[Tensor, " d"]

    @staticmethod
    def of(view: View) -> "Unembedding":
        assert view.unembed is not None, "a model that generates has an unembedding"
        return Unembedding(view, view.unembed, view.unembed.mean(-1))

    def directions(self, points: Float[Tensor, "r d"], targets: Int[Tensor, " r"]) -> LogitDirections:
        """The directions of the targets at the last points of rows, as in direct logit attribution.

        **Formula** u_i = scale(x_i) C D_g (W_U[target_i] − mean W_U), with the final norm of the model.
        """
        x, norm, bias = at_least_float32(points), self.view.final_norm, self.view.unembed_bias
        target_rows = (self.matrix[:, targets].mT - self.mean).to(x.dtype)
        gained = target_rows if norm.gain is None else target_rows * norm.gain.to(x.dtype)
        mean_logits = norm.normed(x) @ self.mean.to(x.dtype)
        constants = {} if norm.bias is None else {NORM_BIAS: target_rows @ norm.bias.to(x.dtype)}
        if bias is not None:
            bias = at_least_float32(bias)
            constants[UNEMBED_BIAS] = bias[targets] - bias.mean()
            mean_logits = mean_logits + bias.mean()
        return LogitDirections(norm.centre(gained) * norm.scale(x), constants, mean_logits)


def capped(view: View, logits: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Logits through the cap of the model, if it has one."""
    return logits if view.logit_cap is None else view.logit_cap * torch.tanh(logits / view.logit_cap)
