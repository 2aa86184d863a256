"""One layer of cross attention as operators on E: tokens x of the target ask, tokens y of the source answer.

    M_h = C D_g W_Q W_K^T D_m C_m scale              F_h = C_m D_m W_V W_O^h
    Delta_h(x_i) = sum_j alpha_ij (ŷ_j F_h + b-terms)        x_i <- x_i + sum_h Delta_h(x_i) + b_O

x̂ is a token of the target after the norm of the layer, ŷ a token of the source after the last norm of the encoder, each
before its gain (D_g, D_m) and, under LayerNorm, centred (C, C_m). Positions stand in the points alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.head import Heads, Norm, Relevance, of_head
from rheoscope.space.head_contributions import Carried, apart
from rheoscope.space.operator import Factored

Target = Float[Tensor, "t d"]
Source = Float[Tensor, "s d"]
Across = tuple[Float[Tensor, "1 h t k"], Float[Tensor, "1 g s k"], Float[Tensor, "1 g s e"]]


@dataclass(frozen=True, eq=False)
class Crossing:
    """All heads of one layer of cross attention.

    `asking` are the heads behind the norm of the target; `memory` is the norm through which the source is read. Clouds
    are points of E before those norms: `trace.at("L0.resid_mid")` of the target, the last points of the source.

    **Laws** weights and displacements are the model's, proved at every load; the score of i and j is x̂_i M ŷ_jᵀ up to
    terms of i alone and of j alone.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> model.view.crossing[0].M()[1].shape
    (8, 8)
    """

    asking: Heads
    memory: Norm

    def __repr__(self) -> str:
        return f"<Crossing by {self.asking!r}>"

    @cached_property
    def answering(self) -> Heads:
        """The same heads behind the norm of the source."""
        return replace(self.asking, norm=self.memory)

    @property
    def count(self) -> int:
        return self.asking.count

    @property
    def mechanism(self) -> Mechanism:
        return self.asking.mechanism

    def M(self, raw: bool = False) -> Relevance:
        """The QK circuit of every head (h, d, d), a target token on its left and a source token on its right."""
        return Relevance(self.asking.M(raw).left, self.answering.M(raw).right)

    def F(self, raw: bool = False) -> Factored:
        """The OV circuit of every head (h, d, d): what a source token puts into the target."""
        return self.answering.F(raw)

    def read(self, x: Target, memory: Source) -> Across:
        """q of the target, k and v of the source, by the model's own norms and projections."""
        return self.asking.read(x)[0], *self.answering.read(memory)[1:]

    def scores(self, x: Target, memory: Source, head: int) -> Float[Tensor, "t s"]:
        """Scores of one head, row = target token."""
        q, k = self._one(x, memory, head)
        exact = (part.float() if part.dtype.itemsize < 4 else part for part in (q, k))
        return of_head(self.mechanism, head).score(*exact)[0, 0]

    def weights(self, x: Target, memory: Source, head: int) -> Float[Tensor, "t s"]:
        """Attention weights of one head, row = target token, in float32 or better."""
        return of_head(self.mechanism, head).weights(*self._one(x, memory, head))[0, 0]

    def displacements(self, x: Target, memory: Source) -> Float[Tensor, "h t d"]:
        """Delta_h of every head: they add up, with `bias(x)`, to what cross attention did to the target."""
        return self.mechanism.attend(*self.read(x, memory))[0] @ self.asking.W_O

    def carried(self, x: Target, memory: Source) -> Carried:
        """What every head takes from the source's tokens, and all constants of cross attention together."""
        tokens, constant = apart(self.mechanism, *self.read(x, memory), self.answering.value_bias)
        return self.asking.as_carried(tokens[0], constant[0])

    def bias(self, x: Target) -> Target:
        """What cross attention adds beside the heads."""
        return self.asking.bias(x)

    def _one(self, x: Target, memory: Source, head: int) -> tuple[Tensor, Tensor]:
        return self.asking.one(*self.read(x, memory)[:2], head)
