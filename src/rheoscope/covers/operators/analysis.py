"""What kind of operator is each head? Symmetry, direction, rank, copying, all from r x r matrices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.rotated_heads import mean_null_draws, symmetry_null
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.decompositions import eigvals
from rheoscope.space.head import Heads, Relevance
from rheoscope.space.layer_stack import stack_padded
from rheoscope.space.operator import Factored
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Draws, Seed
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

OFFSETS = (0, 1, 2, 4, 8, 16)
MEAN_FIELDS = ("symmetry", "copying", "alignment", "positive_share")
"""Numbers whose mean over heads stands beside that of random heads."""


@torch.no_grad()
def operators(
    view: View,
    raw: bool = False,
    draws: Draws = 199,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Every head of a model as an operator: symmetry, direction, rank, copying.

    **Answers** "does this head compare tokens symmetrically, in one direction, does it copy, how many directions does
    it use?" from the weights alone, no text needed.

    **Formula** M = C D_g W_Q R(δ) W_Kᵀ D_g C · scale and F = C D_g W_V W_O, gains folded (`raw=True`: bare weights, as in
    papers); each number's definition is in its `attrs["definition"]`.

    **Null** random heads of the same singular values: M' = Q M Q'ᵀ, what queries read turned by each head's own Q and what keys
    read by a Q' that heads with one key share; the same for values (shared) and what heads write (their own) in F. Q'ᵀQ is then
    even and another one for every head, so heads that share a key are no more alike by chance than any other two. tr(M'M') has
    the mean ‖M‖²/d and a known spread; copying, alignment and the positive share lie evenly on both sides of 0 (one half), since
    −I is a rotation too. d is d − 1 where the norm centres.

    **Gives** (layer, head): `symmetry`, `directionality`, `positive_share`, `copying` and `alignment` with their nulls,
    `stable_rank_M`, `stable_rank_F`, `positivity_F`; `symmetry_at` (layer, head, offset) under RoPE;
    `singular_values_M`, `singular_values_F` (layer, head, rank); `layer_symmetry`, `layer_directionality` (layer); over all heads
    `mean_symmetry`, `mean_copying`, `mean_alignment`, `mean_positive_share`, each with `…_null_draws` (draw), the same of random heads:
    `p_values` of the two says how often chance goes as far. `draws=0` leaves these out.

    **Laws** equal to the dense matrices' numbers; unchanged by every move that leaves the logits unchanged.

    **Source** arXiv:2502.10927 (symmetry, directionality), transformer-circuits.pub/2021/framework (copying).

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> rs.operators(model.view).symmetry.dims
    ('layer', 'head')
    """
    if draws < 0:
        raise RheoscopeError(f"random heads are drawn 0 times or more, got draws={draws}; type draws=199")
    vocabulary_product = None if view.unembed is None else vocabulary_gram(view, raw)
    rows = []
    for row in map_on_cores(lambda heads: kernel(heads, vocabulary_product, raw), view.layer_heads):
        rows.append(row)
        if progress is not None:
            progress(len(rows), view.layers)
    values = {name: stack_padded([row[name] for row in rows], fill_value=0.0) for name in rows[0]}
    values |= {f"mean_{name}": values[name].double().mean() for name in MEAN_FIELDS}
    values |= mean_null_draws(values, effective_width(view.layer_heads[0], raw), draws, seed) if draws else {}
    coords = {"layer": range(view.layers), "head": range(view.heads), "offset": list(OFFSETS)}
    return OPERATORS.label(values, coords, result_attributes(view, raw) | {"draws": draws, "seed": seed})


def result_attributes(view: View, raw: bool) -> dict[str, Any]:
    """The settings that made it, its formula and its source."""
    return {
        "space": "weights without gain" if raw else "x̂ (before the gain, gain folded into M and F)",
        "formula": "M = C D_g W_Q R(δ) W_Kᵀ D_g C · scale, F = C D_g W_V W_O",
        "source": "arXiv:2502.10927; transformer-circuits.pub/2021/framework",
        "raw": int(raw),
    } | {name: str(value) for name, value in view.facts.items()}


@torch.no_grad()
def kernel(heads: Heads, vocabulary_product: Float[Tensor, "d d"] | None, raw: bool) -> dict[str, Tensor]:
    """All numbers of one layer, every head at once, in float32 or better."""
    rotary_M = heads.M(raw)
    M, F = (
        Relevance(at_least_float32(rotary_M.left), at_least_float32(rotary_M.right), rotary_M.rotation),
        in_at_least_float32(heads.F(raw)),
    )
    layer_M = torch.cat(list(M.left), -1) @ torch.cat(
        list(M.right), -2
    )  # of rank d: no factors are smaller than itself
    null_mean, null_sd = symmetry_null(M.singular_values(), effective_width(heads, raw))
    is_nonzero = M.norm() * F.norm() > 0
    return {
        "symmetry": M.symmetry(),
        "symmetry_null": null_mean,
        "symmetry_null_sd": null_sd,
        "directionality": directionality(M.row_norms(), M.column_norms()),
        "positive_share": positive_share(M),
        "positive_share_null": torch.full_like(M.left[:, 0, 0], 0.5),
        "stable_rank_M": M.stable_rank(),
        "stable_rank_F": F.stable_rank(),
        "positivity_F": positivity(F.eigenvalues()),
        "copying": copying_score(F, vocabulary_product),
        "copying_null": torch.zeros_like(null_mean),
        "alignment": alignment(M, F),
        "alignment_null": torch.zeros_like(null_mean),
        "alignment_null_sd": is_nonzero / heads.W_Q.shape[-2],
        "symmetry_at": torch.stack([M.symmetry_at(offset) for offset in OFFSETS], -1),
        "singular_values_M": M.singular_values(),
        "singular_values_F": F.singular_values(),
        "layer_symmetry": (layer_M * layer_M.mT).sum()
        / layer_M.square().sum().clamp(min=torch.finfo(layer_M.dtype).tiny),
        "layer_directionality": directionality(layer_M.norm(dim=-1), layer_M.norm(dim=-2)),
    }


def effective_width(heads: Heads, raw: bool) -> int:
    """In how many dimensions x̂ lies, and a random head with it: one less where the norm centres."""
    return heads.W_Q.shape[-2] - int(heads.norm.subtracts_mean and not raw)


def directionality(row_norms: Float[Tensor, "*h d"], column_norms: Float[Tensor, "*h d"]) -> Float[Tensor, "*h"]:
    """(c − r)/(c + r): does M pick out single coordinates on the key side (> 0) or on the query side (< 0)?"""
    c, r = _excess(column_norms), _excess(row_norms)
    return safe_divide(c - r, c + r)


def _excess(norms: Float[Tensor, "*h d"]) -> Float[Tensor, "*h"]:
    threshold = norms.mean(-1, keepdim=True) + 2 * norms.std(-1, keepdim=True, correction=0)
    return (norms - threshold).clamp(min=0).sum(-1)


def positive_share(M: Factored) -> Float[Tensor, "*h"]:
    """Σλ⁺/Σ|λ| over the eigenvalues λ of the symmetric part; one half for M = 0."""
    eigenvalues = M.symmetric_eigenvalues()
    total = eigenvalues.abs().sum(-1)
    return torch.where(total > 0, eigenvalues.clamp(min=0).sum(-1) / torch.where(total > 0, total, 1), 0.5)


def positivity(eigenvalues: Tensor) -> Float[Tensor, "*h"]:
    """Re Σλ/Σ|λ| in [−1, 1]; 0 where all λ are 0."""
    return safe_divide(eigenvalues.real.sum(-1), eigenvalues.abs().sum(-1))


def copying_score(F: Factored, vocabulary_product: Float[Tensor, "d d"] | None) -> Float[Tensor, "*h"]:
    """Positivity of W_E F W_U, whose eigenvalues are those of R (W_U W_E) L."""
    mapped_left = F.left if vocabulary_product is None else vocabulary_product.to(F.left.dtype) @ F.left
    return positivity(eigvals(F.right @ mapped_left))


def vocabulary_gram(view: View, raw: bool = False) -> Float[Tensor, "d d"]:
    """D_f W_U C W_E: from the stream through the final norm's gain and the vocabulary back to the stream.

    C takes the mean over the words away: a vector added to every column of W_U changes no probability. `raw`: W_U W_E.
    """
    assert view.unembed is not None
    unembed, embed = at_least_float32(view.unembed), at_least_float32(view.embed)
    is_tied = unembed.data_ptr() == embed.data_ptr() and unembed.stride() == embed.T.stride()
    product = gram(embed) if is_tied else unembed @ embed
    return product if raw else view.final_norm.fold(product - unembed.mean(-1, keepdim=True) * embed.sum(0))


def gram(E: Float[Tensor, "n d"], blocks: int = 4) -> Float[Tensor, "d d"]:
    """EᵀE, the half above the diagonal computed and mirrored."""
    parts = E.tensor_split(blocks, -1)
    rows = [torch.cat([parts[i].mT @ parts[j] for j in range(i, blocks)], -1) for i in range(blocks)]
    upper = torch.cat([torch.nn.functional.pad(row, (E.shape[-1] - row.shape[-1], 0)) for row in rows])
    return upper.triu() + upper.triu(1).mT


def alignment(M: Factored, F: Factored) -> Float[Tensor, "*h"]:
    """cos⟨F, Mᵀ⟩ in [−1, 1]; 0 where one of them is 0."""
    norms = M.singular_values().norm(dim=-1) * F.singular_values().norm(
        dim=-1
    )  # at hand, where `norm` would begin anew
    return safe_divide(F.inner(M.T), norms)


def in_at_least_float32(A: Factored) -> Factored:
    """In float32 or better."""
    return Factored(at_least_float32(A.left), at_least_float32(A.right))


def _mean_fields() -> dict[str, Field]:
    """The mean over heads of every number that has a null, and the same of random heads."""
    mean_fields = {f"mean_{name}": Field((), f"mean of {name} over all heads") for name in MEAN_FIELDS}
    null_fields = {
        f"mean_{name}_null_draws": Field(
            ("draw",), f"mean of {name} over all heads, each turned at random, draw by draw"
        )
        for name in MEAN_FIELDS
    }
    return mean_fields | null_fields


HEAD_DIMS = ("layer", "head")
OPERATORS = Analysis(
    name="operators",
    question="What kind of operator is each head: does it compare both ways alike, copy, and how many directions does it use?",
    ask=operators,
    needs="view",
    shown_with=("energy", "agreement"),
    report_runs=(ReportRun("operators", 0, options=("raw",)), ReportRun("covers", 10, for_files=True)),
    fields={
        "symmetry": Field(
            HEAD_DIMS,
            "tr(MM)/tr(MMᵀ) of the QK circuit (M): 1 symmetric, −1 skew, about 0 at random",
            null="symmetry_null",
            null_sd="symmetry_null_sd",
        ),
        "symmetry_null": Field(HEAD_DIMS, "mean symmetry of random M of the same singular values: 1/d"),
        "symmetry_null_sd": Field(
            HEAD_DIMS, "standard deviation of symmetry among random M of the same singular values: about √2/d"
        ),
        "directionality": Field(
            HEAD_DIMS,
            "(c − r)/(c + r), c and r the excess of column (key) and row norms of M over mean + 2 std",
            basis_dependent=True,
        ),
        "positive_share": Field(
            HEAD_DIMS,
            "Σλ⁺/Σ|λ| of the symmetric part of M: 1 where relevance grows with likeness along every direction",
            null="positive_share_null",
        ),
        "positive_share_null": Field(
            HEAD_DIMS,
            "the same for a random M: one half, since a form of rank r has as many rising as falling directions",
        ),
        "stable_rank_M": Field(HEAD_DIMS, "‖M‖²_F/‖M‖²₂: directions that the QK circuit really uses"),
        "stable_rank_F": Field(HEAD_DIMS, "‖F‖²_F/‖F‖²₂: directions that the OV circuit really uses"),
        "positivity_F": Field(HEAD_DIMS, "Re Σλ/Σ|λ| of the OV circuit (F): 1 copies, −1 inverts"),
        "copying": Field(
            HEAD_DIMS,
            "Re Σλ/Σ|λ| of W_E F W_U, the copying score of the circuits literature; F alone where there is no unembedding",
            null="copying_null",
        ),
        "copying_null": Field(
            HEAD_DIMS, "mean copying of random F of the same singular values: 0, since −F is one too"
        ),
        "alignment": Field(
            HEAD_DIMS,
            "cos⟨F, Mᵀ⟩: 1 where the head moves tokens up its own relevance",
            null="alignment_null",
            null_sd="alignment_null_sd",
        ),
        "alignment_null": Field(HEAD_DIMS, "mean alignment of random M of the same singular values: 0"),
        "alignment_null_sd": Field(
            HEAD_DIMS, "standard deviation of alignment among random M of the same singular values: 1/d"
        ),
        "symmetry_at": Field(
            ("layer", "head", "offset"),
            "tr(M(δ)M(−δ))/(‖M(δ)‖‖M(−δ)‖) at offset δ: 1 for tied queries and keys",
        ),
        "singular_values_M": Field(("layer", "head", "rank"), "singular values of M, falling"),
        "singular_values_F": Field(("layer", "head", "rank_F"), "singular values of F, falling"),
        "layer_symmetry": Field(("layer",), "symmetry of the sum of M over the heads of a layer"),
        "layer_directionality": Field(
            ("layer",), "directionality of the sum of M over the heads of a layer", basis_dependent=True
        ),
    }
    | _mean_fields(),
)
