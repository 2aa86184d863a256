"""How well the query, key and content images of a head preserve the geometry of the tokens."""

from collections.abc import Callable
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
)
from rheoscope.covers.distortion.fields import FIELDS
from rheoscope.covers.layer_inputs import (
    LayerInput,
    included_positions,
    map_layer_inputs,
    provenance,
    read_batch_layers,
)
from rheoscope.covers.operator_images import OperatorImage, images_of_heads
from rheoscope.covers.preservation import preservation, preservation_with_error, text_preservation
from rheoscope.covers.rotated_heads import mismatch_null, random_head_rotations
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis
from rheoscope.space.decompositions import svdvals
from rheoscope.space.head import Heads
from rheoscope.space.layer_stack import stack_padded
from rheoscope.space.masked_means import centre_points
from rheoscope.space.report_run import ReportRun
from rheoscope.space.results import Results
from rheoscope.space.safe_arithmetic import safe_divide
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
    n_neighbours: Neighbours = 5,
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    max_tokens: Count | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How well each head's projections preserve the geometry of the tokens.

    **Question** Are tokens that are close in E still close in the images of this head? The images are x̂M (query),
    x̂Mᵀ (key) and x̂F (content), with M at offset 0. The raw vectors q, k and v are measured too. They depend on the
    coordinates inside the head, because (W_Q A, W_K A⁻ᵀ) gives the same M. Their fields have `attrs["gauge"]`.

    **Formula** Each field has its formula in `attrs["definition"]`. Distances are Euclidean. Pairs at distance 0 have no
    stretch.

    **Null** The same heads on randomly rotated clouds, x̂Q in place of x̂. All heads and layers share the rotation of a
    draw. `draws=0` omits this null. `collapse` and `mismatch` have a null in closed form. Fields `…_projection` compare
    with random projections of the same rank. These stretch all directions equally, whereas a random head does not.

    **Settings** `n_neighbours` is the size of a neighbourhood. `max_tokens` limits the analysis of a long text to random
    tokens, each compared with all others. None means all tokens. `rsa_error` is the standard error of this sampling.

    **Returns** (layer, head, image): `spread`, `collapse`, `neighbours`, `trustworthiness`, `continuity`, `rsa` and
    `cka`, each with `…_null` and `…_null_sd`, and `rank`. (layer, image): `…_projection`. (layer, head, raw_image):
    `…_raw`. (layer, head, angle): `principal_angles`. (layer, head): `mismatch` with its null, and `trace_share`. Means
    over heads: `mean_rsa` with `mean_rsa_null_draws`, and `mean_mismatch` with its null.

    **Laws** M = c·I preserves everything. Fields other than `…_raw` do not change under reparametrisations that preserve
    the logits, or under a scale of M or F. `…_raw` of q equals the query image if D_g W_K is an isometry.

    **Source** Venna and Kaski 2001 (trustworthiness, continuity), Kornblith et al. 2019 (CKA).

    **See also** `distorted_pairs` lists the most changed pairs of tokens. `stack` measures what several heads preserve
    together. `operators` has the symmetry and the positive share of M.

    >>> import rheoscope as rs
    >>> result = rs.distortion(rs.load().trace("The keys to the cabinet are on the table in the hall"), draws=2)
    >>> bool((result.rsa_null.mean("head") < result.rsa_projection).all())
    True
    """
    n_tokens = len(included_positions(trace, keep_massive, min_tokens=4))
    _check_settings(n_neighbours, draws, max_tokens, n_tokens)
    row_indices = sample_rows(n_tokens, max_tokens, seed, trace.points.device)
    layer_rows: list[dict[str, Tensor]] = []
    rotations = random_head_rotations(trace.view.width, draws, seed, trace.points.device)

    def measure_layer(layer_input: LayerInput) -> dict[str, Tensor]:
        return kernel(layer_input, n_neighbours, rotations, seed, row_indices)

    for layer_row in map_layer_inputs(measure_layer, trace, keep_massive, min_tokens=4):
        layer_rows.append(layer_row)
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
    settings = {"n_neighbours": n_neighbours, "draws": draws, "seed": seed} | (
        {} if max_tokens is None else {"max_tokens": max_tokens}
    )
    return DISTORTION.label(values, coords, provenance(trace, keep_massive, **settings))


def _check_settings(n_neighbours: int, draws: int, max_tokens: int | None, n_tokens: int) -> None:
    if not 1 <= n_neighbours < n_tokens / 2:
        raise RheoscopeError(
            Message(
                "n_neighbours must be less than half of the {n} tokens that are not massive, got {value}",
                n=n_tokens,
                value=n_neighbours,
            ),
            use(n_neighbours=max(1, min(5, (n_tokens - 1) // 2))),
        )
    if draws < 0 or draws == 1:
        raise RheoscopeError(Message("draws must be 0 or at least 2, got {value}", value=draws), use(draws=20))
    if max_tokens is not None and max_tokens < 2:
        raise RheoscopeError(
            Message("max_tokens must be at least 2, got {value}", value=max_tokens), use(max_tokens=128)
        )


@on_block
def kernel(
    layer_input: LayerInput,
    n_neighbours: int,
    rotations: Float[Tensor, "draw d d"],
    seed: int,
    row_indices: Int[Tensor, " m"],
) -> dict[str, Tensor]:
    """All fields of one layer, and the null draws of RSA (draw, head, image)."""
    cloud, reference, head_images = (
        layer_input.x_hat.double(),
        geometry(layer_input.x_hat, row_indices),
        images_of_heads(layer_input.heads),
    )
    vectors = [image.read(cloud) for image in head_images]
    projections = [image.project_vectors(x) for x, image in zip(vectors, head_images, strict=True)]
    scores = preservation_with_error(reference, stack_images(scaled(projections, head_images)), n_neighbours)
    raw_scores = per_head(preservation(reference, join_images(vectors), n_neighbours), vectors)
    values = dict(zip((*PRESERVATION_FIELDS, "rsa_error"), scores.unbind(-1), strict=True))
    if len(row_indices) == len(cloud):
        del values["rsa_error"]
    values |= {f"{name}_raw": raw_scores[..., index] for index, name in enumerate(PRESERVATION_FIELDS)}
    values |= null_values(cloud, reference, head_images, n_neighbours, rotations, seed) if len(rotations) else {}
    centred_clouds = [x - x.mean(-2, keepdim=True) for x in (cloud, *projections)]
    values["collapse"] = torch.stack([collapse(centred_clouds[0], x) for x in centred_clouds[1:]], 1)
    return values | weight_values(layer_input.heads, head_images)


@torch.no_grad()
def images_and_constants(heads: Heads) -> tuple[list[OperatorImage], dict[str, Tensor]]:
    """The images of the heads of a layer, and the fields that depend on the weights only."""
    head_images = images_of_heads(heads)
    return head_images, weight_values(heads, head_images)


def weight_values(heads: Heads, head_images: list[OperatorImage]) -> dict[str, Tensor]:
    """The fields that depend on the weights only."""
    width = heads.W_Q.shape[-2] - int(heads.norm.subtracts_mean)
    rank = torch.stack([image.rank for image in head_images], -1)
    return {"rank": rank, "collapse_null": (1 - rank / width).clamp(min=0)} | mismatch_values(
        head_images[0], head_images[1], width
    )


@torch.no_grad()
def batch(traces: Traces, n_neighbours: int = 5, keep_massive: bool = False) -> dict[str, Tensor]:
    """All fields except the null draws, for many texts at once and all their tokens: (text, *dims)."""
    is_included = traces.valid_mask(keep_massive, min_tokens=2 * n_neighbours + 1)
    layer_rows, layer_constants = [], traces.view.map_layers(images_and_constants)
    for layer_input, (head_images, constants) in zip(
        read_batch_layers(traces, is_included), layer_constants, strict=True
    ):
        cloud = layer_input.x_hat.double()
        vectors = [image.read(cloud) for image in head_images]
        projections = [image.project_vectors(x) for x, image in zip(vectors, head_images, strict=True)]
        row = image_scores(cloud, is_included, scaled(projections, head_images), vectors, n_neighbours)
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
    images: list[Tensor],
    vectors: list[Tensor],
    n_neighbours: int,
) -> dict[str, Float[Tensor, "b h image"]]:
    """How well the images of every head, and q, k and v themselves (`…_raw`), preserve the geometry of the cloud."""
    clouds = [*images, *vectors]
    scores = per_head(text_preservation(cloud, is_included, join_images(clouds), n_neighbours), clouds)
    parts = zip(("", "_raw"), scores.split(len(images), 2), strict=True)
    return {
        f"{name}{suffix}": x
        for suffix, part in parts
        for name, x in zip(PRESERVATION_FIELDS, part.unbind(-1), strict=True)
    }


def null_values(
    cloud: Float[Tensor, "n d"],
    reference: Geometry,
    head_images: list[OperatorImage],
    n_neighbours: int,
    rotations: Tensor,
    seed: int,
) -> dict[str, Tensor]:
    """The scores of the same heads on randomly rotated clouds, and of random projections of the same rank."""
    rotations_at_once = max(1, MAX_PAIRS_AT_ONCE // (len(head_images[0].left) * reference.neighbour_ranks.numel()))
    float32_images = [image.float() for image in head_images]  # the null needs no double precision
    clouds = (cloud.float() @ Q for Q in rotations.split(rotations_at_once))
    null_samples = torch.cat(
        [
            preservation(reference, stack_images([image.apply(x) for image in float32_images]), n_neighbours)
            for x in clouds
        ]
    )
    values = {f"{name}_null": null_samples[..., index].mean(0) for index, name in enumerate(PRESERVATION_FIELDS)}
    values |= {f"{name}_null_sd": null_samples[..., index].std(0) for index, name in enumerate(PRESERVATION_FIELDS)}
    ranks = [int(image.rank.median()) for image in head_images]
    projection_scores = {
        rank: random_projection_scores(cloud, reference, rank, n_neighbours, len(rotations), seed)
        for rank in set(ranks)
    }
    values |= {
        f"{name}_projection": torch.stack([projection_scores[r][index] for r in ranks])
        for index, name in enumerate(PRESERVATION_FIELDS)
    }
    return values | {"rsa_null_draws": null_samples[..., PRESERVATION_FIELDS.index("rsa")]}


def scaled(projections: list[Tensor], head_images: list[OperatorImage]) -> list[Tensor]:
    """x̂ U S of every image from x̂ U."""
    return [x * image.singular_values[:, None] for x, image in zip(projections, head_images, strict=True)]


def stack_images(clouds: list[Tensor]) -> Float[Tensor, "*t image n e"]:
    """Clouds as one tensor. Missing dimensions are filled with zeros, which do not change distances."""
    return torch.stack(_with_equal_width(clouds), -3)


def join_images(clouds: list[Tensor]) -> Float[Tensor, "*t c n e"]:
    """The clouds of all heads of several images, one image after the other."""
    return torch.cat(_with_equal_width(clouds), -3)


def _with_equal_width(clouds: list[Tensor]) -> list[Tensor]:
    widest = max(cloud.shape[-1] for cloud in clouds)
    return [pad(cloud, (0, widest - cloud.shape[-1])) for cloud in clouds]


def per_head(scores: Float[Tensor, "*t c s"], clouds: list[Tensor]) -> Float[Tensor, "*t h image s"]:
    """The scores of joined images, by head. Heads that share a key or a value share its scores."""
    counts = [cloud.shape[-3] for cloud in clouds]
    return torch.stack([x.repeat_interleave(max(counts) // x.shape[-2], -2) for x in scores.split(counts, -2)], -2)


def collapse(X: Float[Tensor, "*b n d"], projection: Float[Tensor, "*b h n r"]) -> Float[Tensor, "*b h"]:
    """1 − ‖X U‖²/‖X‖² of a centred cloud X and its projection X U; 0 for a cloud without variance."""
    total = X.square().sum((-2, -1))[..., None]
    return safe_divide(total - projection.square().sum((-2, -1)), total)


def random_projection_scores(
    cloud: Float[Tensor, "n d"], reference: Geometry, rank: int, n_neighbours: int, draws: int, seed: int
) -> Float[Tensor, " 6"]:
    """The mean scores of random projections to `rank` dimensions."""
    generator = torch.Generator().manual_seed(seed)
    projections = torch.randn(draws, cloud.shape[-1], rank, generator=generator).to(cloud)
    return preservation(reference, cloud @ projections, n_neighbours).mean(0)


def mismatch_values(query: OperatorImage, key: OperatorImage, width: int) -> dict[str, Tensor]:
    """The angles between the subspaces that queries and keys read. A head of lower rank has fewer angles."""
    queries, keys = query.left, key.left.repeat_interleave(len(query.left) // len(key.left), 0)
    cosines = svdvals(query.whitening.mT @ (queries.mT @ keys) @ key.whitening).clamp(max=1)
    rank = query.rank
    has_angle = torch.arange(cosines.shape[-1], device=cosines.device) < rank[:, None]
    diagonal = (queries * keys).sum((-2, -1))  # tr(L R) = ⟨L, Rᵀ⟩
    null_mean, null_sd = mismatch_null(rank, width)
    return {
        "principal_angles": torch.where(has_angle, cosines.acos(), torch.nan),
        "mismatch": torch.where(rank > 0, 1 - cosines.square().sum(-1) / rank, torch.nan),
        "mismatch_null": null_mean,
        "mismatch_null_sd": null_sd,
        "trace_share": safe_divide(diagonal, query.singular_values.sum(-1)),
    }


def means_over_heads(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over all heads, and over random heads.

    The angles between a random subspace and a fixed one are distributed as those between two random subspaces. So the
    mismatches of random heads are independent even if they share a key, and the spread of their mean is known.
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


def _report_settings(results: Results) -> dict[str, Any]:
    """At most 5 neighbours, fewer on a short text, and few random rotations."""
    return {"n_neighbours": max(1, min(5, (results.n_ordinary_tokens - 1) // 2)), "draws": 5}


DISTORTION = Analysis(
    name="distortion",
    question="Are tokens that are close in E still close in the images of each head?",
    ask=distortion,
    needs="trace",
    report_runs=(ReportRun("covers", 3),),
    report=_report_settings,
    long_text={"draws": 5, "max_tokens": 8},
    expensive=True,
    batch=batch,
    fields=FIELDS,
)
