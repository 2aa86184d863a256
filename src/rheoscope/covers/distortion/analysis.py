"""What do the projections of a head do to the geometry of the tokens? Each image of the cloud against the cloud."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.covers.cloud_comparison import (
    MAX_PAIRS_AT_ONCE,
    PRESERVATION_FIELDS,
    Geometry,
    geometry,
    preservation,
    preservation_with_error,
)
from rheoscope.covers.image_geometry import batch_preservation
from rheoscope.covers.layer_inputs import LayerInput, included_positions, provenance, read_batch_layers, read_layers
from rheoscope.covers.rotated_heads import mismatch_null, random_head_rotations
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.decompositions import svdvals
from rheoscope.space.head import Heads, matmul_per_head
from rheoscope.space.layer_stack import stack_padded
from rheoscope.space.masked_means import centre_points
from rheoscope.space.operator import Factored
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Count, Draws, Neighbours, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import sample_rows

if TYPE_CHECKING:
    import xarray

IMAGES = ("query", "key", "content")
RAW_IMAGES = ("q", "k", "v")


@torch.no_grad()
def distortion(
    trace: Trace,
    nearest: Neighbours = 5,
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    rows: Count | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """What each head's projections keep of the geometry of the tokens, and what they lose.

    **Answers** "are tokens that are near each other in E still near as this head sees them?" for three images of the
    cloud: x̂M (as queries), x̂Mᵀ (as keys), x̂F (as content). M is taken at offset 0. Beside them the raw q, k and v, which
    other numbers would be for the same model: (W_Q A, W_K A⁻ᵀ) is the same M. They have `attrs["gauge"]`.

    **Formula** each field's is in its `attrs["definition"]`. Distances are Euclidean; pairs at distance 0 have no stretch.

    **Null** the same heads turned at random in E, of the same singular values (`draws` of them; 0 leaves it out, but for
    `collapse` and `mismatch`, whose nulls are known): x̂Q in place of x̂, one Q for all heads and layers of a draw, so that heads
    that share a key still do. `…_projection` is a further yardstick: random projections to as many dimensions stretch all
    directions alike, where a random head, a product of two matrices, does not.

    **Takes** `rows`, how many tokens of a long text are looked at, drawn at random from `seed`, each beside all others (None: all).
    Neighbours stay those among all tokens; pairs are those that one of the rows is in; `rsa_error` is what that leaves uncertain.

    **Gives** (layer, head, image): `spread`, `collapse`, `neighbours`, `trustworthiness`, `continuity`, `rsa`, `cka`, each with
    `…_null` (and `…_null_sd`), and `rank`, the directions that the image reads; (layer, image): `…_projection`;
    (layer, head, raw_image): each but `collapse` as `_raw`; (layer, head, angle): `principal_angles`; (layer, head):
    `mismatch` with its null, `trace_share` (symmetry and positive share, the other two of the mismatch of Q and K, are in
    `operators`). Over all heads: `mean_rsa` (image) with `mean_rsa_null_draws` (draw, image), and `mean_mismatch` with its null.

    **Laws** M = c·I keeps everything; all but `_raw` unchanged by every move that leaves the logits unchanged and by a
    scale of M or F; `_raw` of q is the number of the query's image where D_g W_K is an isometry, and so for k and v.

    **Source** Venna and Kaski 2001 (trustworthiness, continuity), Kornblith et al. 2019 (CKA).

    **Siblings** `distorted_pairs` shows the pairs of tokens behind these numbers, `stack` what several heads keep together.

    >>> import rheoscope as rs
    >>> found = rs.distortion(rs.load().trace("The keys to the cabinet are on the table in the hall"), draws=2)
    >>> bool((found.rsa_null.mean("head") < found.rsa_projection).all())
    True
    """
    n_tokens = len(included_positions(trace, keep_massive, min_tokens=4))
    if not 1 <= nearest < n_tokens / 2 or draws < 0 or draws == 1:
        raise RheoscopeError(
            f"of {n_tokens} tokens that are not massive, the nearest are fewer than half, 1 or more, and draws 0, 2 or more, got "
            f"nearest={nearest}, draws={draws}; type nearest={max(1, min(5, (n_tokens - 1) // 2))}, draws=20, or a longer text"
        )
    row_indices = sample_rows(n_tokens, _check_rows(rows), seed, trace.points.device)
    layer_rows, rotations = [], random_head_rotations(trace.view.width, draws, seed, trace.points.device)
    for layer_input in read_layers(trace, keep_massive, min_tokens=4):
        layer_rows.append(kernel(layer_input, nearest, rotations, seed, row_indices))
        if progress is not None:
            progress(len(layer_rows), trace.view.layers)
    values = {
        name: stack_padded([layer_row[name] for layer_row in layer_rows], fill_value=torch.nan)
        for name in layer_rows[0]
    }
    values |= means_over_heads(values)
    values.pop("rsa_null_draws", None)
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "image": list(IMAGES),
        "raw_image": list(RAW_IMAGES),
    }
    settings = {"nearest": nearest, "draws": draws, "seed": seed} | ({} if rows is None else {"rows": rows})
    return DISTORTION.label(values, coords, provenance(trace, keep_massive, **settings))


def _check_rows(rows: int | None) -> int | None:
    if rows is not None and rows < 2:
        raise RheoscopeError(f"rows are 2 or more, got rows={rows}; type rows=128, or rows=None for all")
    return rows


def kernel(
    layer_input: LayerInput,
    nearest: int,
    rotations: Float[Tensor, "draw d d"],
    seed: int,
    row_indices: Int[Tensor, " m"],
) -> dict[str, Tensor]:
    """All numbers of one layer, and of the draws (draw, head, image) those that are told of all heads together."""
    cloud, reference, head_images = (
        layer_input.x_hat.double(),
        geometry(layer_input.x_hat, row_indices),
        images_of_heads(layer_input.heads),
    )
    projections = [image.project(cloud) for image in head_images]
    scores = preservation_with_error(
        reference,
        stack_images([x * image.singular_values[:, None] for x, image in zip(projections, head_images, strict=True)]),
        nearest,
    )
    raw_scores = preservation(
        reference, stack_images([matmul_per_head(cloud, image.left) for image in head_images]), nearest
    )
    values = dict(zip((*PRESERVATION_FIELDS, "rsa_error"), scores.unbind(-1), strict=True))
    if len(row_indices) == len(cloud):
        del values["rsa_error"]
    values |= {f"{name}_raw": raw_scores[..., index] for index, name in enumerate(PRESERVATION_FIELDS)}
    values |= null_values(cloud, reference, head_images, nearest, rotations, seed) if len(rotations) else {}
    centred_clouds = [x - x.mean(-2, keepdim=True) for x in (cloud, *projections)]
    values["collapse"] = torch.stack([collapse(centred_clouds[0], x) for x in centred_clouds[1:]], 1)
    return values | weight_values(layer_input.heads, head_images)


@torch.no_grad()
def images_and_constants(heads: Heads) -> "tuple[list[OperatorImage], dict[str, Tensor]]":
    """The images of a layer, and what no text decides."""
    head_images = images_of_heads(heads)
    return head_images, weight_values(heads, head_images)


def weight_values(heads: Heads, head_images: "list[OperatorImage]") -> dict[str, Tensor]:
    """Numbers that no text decides."""
    width = heads.W_Q.shape[-2] - int(heads.norm.subtracts_mean)
    rank = torch.stack([image.rank for image in head_images], -1)
    return {"rank": rank, "collapse_null": (1 - rank / width).clamp(min=0)} | mismatch_values(
        head_images[0], head_images[1], width
    )


@torch.no_grad()
def batch(traces: Traces, nearest: int = 5, keep_massive: bool = False) -> dict[str, Tensor]:
    """The same of many texts at once, every token of each: all fields but those of random heads, (text, *dims)."""
    is_included = traces.valid_mask(keep_massive, min_tokens=2 * nearest + 1)
    layer_rows, layer_constants = [], map_on_cores(images_and_constants, traces.view.layer_heads)
    for layer_input, (head_images, constants) in zip(
        read_batch_layers(traces, is_included), layer_constants, strict=True
    ):
        cloud = layer_input.x_hat.double()
        projections = [image.project(cloud) for image in head_images]
        row = image_scores(cloud, is_included, head_images, projections, nearest)
        centred_cloud, is_included_per_head = (
            centre_points(cloud, is_included),
            is_included.repeat_interleave(traces.view.heads, 0),
        )
        centred_projections = (
            centre_points(x.flatten(0, 1), is_included_per_head).unflatten(0, x.shape[:2]) for x in projections
        )
        row["collapse"] = torch.stack([collapse(centred_cloud, x) for x in centred_projections], -1)
        layer_rows.append(row | {name: x.expand(len(traces), *x.shape) for name, x in constants.items()})
    values = {name: torch.stack([layer_row[name] for layer_row in layer_rows], 1) for name in layer_rows[0]}
    return values | {"mean_rsa": values["rsa"].mean((1, 2))}


def image_scores(
    cloud: Float[Tensor, "b n d"],
    is_included: Bool[Tensor, "b n"],
    head_images: "list[OperatorImage]",
    projections: list[Tensor],
    nearest: int,
) -> dict[str, Float[Tensor, "b h image"]]:
    """What images of every head keep of their cloud, and what q, k and v themselves do (`_raw`): the cloud is looked at once.

    `even` (b, h, n, r) is what each image sees of the cloud, every direction as long as it is there.
    """
    scaled_images = [x * image.singular_values[:, None] for x, image in zip(projections, head_images, strict=True)]
    all_images = stack_images([*scaled_images, *(matmul_per_head(cloud, image.left) for image in head_images)])
    scores = batch_preservation(cloud, is_included, all_images.flatten(1, 2), nearest).unflatten(
        1, all_images.shape[1:3]
    )
    parts = zip(("", "_raw"), scores.split(len(head_images), 2), strict=True)
    return {
        f"{name}{suffix}": x
        for suffix, part in parts
        for name, x in zip(PRESERVATION_FIELDS, part.unbind(-1), strict=True)
    }


def null_values(
    cloud: Float[Tensor, "n d"],
    reference: Geometry,
    head_images: "list[OperatorImage]",
    nearest: int,
    rotations: Tensor,
    seed: int,
) -> dict[str, Tensor]:
    """What the same heads keep of the cloud turned at random, and what random projections to as many dimensions keep."""
    rotations_at_once = max(1, MAX_PAIRS_AT_ONCE // (len(head_images[0].left) * reference.neighbour_ranks.numel()))
    float32_images = [
        OperatorImage(image.left.float(), image.basis.float(), image.singular_values.float()) for image in head_images
    ]  # chance is coarser
    clouds = (cloud.float() @ Q for Q in rotations.split(rotations_at_once))
    null_samples = torch.cat(
        [preservation(reference, stack_images([image.apply(x) for image in float32_images]), nearest) for x in clouds]
    )
    values = {f"{name}_null": null_samples[..., index].mean(0) for index, name in enumerate(PRESERVATION_FIELDS)}
    values |= {f"{name}_null_sd": null_samples[..., index].std(0) for index, name in enumerate(PRESERVATION_FIELDS)}
    ranks = [int(image.rank.median()) for image in head_images]
    projection_scores = {
        rank: random_projection_scores(cloud, reference, rank, nearest, len(rotations), seed) for rank in set(ranks)
    }
    values |= {
        f"{name}_projection": torch.stack([projection_scores[r][index] for r in ranks])
        for index, name in enumerate(PRESERVATION_FIELDS)
    }
    return values | {"rsa_null_draws": null_samples[..., PRESERVATION_FIELDS.index("rsa")]}


def stack_images(clouds: list[Tensor]) -> Float[Tensor, "*t image n e"]:
    """Clouds as one tensor; those of fewer dimensions get zeros, which move no distance."""
    widest = max(cloud.shape[-1] for cloud in clouds)
    return torch.stack([pad(cloud, (0, widest - cloud.shape[-1])) for cloud in clouds], -3)


@dataclass(frozen=True, eq=False)
class OperatorImage:
    """The images x̂A of a cloud by one operator of every head, A = U S Vᵀ = left · right.

    x̂ · left is q (times the scale), k or v itself. `basis` (U) are orthonormal columns that span what A reads, `sizes` (S) how
    much it stretches each; both are 0 beyond the rank of A, which may be less than the columns of `left`.
    """

    left: Float[Tensor, "h d k"]
    basis: Float[Tensor, "h d r"]
    singular_values: Float[Tensor, "h r"]

    def apply(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U S, which has all distances of x̂A."""
        return self.project(cloud) * self.singular_values[:, None]

    def project(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U: every direction that is read as long as it is in the cloud."""
        return matmul_per_head(cloud, self.basis)

    @property
    def rank(self) -> Float[Tensor, " h"]:
        return (self.singular_values > 0).sum(-1).double()


def collapse(X: Float[Tensor, "*b n d"], projection: Float[Tensor, "*b h n r"]) -> Float[Tensor, "*b h"]:
    """1 − ‖X U‖²/‖X‖² of a cloud X around its mean and of X U, what is seen of it; 0 for a cloud without variance."""
    total = X.square().sum((-2, -1))[..., None]
    return safe_divide(total - projection.square().sum((-2, -1)), total)


def images_of_heads(heads: Heads) -> list[OperatorImage]:
    """Query, key and content of every head of a layer: x̂M, x̂Mᵀ, x̂F."""
    return images_of_operators(heads.M(), heads.F())


def images_of_operators(M: Factored, F: Factored) -> list[OperatorImage]:
    """Query, key and content by the operators of some heads."""
    M, F = (Factored(at_least_float32(A.left).double(), at_least_float32(A.right).double()) for A in (M, F))
    (U, s, Vh), (U_F, s_F, _) = M.truncated_svd(), F.truncated_svd()
    return [OperatorImage(M.left, U, s), OperatorImage(M.right.mT, Vh.mT, s), OperatorImage(F.left, U_F, s_F)]


def random_projection_scores(
    cloud: Float[Tensor, "n d"], reference: Geometry, rank: int, nearest: int, draws: int, seed: int
) -> Float[Tensor, " 6"]:
    """What random projections to `rank` dimensions keep, in the mean."""
    generator = torch.Generator().manual_seed(seed)
    projections = torch.randn(draws, cloud.shape[-1], rank, generator=generator).to(cloud)
    return preservation(reference, cloud @ projections, nearest).mean(0)


def mismatch_values(query: OperatorImage, key: OperatorImage, width: int) -> dict[str, Tensor]:
    """How the space that queries read lies to the space that keys read; a head of a lower rank has fewer angles."""
    cosines, rank = svdvals(query.basis.mT @ key.basis).clamp(max=1), query.rank
    has_angle = torch.arange(cosines.shape[-1], device=cosines.device) < rank[:, None]
    diagonal = (query.left * key.left).sum((-2, -1))  # tr(L R) = ⟨L, Rᵀ⟩
    null_mean, null_sd = mismatch_null(rank, width)
    return {
        "principal_angles": torch.where(has_angle, cosines.acos(), torch.nan),
        "mismatch": torch.where(rank > 0, 1 - cosines.square().sum(-1) / rank, torch.nan),
        "mismatch_null": null_mean,
        "mismatch_null_sd": null_sd,
        "trace_share": safe_divide(diagonal, query.singular_values.sum(-1)),
    }


def means_over_heads(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over all heads, and the same of random heads.

    Of heads that share a key only queries are random beside each other, and a random space lies to any other as to a random one:
    their mismatches are independent, and the spread of their mean is known.
    """
    has_mismatch = ~values["mismatch"].isnan()
    mismatches = {name: values[name][has_mismatch] for name in ("mismatch", "mismatch_null", "mismatch_null_sd")}
    means = {
        "mean_rsa": values["rsa"].mean((0, 1)),
        "mean_mismatch": mismatches["mismatch"].mean(),
        "mean_mismatch_null": mismatches["mismatch_null"].mean(),
        "mean_mismatch_null_sd": mismatches["mismatch_null_sd"].norm() / max(1, int(has_mismatch.sum())),
    }
    return means | (
        {"mean_rsa_null_draws": values["rsa_null_draws"].mean((0, 2))} if "rsa_null_draws" in values else {}
    )


IMAGE_DIMS = ("layer", "head", "image")
DEFINITIONS = {
    "spread": "r₉₅/r₀₅ of the stretch ‖y_i − y_j‖/‖x̂_i − x̂_j‖ over pairs: 1 where the image is the cloud up to scale",
    "neighbours": "share of a token's nearest tokens that are still among its nearest in the image",
    "trustworthiness": "1 less how far, in E, those are that became neighbours in the image (Venna and Kaski): glued tokens",
    "continuity": "1 less how far, in the image, those are that were neighbours in E: torn tokens",
    "rsa": "Spearman correlation of all pairwise distances in the image with those in E",
    "cka": "cosine of the centred inner products of the image and of the cloud (linear CKA)",
}
"""What an image keeps of the cloud; each has a null and a raw twin."""


def _report_settings(results: Results) -> dict[str, Any]:
    """As many neighbours as a short text has, and few random rotations."""
    return {"nearest": max(1, min(5, (results.n_ordinary_tokens - 1) // 2)), "draws": 5}


DISTORTION = Analysis(
    name="distortion",
    question="Are tokens that are near each other still near as each head sees them?",
    ask=distortion,
    needs="trace",
    report_runs=(ReportRun("covers", 3),),
    controls=1,
    long_text_controls=False,
    report=_report_settings,
    long_text={"draws": 5, "rows": 8},
    expensive=True,
    batch=batch,
    fields={
        name: Field(IMAGE_DIMS, definition, null=f"{name}_null", null_sd=f"{name}_null_sd")
        for name, definition in DEFINITIONS.items()
    }
    | {
        f"{name}_null": Field(
            IMAGE_DIMS, f"mean of {name} for random heads of the same singular values", basis_dependent=True
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_null_sd": Field(
            IMAGE_DIMS,
            f"standard deviation of {name} among random heads of the same singular values",
            basis_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_projection": Field(
            ("layer", "image"), f"mean of {name} for random projections to as many dimensions", basis_dependent=True
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_raw": Field(
            ("layer", "head", "raw_image"),
            f"{name} of q, k, v themselves (x̂ D_g W_Q, …); its null is that of query, key and content",
            gauge_dependent=True,
        )
        for name in DEFINITIONS
    }
    | {
        "rsa_error": Field(IMAGE_DIMS, "standard error of rsa, where only some rows were looked at"),
        "collapse": Field(
            IMAGE_DIMS,
            "share of the variance of the cloud that the image cannot see: what lies outside the row space it reads",
            null="collapse_null",
        ),
        "collapse_null": Field(IMAGE_DIMS, "the same for a random head of that rank: 1 − r/d"),
        "rank": Field(IMAGE_DIMS, "number of directions that the image reads"),
        "principal_angles": Field(
            ("layer", "head", "angle"),
            "angles between the space that queries read and the space that keys read (rows of Mᵀ and of M)",
            unit="radians",
        ),
        "mismatch": Field(
            ("layer", "head"),
            "mean sin² of the principal angles: 0 where queries and keys read one space, 1 where they read other ones",
            null="mismatch_null",
            null_sd="mismatch_null_sd",
        ),
        "mismatch_null": Field(("layer", "head"), "the same for random spaces: 1 − r/d"),
        "mismatch_null_sd": Field(("layer", "head"), "standard deviation of mismatch among random spaces"),
        "trace_share": Field(
            ("layer", "head"),
            "tr M / ‖M‖_*: 1 where M compares like with like (positive semi-definite), −1 like with opposite, 0 neither",
        ),
        "mean_rsa": Field(("image",), "mean of rsa over all heads"),
        "mean_rsa_null_draws": Field(
            ("draw", "image"),
            "mean of rsa over all heads, turned at random together, draw by draw",
            basis_dependent=True,
        ),
        "mean_mismatch": Field(
            (), "mean of mismatch over all heads", null="mean_mismatch_null", null_sd="mean_mismatch_null_sd"
        ),
        "mean_mismatch_null": Field((), "the same for random spaces: the mean of 1 − r/d"),
        "mean_mismatch_null_sd": Field(
            (), "standard deviation of the mean of mismatch over all heads, of random spaces"
        ),
    },
)
