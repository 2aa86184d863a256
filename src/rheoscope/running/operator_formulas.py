"""The formulas of a layer in plain symbols: from points to scores and content, M and F, and the order of the block.

Tokens are rows. x̂ is a token after the norm, before its gain; D and G are diagonal matrices of gains; C subtracts the mean; R(p)
rotates by position p.
"""

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.running.layer_structure import LayerStructure, norm_kind
from rheoscope.running.part_formulas import (
    factor_text,
    mask_text,
    position_bias,
    position_kind,
    score_formula,
    weights_formula,
)
from rheoscope.running.rotation_pattern import HALVES, NEIGHBOURS
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads, bilinear_maps
from rheoscope.space.model_parts import LatentNorm, Norm

LINES = {
    "input": Message("input"),
    "query": Message("queries"),
    "key": Message("keys"),
    "value": Message("values"),
    "position": Message("positions"),
    "score": Message("score"),
    "mask": Message("mask"),
    "weight": Message("weights"),
    "content": Message("content"),
    "M": Verbatim("M"),
    "F": Verbatim("F"),
    "block": Message("block"),
}
"""The formulas of a layer in the order in which attention computes, with their titles."""
SYMBOLS = (
    Message(
        "Tokens are rows. D and G are diagonal matrices of gains, C subtracts the mean. R(i−j) = R(i) R(j)ᵀ, δ = i − j."
    ),
    Message(
        "The score is x̂_i M(i−j) x̂_jᵀ before cap and position bias. Biases add terms of i alone or of j alone. A norm of queries "
        "or keys adds a factor for each token."
    ),
    Message(
        "A head adds Σ_j α_ij x̂_j F to token i, up to gates and biases. A norm before W_O multiplies this by a number c_hi, and a "
        "norm after attention by a number per token."
    ),
)
"""What the symbols of all layers mean."""


def layer_formulas(structure: LayerStructure) -> dict[str, str]:
    """Every formula of a layer by the name of its line."""
    heads = structure.heads
    source = "u" if structure.source_norm is None else "w"
    formulas: dict[str, str] = {
        "input": _input(structure),
        "query": Verbatim(_projected("q", "u", "Q", heads.b_Q is not None, heads.q_norm)),
        "key": Verbatim(_projected("k", source, "K", heads.b_K is not None, heads.k_norm)),
        "value": Verbatim(_projected("v", source, "V", heads.b_V is not None, heads.v_norm)),
        "score": Verbatim(_score(heads)),
        "mask": mask_text(heads.mechanism.mask),
        "weight": Verbatim(f"α_ij = {weights_formula(heads.mechanism.normaliser)}"),
        "content": Verbatim(content_formula(structure)),
        "M": relevance_formula(structure),
        "F": content_map_formula(structure),
        "block": block_formula(structure),
    }
    if structure.rotation is not None:
        formulas["position"] = rotation_text(structure)
    return {name: formulas[name] for name in LINES if name in formulas}


def _input(structure: LayerStructure) -> Message:
    norm, source = structure.heads.norm, structure.source_norm
    target = _normalised("x", "u", norm)
    if source is None:
        return target
    return join("; ", [target, _normalised("y", "w", source) if source.eps is not None else Verbatim("w = y")])


def _normalised(point: str, result: str, norm: Norm) -> Message:
    """What the projections of a layer read, from a point of the stream."""
    if norm.eps is None:
        return Message("{input} (no norm before attention)", input=f"{result} = {point}")
    gain = "" if norm.gain is None else " D" if result == "u" else " D_w"
    bias = "" if norm.bias is None else " + b" if result == "u" else " + b_w"
    length = f"({point} − mean) / std" if norm.subtracts_mean else f"{point} / rms({point})"
    hat = f"{point}̂"
    return Message(
        "{input} with {normalised}, eps {eps:.0e}",
        input=f"{result} = {hat}{gain}{bias}",
        normalised=f"{hat} = {length}",
        eps=norm.eps,
    )


def _projected(row: str, source: str, letter: str, has_bias: bool, norm: Norm | None) -> str:
    """q = N(u W_Q + b_Q) G_Q, or N(u A_Q) B_Q for latent attention."""
    if isinstance(norm, LatentNorm):
        return _latent(row, source, letter, norm)
    product = f"{source} W_{letter}" + (f" + b_{letter}" if has_bias else "")
    if norm is None or norm.eps is None:
        return f"{row} = {product}"
    gain = "" if norm.gain is None else f" G_{letter}"
    bias = "" if norm.bias is None else f" + c_{letter}"
    return f"{row} = {norm_kind(norm)}({product}){gain}{bias}"


def _latent(row: str, source: str, letter: str, norm: LatentNorm) -> str:
    """Rows from a normalised latent vector, and coordinates that do not come from it."""
    assert norm.is_scaled is not None
    latent = f"RMSNorm({source} A_{letter}) B_{letter}"
    if bool(norm.is_scaled.all()):
        return f"{row} = {latent}, W_{letter} = A_{letter} B_{letter}"
    return f"{row} = ({latent}, {source} T_{letter}), W_{letter} = (A_{letter} B_{letter}, T_{letter})"


def _score(heads: Heads) -> str:
    mechanism = heads.mechanism
    score = score_formula(mechanism.score, heads.W_Q.shape[-1], mechanism.position)
    return f"s_ij = {score}{position_bias(mechanism.position)}"


def rotation_text(structure: LayerStructure) -> Message:
    """Which coordinates R rotates, and in which pairs."""
    rotation = structure.rotation
    assert rotation is not None
    half = (rotation.stop - rotation.start) // 2
    planes = {
        HALVES: Message("each c with c + {half}", half=half),
        NEIGHBOURS: Message("each 2c with 2c + 1"),
    }.get(rotation.pairs, Message("in planes of its own"))
    scale = "" if rotation.scale == 1 else Message(", times {scale:.4g}", scale=rotation.scale)
    return Message(
        "R(p) rotates coordinates {start} to {last} of {width}, {planes}{scale}",
        start=rotation.start,
        last=rotation.stop - 1,
        width=structure.heads.W_Q.shape[-1],
        planes=planes,
        scale=scale,
    )


def content_formula(structure: LayerStructure) -> str:
    """What attention adds to a token."""
    heads = structure.heads
    values = "v_j" if heads.mechanism.value.is_identity else f"{type(heads.mechanism.value).__name__}(v_j)"
    total = {
        "none": f"Σ_h Σ_j α_ij {values} W_O",
        "head": f"Σ_h g_h(u_i) Σ_j α_ij {values} W_O",
        "coordinate": f"Σ_h Σ_j α_ij {values} diag(g_h(u_i)) W_O",
    }[structure.gate] + (" + b_O" if heads.b_O is not None else "")
    total = total if heads.heads_norm is None else total.replace("Σ_h ", "Σ_h c_hi ")
    norm = heads.output_norm
    if norm is None or norm.eps is None:
        return f"Δ_i = {total}"
    gain, bias = "" if norm.gain is None else " G_O", "" if norm.bias is None else " + c_O"
    return f"Δ_i = {norm_kind(norm)}({total}){gain}{bias}"


def _before(norm: Norm, gain: str = "D") -> str:
    """The matrices between x̂ and a projection: C D, D or nothing."""
    return ("C " if norm.subtracts_mean else "") + (
        f"{gain} " if norm.gain is not None and norm.eps is not None else ""
    )


def _before_source(structure: LayerStructure) -> str:
    """The same for keys and values."""
    source = structure.source_norm
    return _before(structure.heads.norm) if source is None else _before(source, "D_w")


def _after(norm: Norm | None, letter: str) -> str:
    """The matrices of a norm after a projection. Its scale is a number per token."""
    if norm is None or norm.eps is None:
        return ""
    return (" C_k" if norm.subtracts_mean else "") + (f" G_{letter}" if norm.gain is not None else "")


def relevance_formula(structure: LayerStructure) -> str:
    """M, the QK circuit, in the symbols of the lines above; or why there is none."""
    heads = structure.heads
    try:
        phi, psi = bilinear_maps(heads.mechanism)
    except RheoscopeError as error:
        return Message("none: {reason}", reason=error.message)
    maps = [[] if feature.is_identity else ["B"] for feature in (phi, psi)]
    has_rotation = position_kind(heads.mechanism.position) == "rotary"
    query = f"{_before(heads.norm)}W_Q{_after(heads.q_norm, 'Q')}"
    key = [f"{_before_source(structure)}W_K{_after(heads.k_norm, 'K')}", *maps[1]]
    right = f"({' '.join(key)})ᵀ" if " " in " ".join(key) else f"{key[0]}ᵀ"
    parts = [query, *maps[0], *(["R(δ)"] if has_rotation else []), right]
    name = "M(δ)" if has_rotation else "M"
    return Verbatim(f"{name} = {factor_text(heads.scale)}{' '.join(parts)}")


def content_map_formula(structure: LayerStructure) -> str:
    """F, the OV circuit, or why there is none."""
    heads = structure.heads
    if not heads.mechanism.value.is_identity:
        return Message("none: values are mapped before they are summed")
    after = "" if heads.output_norm is None or heads.output_norm.gain is None else " G_O"
    return Verbatim(f"F = {_before_source(structure)}W_V{_after(heads.v_norm, 'V')} W_O{after}")


def block_formula(structure: LayerStructure) -> Message:
    """The order of attention and MLP."""
    return {
        "sequential": Message("sequential: x ← x + Δ, then x ← x + MLP(x)"),
        "parallel": Message("parallel: x ← x + Δ + MLP(x)"),
        "mixed streams": Message("mixed streams: x ← x + Δ, then x ← a mix of several streams"),
        "post-norm": Message("post-norm: x ← norm(x + Δ), then x ← norm(x + MLP(x))"),
        "cross-attention": Message("x_i ← x_i + Δ_i, where j runs over the tokens of the encoder"),
        "post-norm cross-attention": Message("x_i ← norm(x_i + Δ_i), where j runs over the tokens of the encoder"),
    }[structure.order]
