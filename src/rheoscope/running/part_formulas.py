"""The parts of a mechanism as formulas in plain symbols: score, mask, position and normaliser.

A part without a formula of its own is printed by the name of its class.
"""

from functools import singledispatch

from rheoscope.attention.feature_maps import Feature
from rheoscope.attention.mask import (
    BooleanMask,
    Causal,
    Chunks,
    ExcludeSelf,
    Intersection,
    Mask,
    NoMask,
    Prefix,
    Window,
)
from rheoscope.attention.normaliser.domain import Normaliser
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.softmax import Softmax
from rheoscope.attention.position import (
    CombinedPosition,
    LearnedPosition,
    NoPosition,
    Position,
    Rotary,
    Sinusoidal,
    TokenEncoding,
)
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets
from rheoscope.attention.score import Distance, Gram, Relation, Score, SoftCap
from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.space.model_parts import NetworkRotation


def number_text(value: float) -> str:
    """A constant with four digits.

    >>> number_text(0.0625), number_text(50.0), number_text(256**-0.25)
    ('0.0625', '50', '0.25')
    """
    return f"{value:.4g}"


def factor_text(value: float) -> str:
    """A factor in front of a product; nothing for 1."""
    return "" if value == 1 else f"{number_text(value)} "


# Positions


@singledispatch
def position_kind(position: Position) -> str:
    """The kind of a position encoding in one word."""
    return type(position).__name__.lower()


@position_kind.register
def _(position: NoPosition) -> str:
    return "none"


@position_kind.register(Rotary | NetworkRotation)
def _(position: TokenEncoding) -> str:
    return "rotary"


@position_kind.register
def _(position: LearnedPosition) -> str:
    return "learned"


@position_kind.register
def _(position: CombinedPosition) -> str:
    return " + ".join(position_kind(part) for part in (position.a, position.b) if not part.is_trivial)


@singledispatch
def position_bias(position: Position) -> str:
    """What a position adds to a score; empty if it adds nothing."""
    return "" if position.changes_tokens else f" + {type(position).__name__}(i, j)"


@position_bias.register
def _(position: NoPosition) -> str:
    return ""


@position_bias.register
def _(position: ALiBi) -> str:
    return " − slope_h |i − j|"


@position_bias.register
def _(position: Buckets) -> str:
    return " + table_h[bucket(j − i)]"


@position_bias.register
def _(position: Bias) -> str:
    return " + bias_ij"


@position_bias.register
def _(position: CombinedPosition) -> str:
    return position_bias(position.a) + position_bias(position.b)


@singledispatch
def encoded_pair(position: Position) -> tuple[str, str]:
    """The query at position i and the key at position j after the encoding."""
    return ("enc_i(q_i)", "enc_j(k_j)") if position.changes_tokens else ("q_i", "k_j")


@encoded_pair.register(Rotary | NetworkRotation)
def _(position: TokenEncoding) -> tuple[str, str]:
    return "q_i R(i)", "k_j R(j)"


@encoded_pair.register(Sinusoidal | LearnedPosition)
def _(position: TokenEncoding) -> tuple[str, str]:
    return "(q_i + P(i))", "(k_j + P(j))"


@encoded_pair.register
def _(position: CombinedPosition) -> tuple[str, str]:
    parts = [part for part in (position.a, position.b) if part.changes_tokens]
    return encoded_pair(parts[0]) if len(parts) == 1 else ("enc_i(q_i)", "enc_j(k_j)")


# Scores


@singledispatch
def score_formula(score: Score, width: int, position: Position) -> str:
    """The score of query i and key j, without the bias of positions. `width` is that of queries."""
    query, key = encoded_pair(position)
    return f"{type(score).__name__}({query}, {key})"


@score_formula.register
def _(score: Gram, width: int, position: Position) -> str:
    scale = factor_text(width**-0.5 if score.scale is None else score.scale)
    query, key = encoded_pair(position)
    if score.phi.is_identity:
        return f"{scale}{'q_i R(i−j) k_jᵀ' if position_kind(position) == 'rotary' else f'{query} {key}ᵀ'}"
    return f"{scale}{mapped(score.phi, query)} {transposed(mapped(score.phi, key))}"


@score_formula.register
def _(score: Relation, width: int, position: Position) -> str:
    query, key = encoded_pair(position)
    scale = factor_text(width**-0.5 if score.scale is None else score.scale)
    return f"{scale}{mapped(score.phi, query)} {transposed(mapped(score.psi, key))}"


@score_formula.register
def _(score: Distance, width: int, position: Position) -> str:
    query, key = encoded_pair(position)
    return f"−{factor_text(score.scale)}|{mapped(score.phi, query)} − {mapped(score.phi, key)}|²"


@score_formula.register
def _(score: SoftCap, width: int, position: Position) -> str:
    cap = number_text(score.cap)
    return f"{cap} tanh({score_formula(score.score, width, position)} / {cap})"


def mapped(feature: Feature, row: str) -> str:
    """A row under a feature map. A linear map is a matrix B."""
    if feature.is_identity:
        return row
    return f"{row} B" if feature.is_linear else f"{type(feature).__name__}({row})"


def transposed(row: str) -> str:
    """A row as a column.

    >>> transposed("k_j R(j)"), transposed("Tanh(k_j B)")
    ('(k_j R(j))ᵀ', 'Tanh(k_j B)ᵀ')
    """
    return f"({row})ᵀ" if " " in row.partition("(")[0] else f"{row}ᵀ"


# Masks


@singledispatch
def mask_text(mask: Mask) -> str:
    """The keys j that query i may read."""
    return Verbatim(type(mask).__name__)


@mask_text.register
def _(mask: NoMask) -> Message:
    return Message("none: every token reads every token")


@mask_text.register
def _(mask: BooleanMask) -> Message:
    return Message(
        "a table of pairs: {share:.0f} % of {n} × {n}",
        share=100 * float(mask.allowed.float().mean()),
        n=mask.allowed.shape[-1],
    )


@mask_text.register
def _(mask: Causal) -> Message:
    return Message("causal (j ≤ i)")


@mask_text.register
def _(mask: Window) -> Message:
    return Message("window of {n} (|i − j| < {n})", n=mask.size)


@mask_text.register
def _(mask: Chunks) -> Message:
    return Message("chunks of {n} (⌊i / {n}⌋ = ⌊j / {n}⌋)", n=mask.size)


@mask_text.register
def _(mask: Prefix) -> Message:
    return Message("causal, or in the prefix (j ≤ i or j < {n})", n=mask.length)


@mask_text.register
def _(mask: ExcludeSelf) -> Message:
    return Message("no token reads itself (j ≠ i)")


@mask_text.register
def _(mask: Intersection) -> Message:
    return join(", ", [mask_text(mask.a), mask_text(mask.b)])


@singledispatch
def window_size(mask: Mask) -> float:
    """The size of the window of a mask, infinite without one."""
    return float("inf")


@window_size.register
def _(mask: Window) -> float:
    return float(mask.size)


@window_size.register
def _(mask: Intersection) -> float:
    return min(window_size(mask.a), window_size(mask.b))


# Normalisers


@singledispatch
def weights_formula(normaliser: Normaliser) -> str:
    """The weight of key j in row i as a function of the scores."""
    return f"{type(normaliser).__name__}(s_i)_j"


@weights_formula.register
def _(normaliser: Softmax) -> str:
    return "softmax_j(s_ij)"


@weights_formula.register
def _(normaliser: Sigmoid) -> str:
    return "σ(s_ij)" if normaliser.bias == 0 else f"σ(s_ij + {number_text(normaliser.bias)})"


@weights_formula.register
def _(normaliser: Sink) -> str:
    return "exp(s_ij) / (exp(sink_h) + Σ_l exp(s_il))"
