"""Heads as operators: symmetry, directionality, rank, copying and alignment, computed from r x r matrices."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.rotated_heads import mean_null_draws, symmetry_null
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.space.analysis import Analysis, Field
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
"""Fields whose mean over heads is compared with random heads."""


@torch.no_grad()
def operators(
    view: View,
    raw: bool = False,
    draws: Draws = 199,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Every head of a model as an operator: symmetry, directionality, rank, copying and alignment.

    **Question** Does this head compare tokens symmetrically or in one direction? Does it copy, and how many directions does it
    use? The answer needs only the weights.

    **Formula** M = C D_g W_Q R(δ) W_Kᵀ D_g C · scale and F = C D_g W_V W_O, with the gains of the norms folded in. The definition of
    each field is in its `attrs["definition"]`.

    **Settings**
    `raw=True` uses the bare weights without gains, as papers do.
    `draws` is the number of draws of the null over all heads, and 0 omits it. The null is a random head with the same singular
    values, M' = Q M Q'ᵀ with random rotations Q of the query side and Q' of the key side. Each head has its own Q, and heads with a
    shared key have the same Q'. Q'ᵀQ is then uniform and differs between heads, so a shared key makes no two heads more similar. F is
    rotated in the same way. tr(M'M') has mean ‖M‖²/d and a known variance. Copying, alignment and the positive share are symmetric
    around 0 (around ½), because −I is a rotation. d is the width, less 1 if the norm centres.

    `copying` includes the gain of the final norm and subtracts the mean over the vocabulary, because softmax cannot see it.
    `copying_raw` is the score of the literature, from bare weights; it changes if a gain is moved into the weights.

    **Returns** (layer, head): `symmetry`, `positive_share`, `copying` and `alignment` with their nulls, `copying_raw`,
    `directionality`, `stable_rank_M`, `stable_rank_F`, `positivity_F`. (layer, head, offset): `symmetry_at_offset`. (layer, head, rank):
    `singular_values_M`, `singular_values_F`. (layer): `layer_symmetry`, `layer_directionality`. Over all heads: `mean_symmetry`,
    `mean_copying`, `mean_alignment`, `mean_positive_share`, each with `…_null_draws` (draw) of random heads for `p_values`.

    **Laws** Every field equals that of the dense matrices. Transformations that leave the logits unchanged leave it unchanged.

    **Source** arXiv:2502.10927 (symmetry, directionality), transformer-circuits.pub/2021/framework (copying).

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> rs.operators(model.view).symmetry.dims
    ('layer', 'head')
    """
    raw_product = None if view.unembed is None else vocabulary_gram(view, raw=True)
    vocabulary_product = raw_product if raw_product is None or raw else centred_gram(view, raw_product)
    rows = []
    for row in view.map_layers(lambda heads: kernel(heads, vocabulary_product, raw_product, raw)):
        rows.append(row)
        if progress is not None:
            progress(len(rows), view.layers)
    values = {name: stack_padded([row[name] for row in rows], fill_value=0.0) for name in rows[0]}
    values |= {f"mean_{name}": values[name].double().mean() for name in MEAN_FIELDS}
    values |= mean_null_draws(values, effective_width(view.layer_heads[0], raw), draws, seed) if draws else {}
    coords = {"layer": range(view.layers), "head": range(view.heads), "offset": list(OFFSETS)}
    return OPERATORS.label(values, coords, result_attributes(view, raw) | {"draws": draws, "seed": seed})


def result_attributes(view: View, raw: bool) -> dict[str, Any]:
    """Settings, formula, source and model, as attributes of the result."""
    return {
        "space": "weights without gain" if raw else "x̂ (before the gain, gain folded into M and F)",
        "formula": "M = C D_g W_Q R(δ) W_Kᵀ D_g C · scale, F = C D_g W_V W_O",
        "source": "arXiv:2502.10927; transformer-circuits.pub/2021/framework",
        "raw": int(raw),
    } | {name: str(value) for name, value in view.facts.items()}


@on_block
@torch.no_grad()
def kernel(
    heads: Heads,
    vocabulary_product: Float[Tensor, "d d"] | None,
    raw_product: Float[Tensor, "d d"] | None,
    raw: bool,
) -> dict[str, Tensor]:
    """All fields of one layer, every head at once, in float32 or better."""
    rotary_M = heads.M(raw)
    M, F = (
        Relevance(at_least_float32(rotary_M.left), at_least_float32(rotary_M.right), rotary_M.rotation),
        in_at_least_float32(heads.F(raw)),
    )
    layer_M = torch.cat(list(M.left), -1) @ torch.cat(list(M.right), -2)  # dense, because its rank is about d
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
        "copying_raw": copying_score(F if raw else in_at_least_float32(heads.F(raw=True)), raw_product),
        "copying_null": torch.zeros_like(null_mean),
        "alignment": alignment(M, F),
        "alignment_null": torch.zeros_like(null_mean),
        "alignment_null_sd": is_nonzero / heads.W_Q.shape[-2],
        "symmetry_at_offset": torch.stack([M.symmetry_at(offset) for offset in OFFSETS], -1),
        "singular_values_M": M.singular_values(),
        "singular_values_F": F.singular_values(),
        "layer_symmetry": (layer_M * layer_M.mT).sum()
        / layer_M.square().sum().clamp(min=torch.finfo(layer_M.dtype).tiny),
        "layer_directionality": directionality(layer_M.norm(dim=-1), layer_M.norm(dim=-2)),
    }


def effective_width(heads: Heads, raw: bool) -> int:
    """The dimension of the space of x̂: the width, less 1 if the norm centres."""
    return heads.W_Q.shape[-2] - int(heads.norm.subtracts_mean and not raw)


def directionality(row_norms: Float[Tensor, "*h d"], column_norms: Float[Tensor, "*h d"]) -> Float[Tensor, "*h"]:
    """(c − r)/(c + r): positive if M singles out coordinates of keys, negative for coordinates of queries."""
    c, r = _excess(column_norms), _excess(row_norms)
    return safe_divide(c - r, c + r)


def _excess(norms: Float[Tensor, "*h d"]) -> Float[Tensor, "*h"]:
    threshold = norms.mean(-1, keepdim=True) + 2 * norms.std(-1, keepdim=True, correction=0)
    return (norms - threshold).clamp(min=0).sum(-1)


def positive_share(M: Factored) -> Float[Tensor, "*h"]:
    """Σλ⁺/Σ|λ| over the eigenvalues λ of the symmetric part, and ½ for M = 0."""
    eigenvalues = M.symmetric_eigenvalues()
    total = eigenvalues.abs().sum(-1)
    return torch.where(total > 0, eigenvalues.clamp(min=0).sum(-1) / torch.where(total > 0, total, 1), 0.5)


def positivity(eigenvalues: Tensor) -> Float[Tensor, "*h"]:
    """Re Σλ/Σ|λ| in [−1, 1], and 0 if all λ are 0."""
    return safe_divide(eigenvalues.real.sum(-1), eigenvalues.abs().sum(-1))


def copying_score(F: Factored, vocabulary_product: Float[Tensor, "d d"] | None) -> Float[Tensor, "*h"]:
    """Positivity of W_E F W_U, whose eigenvalues are those of R (W_U W_E) L."""
    mapped_left = F.left if vocabulary_product is None else vocabulary_product.to(F.left.dtype) @ F.left
    return positivity(eigvals(F.right @ mapped_left))


def vocabulary_gram(view: View, raw: bool = False) -> Float[Tensor, "d d"]:
    """D_f W_U C W_E: from the stream through the final gain and the vocabulary back to the stream.

    C subtracts the mean over the vocabulary, because a vector added to every column of W_U changes no probability. With `raw` it
    is W_U W_E.
    """
    assert view.unembed is not None
    unembed, embed = at_least_float32(view.unembed), at_least_float32(view.embed)
    is_tied = unembed.data_ptr() == embed.data_ptr() and unembed.stride() == embed.T.stride()
    product = gram(embed) if is_tied else unembed @ embed
    return product if raw else centred_gram(view, product)


def centred_gram(view: View, raw_product: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """D_f W_U C W_E from W_U W_E."""
    assert view.unembed is not None
    unembed, embed = at_least_float32(view.unembed), at_least_float32(view.embed)
    return view.final_norm.fold(raw_product - unembed.mean(-1, keepdim=True) * embed.sum(0))


def gram(E: Float[Tensor, "n d"], blocks: int = 4) -> Float[Tensor, "d d"]:
    """EᵀE, computed above the diagonal and mirrored."""
    parts = E.tensor_split(blocks, -1)
    rows = [torch.cat([parts[i].mT @ parts[j] for j in range(i, blocks)], -1) for i in range(blocks)]
    upper = torch.cat([torch.nn.functional.pad(row, (E.shape[-1] - row.shape[-1], 0)) for row in rows])
    return upper.triu() + upper.triu(1).mT


def alignment(M: Factored, F: Factored) -> Float[Tensor, "*h"]:
    """cos⟨F, Mᵀ⟩ in [−1, 1], and 0 if M or F is 0."""
    norms = M.singular_values().norm(dim=-1) * F.singular_values().norm(dim=-1)  # the singular values are cached
    return safe_divide(F.inner(M.T), norms)


def in_at_least_float32(A: Factored) -> Factored:
    """The same operator in float32 or better."""
    return Factored(at_least_float32(A.left), at_least_float32(A.right))


def _mean_fields() -> dict[str, Field]:
    """The mean over heads of every field with a null, and the same for random heads."""
    mean_fields = {
        f"mean_{name}": Field((), Message("mean of {field} over all heads", field=name)) for name in MEAN_FIELDS
    }
    null_fields = {
        f"mean_{name}_null_draws": Field(
            ("draw",), Message("mean of {field} over all heads, each randomly rotated, draw by draw", field=name)
        )
        for name in MEAN_FIELDS
    }
    return mean_fields | null_fields


HEAD_DIMS = ("layer", "head")
OPERATORS = Analysis(
    name="operators",
    question="What kind of operator is each head: is it symmetric, does it copy, and how many directions does it use?",
    ask=operators,
    needs="view",
    atlas=("symmetry", "positive_share", "stable_rank_M", "copying", "alignment"),
    atlas_axis="symmetry",
    shown_with=("energy", "agreement"),
    report_runs=(ReportRun("operators", 0, options=("raw",)), ReportRun("covers", 10, for_files=True)),
    fields={
        "symmetry": Field(
            HEAD_DIMS,
            "tr(MM)/tr(MMᵀ) of the QK circuit (M): 1 if symmetric, −1 if skew, about 0 if random",
            null="symmetry_null",
            null_sd="symmetry_null_sd",
        ),
        "symmetry_null": Field(HEAD_DIMS, "mean symmetry of random M with the same singular values, 1/d"),
        "symmetry_null_sd": Field(
            HEAD_DIMS, "standard deviation of symmetry over random M with the same singular values, about √2/d"
        ),
        "directionality": Field(
            HEAD_DIMS,
            "(c − r)/(c + r), where c and r are the excess of column (key) and row (query) norms of M over mean + 2 sd",
            basis_dependent=True,
        ),
        "positive_share": Field(
            HEAD_DIMS,
            "Σλ⁺/Σ|λ| of the symmetric part of M: 1 if relevance grows with similarity along every direction",
            null="positive_share_null",
        ),
        "positive_share_null": Field(
            HEAD_DIMS,
            "mean positive_share of random M, one half because −M is as likely as M",
        ),
        "stable_rank_M": Field(HEAD_DIMS, "‖M‖²_F/‖M‖²₂, the effective number of directions of the QK circuit"),
        "stable_rank_F": Field(HEAD_DIMS, "‖F‖²_F/‖F‖²₂, the effective number of directions of the OV circuit"),
        "positivity_F": Field(HEAD_DIMS, "Re Σλ/Σ|λ| of the OV circuit (F): 1 if it copies, −1 if it inverts"),
        "copying": Field(
            HEAD_DIMS,
            "Re Σλ/Σ|λ| of W_E F D_f W_U C, with the gains of the norms, and the mean over the vocabulary subtracted (of F if there "
            "is no unembedding)",
            null="copying_null",
        ),
        "copying_raw": Field(
            HEAD_DIMS,
            "Re Σλ/Σ|λ| of W_E W_V W_O W_U, the copying score of the circuits literature: bare weights, no gains, nothing subtracted",
            gauge_dependent=True,
        ),
        "copying_null": Field(
            HEAD_DIMS, "mean copying of random F with the same singular values, 0 because −F is as likely as F"
        ),
        "alignment": Field(
            HEAD_DIMS,
            "cos⟨F, Mᵀ⟩: 1 if the head moves tokens up the gradient of its own relevance",
            null="alignment_null",
            null_sd="alignment_null_sd",
        ),
        "alignment_null": Field(HEAD_DIMS, "mean alignment of random M with the same singular values, 0"),
        "alignment_null_sd": Field(
            HEAD_DIMS, "standard deviation of alignment over random M with the same singular values, 1/d"
        ),
        "symmetry_at_offset": Field(
            ("layer", "head", "offset"),
            "tr(M(δ)M(−δ))/(‖M(δ)‖‖M(−δ)‖) at offset δ: 1 if queries and keys are tied",
        ),
        "singular_values_M": Field(("layer", "head", "rank"), "singular values of M in descending order"),
        "singular_values_F": Field(("layer", "head", "rank_F"), "singular values of F in descending order"),
        "layer_symmetry": Field(("layer",), "symmetry of the sum of M over the heads of a layer"),
        "layer_directionality": Field(
            ("layer",), "directionality of the sum of M over the heads of a layer", basis_dependent=True
        ),
    }
    | _mean_fields(),
)
