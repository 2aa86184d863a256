"""Cross-attention of one layer as operators on E: target tokens are queries, source tokens keys and values.

    M_h = C D_g W_Q W_K^T D_m C_m scale              F_h = C_m D_m W_V W_O^h
    Delta_h(x_i) = sum_j alpha_ij (ŷ_j F_h + b-terms)        x_i <- x_i + sum_h Delta_h(x_i) + b_O

x̂ is a target token after the norm of the layer, ŷ a source token after the last norm of the encoder. Both are taken before
the gain (D_g, D_m) and, under LayerNorm, centred (C, C_m). Positions enter through the points only.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.head import Heads, Relevance, single_head_mechanism
from rheoscope.space.head_contributions import FactoredDisplacements, split_constant_values
from rheoscope.space.model_parts import Norm
from rheoscope.space.operator import Factored

TargetPoints = Float[Tensor, "t d"]
SourcePoints = Float[Tensor, "s d"]
CrossProjected = tuple[Float[Tensor, "1 h t k"], Float[Tensor, "1 g s k"], Float[Tensor, "1 g s e"]]


@dataclass(frozen=True, eq=False)
class CrossHeads:
    """All heads of one layer of cross-attention.

    `target_heads` are the heads after the norm of the target; `source_norm` is the norm of the source. Clouds are points of E
    before those norms: `trace.points_at("L0.resid_mid")` of the target, the last points of the source.

    **Laws** Weights and displacements are the model's, certified at every load. The score of i and j is x̂_i M ŷ_jᵀ up to terms
    of i alone and of j alone.

    >>> import rheoscope as rs
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Translator
    >>> model = rs.load(Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder")))
    >>> model.view.cross_heads[0].M()[1].shape
    (8, 8)
    """

    target_heads: Heads
    source_norm: Norm

    def __repr__(self) -> str:
        return f"<Cross-attention of {self.target_heads!r}>"

    @cached_property
    def source_heads(self) -> Heads:
        """The same heads after the norm of the source."""
        return replace(self.target_heads, norm=self.source_norm)

    @property
    def n_heads(self) -> int:
        return self.target_heads.n_heads

    @property
    def mechanism(self) -> Mechanism:
        return self.target_heads.mechanism

    def M(self, raw: bool = False) -> Relevance:
        """The QK circuit of every head (h, d, d), with a target token on its left and a source token on its right."""
        return Relevance(self.target_heads.M(raw).left, self.source_heads.M(raw).right)

    def F(self, raw: bool = False) -> Factored:
        """The OV circuit of every head (h, d, d), from source tokens to the target."""
        return self.source_heads.F(raw)

    def qkv(self, x: TargetPoints, memory: SourcePoints) -> CrossProjected:
        """q of the target, k and v of the source, by the model's own norms and projections."""
        return self.target_heads.qkv(x)[0], *self.source_heads.qkv(memory)[1:]

    def scores(self, x: TargetPoints, memory: SourcePoints, head: int) -> Float[Tensor, "t s"]:
        """Scores of one head, row = target token."""
        q, k = self._head_qk(x, memory, head)
        projections = (projection.float() if projection.dtype.itemsize < 4 else projection for projection in (q, k))
        return single_head_mechanism(self.mechanism, head).score(*projections)[0, 0]

    def weights(self, x: TargetPoints, memory: SourcePoints, head: int) -> Float[Tensor, "t s"]:
        """Attention weights of one head, row = target token, in float32 or better."""
        return single_head_mechanism(self.mechanism, head).weights(*self._head_qk(x, memory, head))[0, 0]

    def displacements(self, x: TargetPoints, memory: SourcePoints) -> Float[Tensor, "h t d"]:
        """Delta_h of every head; with `bias(x)` they add up to the displacement by cross-attention."""
        return self.mechanism.attend(*self.qkv(x, memory))[0] @ self.target_heads.W_O

    def factored_displacements(self, x: TargetPoints, memory: SourcePoints) -> FactoredDisplacements:
        """The displacements of every head by source tokens, and all constants of cross-attention together."""
        mixed_values, constant_output = split_constant_values(
            self.mechanism, *self.qkv(x, memory), self.source_heads.value_bias
        )
        return self.target_heads.factor_displacements(mixed_values[0], constant_output[0])

    def bias(self, x: TargetPoints) -> TargetPoints:
        """The displacement outside the heads."""
        return self.target_heads.bias(x)

    def _head_qk(self, x: TargetPoints, memory: SourcePoints, head: int) -> tuple[Tensor, Tensor]:
        return self.target_heads.select_head(*self.qkv(x, memory)[:2], head)
