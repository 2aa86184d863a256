"""The geometry of E that several heads of a layer recover together."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.cloud_comparison import MAX_PAIRS_AT_ONCE
from rheoscope.covers.layer_inputs import LayerInput, included_positions, map_layer_inputs, provenance
from rheoscope.covers.operator_images import OperatorImage, image_of_heads
from rheoscope.covers.rotated_heads import random_head_rotations
from rheoscope.covers.stack.recovery import Cloud, compared_cloud, greedy_recovery, pair_distances, union_ranks
from rheoscope.running.block_device import on_block
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Draws, ProjectionName, Seed
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def stack(
    trace: Trace,
    projection: ProjectionName = "query",
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The part of the tokens' geometry that the heads of a layer recover together, adding one head at a time.

    **Question** Do the heads of a layer together preserve the geometry of E, or do they all read the same part of it?

    **Formula** Several heads together have the image [x̂M₁, x̂M₂, …], so their squared distances add up. `recovered` is the Spearman
    correlation of the distances in this image and in E. `recovered_orthonormal` uses [x̂U₁, x̂U₂, …] instead, with U an orthonormal
    basis of the space that a head reads, so each direction counts once. `joint_rank_share` is the rank of all these spaces together,
    divided by the width. The order is greedy: the next head is the one with the highest `recovered`. Even that head may lower
    the correlation, if it stretches a few directions much more than the others.

    **Settings**
    `projection` is `"query"` for x̂M, `"key"` for x̂Mᵀ, `"content"` for x̂F.
    `draws` is the number of null draws. The null rotates all heads by one random rotation of E, keeps their singular values and
    orders them greedily again. `draws=0` omits the null, the random orders and the random projections.

    **Returns** (layer, heads_used): `recovered`, `recovered_orthonormal` and `recovered_cka` with their nulls, `joint_rank_share`,
    `head_order`, `recovered_random` (random order), `recovered_projection` (random projections to as many dimensions). (layer):
    `recovered_layers` and its null, `overlap_null`, `rank_ratio`. (layer, head, other): `overlap`. Over all layers with all heads:
    `mean_recovered` and `mean_recovered_orthonormal`, each with `…_null_draws` (draw) of random heads.

    **Laws** Isometries of complementary subspaces recover everything. `overlap` is symmetric and 1 on the diagonal. All heads
    together recover the same in any order. `joint_rank_share` never falls. Transformations that leave the logits unchanged leave every
    field unchanged.

    **See also** `distortion`, for single heads.

    >>> import rheoscope as rs
    >>> result = rs.stack(rs.load().trace("The keys to the cabinet are on the table in the hall"), draws=2)
    >>> bool((abs(result.recovered - result.recovered_random)[:, -1] < 1e-6).all())
    True
    """
    positions = included_positions(trace, keep_massive, min_tokens=4)
    embedding = compared_cloud(at_least_float32(trace.points[0])[positions].double())
    rotations = random_head_rotations(trace.view.width, draws, seed, trace.points.device)
    image_pairs, cloud_pairs, rows = torch.zeros_like(embedding.pair_ranks), torch.zeros_like(embedding.pair_ranks), []

    def measure_layer(layer_input: LayerInput) -> dict[str, Tensor]:
        return kernel(layer_input, projection, rotations, seed)

    for row in map_layer_inputs(measure_layer, trace, keep_massive, min_tokens=4):
        image_pairs, cloud_pairs = image_pairs + row.pop("image_pairs"), cloud_pairs + row.pop("cloud_pairs")
        row |= {"recovered_layers": embedding.rsa(image_pairs), "recovered_layers_null": embedding.rsa(cloud_pairs)}
        rows.append(row)
        if progress is not None:
            progress(len(rows), trace.view.layers)
    values = with_layer_means({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    heads = range(trace.view.heads)
    coords = {"layer": range(trace.view.layers), "head": heads, "other": heads}
    coords["heads_used"] = range(1, trace.view.heads + 1)
    return STACK.label(values, coords, provenance(trace, keep_massive, projection=projection, draws=draws, seed=seed))


@on_block
def kernel(
    layer_input: LayerInput, projection: str, rotations: Float[Tensor, "draw d d"], seed: int
) -> dict[str, Tensor]:
    """All fields of one layer, and the squared distances of pairs in the image of all its heads and in its input."""
    x_hat, head_image = layer_input.x_hat.double(), image_of_heads(layer_input.heads, projection)
    cloud, width = compared_cloud(x_hat), x_hat.shape[-1] - int(layer_input.heads.norm.subtracts_mean)
    values = {name: x[0] for name, x in greedy_recovery(cloud, x_hat[None], head_image).items()}
    order, ranks, basis = values["head_order"], head_image.rank, head_image.basis
    products = basis_products(basis)
    joint_ranks = union_ranks(basis[order], products[order][:, :, order].flatten(2).flatten(0, 1))
    images = pair_distances(head_image.apply(x_hat)).pairs
    values |= {
        "joint_rank_share": joint_ranks / width,
        "overlap": subspace_overlaps(products, ranks),
        "overlap_null": (ranks.mean() / width).clamp(max=1),
        "rank_ratio": ranks.sum() / joint_ranks[-1],
        "image_pairs": images.sum(0),
        "cloud_pairs": pair_distances(x_hat).pairs,
    }
    return values | (null_values(cloud, x_hat, head_image, images, rotations, seed) if len(rotations) else {})


def null_values(
    cloud: Cloud,
    x_hat: Float[Tensor, "n d"],
    head_image: OperatorImage,
    images: Float[Tensor, "h p"],
    rotations: Tensor,
    seed: int,
) -> dict[str, Tensor]:
    """The values of randomly rotated heads, of heads in random order and of random projections."""
    generator, n_heads = torch.Generator().manual_seed(seed), len(images)
    rotation_chunks = rotations.split(max(1, MAX_PAIRS_AT_ONCE // (n_heads * len(x_hat) ** 2)))
    orders = torch.stack([torch.randperm(n_heads, generator=generator) for _ in rotations])
    map_shape = (n_heads, *head_image.left.shape[1:])
    random_maps = [torch.randn(map_shape, generator=generator).to(x_hat) for _ in rotations]
    null_chunks = [greedy_recovery(cloud, x_hat @ Q.double(), head_image) for Q in rotation_chunks]
    null_samples = {
        name: torch.cat([chunk[name] for chunk in null_chunks]) for name in null_chunks[0] if name != "head_order"
    }
    return {
        **{f"{name}_null": x.mean(0) for name, x in null_samples.items()},
        **{f"{name}_null_draws": null_samples[name][:, -1] for name in MEAN_FIELDS},
        "recovered_random": torch.stack([cloud.rsa(images[order].cumsum(0)) for order in orders]).mean(0),
        "recovered_projection": torch.stack(
            [cloud.rsa(pair_distances(x_hat @ W).pairs.cumsum(0)) for W in random_maps]
        ).mean(0),
    }


def with_layer_means(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds the means over layers with all heads used, and their null draws."""
    means = {f"mean_{name}": values[name][:, -1].mean() for name in MEAN_FIELDS}
    null_means = {
        f"mean_{name}_null_draws": values.pop(f"{name}_null_draws").mean(0)
        for name in MEAN_FIELDS
        if f"{name}_null_draws" in values
    }
    return values | means | null_means


def basis_products(basis: Float[Tensor, "h d r"]) -> Float[Tensor, "h r h s"]:
    """The inner products of the directions of all heads."""
    columns = basis.transpose(0, 1).flatten(1)
    return (columns.mT @ columns).unflatten(0, (len(basis), -1)).unflatten(2, (len(basis), -1))


def subspace_overlaps(products: Float[Tensor, "h r h s"], ranks: Float[Tensor, " h"]) -> Float[Tensor, "h h"]:
    """The mean cos² of the principal angles between every two spaces, over the smaller of their ranks."""
    return safe_divide(products.square().sum((1, 3)), torch.minimum(ranks[:, None], ranks))


MEAN_FIELDS = ("recovered", "recovered_orthonormal")
"""Fields whose mean over layers, with all heads used, is compared with random heads."""
HEADS_USED_DIMS = ("layer", "heads_used")
STACK = Analysis(
    name="stack",
    question="Do the heads of a layer together preserve the geometry of the tokens, or do they read the same part?",
    ask=stack,
    needs="trace",
    report_runs=(ReportRun("covers", 5, for_files=True),),
    expensive=True,
    fields={
        "recovered": Field(
            HEADS_USED_DIMS,
            "Spearman correlation of the pairwise distances in the concatenated images of the first heads and in E",
            null="recovered_null",
        ),
        "head_order": Field(HEADS_USED_DIMS, "the head that is added at each step, chosen to maximise recovered"),
        "recovered_random": Field(HEADS_USED_DIMS, "mean of recovered with heads in random order"),
        "recovered_null": Field(
            HEADS_USED_DIMS,
            "mean of recovered for random heads with the same singular values, in greedy order",
            basis_dependent=True,
        ),
        "recovered_projection": Field(
            HEADS_USED_DIMS,
            "mean of recovered for random projections to the same number of dimensions",
            basis_dependent=True,
        ),
        "recovered_orthonormal": Field(
            HEADS_USED_DIMS,
            "recovered with every head's image projected on an orthonormal basis, so each direction counts once",
            null="recovered_orthonormal_null",
        ),
        "recovered_orthonormal_null": Field(
            HEADS_USED_DIMS,
            "mean of recovered_orthonormal for random heads with the same singular values",
            basis_dependent=True,
        ),
        "joint_rank_share": Field(
            HEADS_USED_DIMS,
            "rank of the joint space that the first heads read, divided by the dimension of x̂ (singular values below 1e-6 of the "
            "largest dropped)",
        ),
        "recovered_cka": Field(
            HEADS_USED_DIMS,
            "linear CKA of the concatenated images of the first heads and of E",
            null="recovered_cka_null",
        ),
        "recovered_cka_null": Field(
            HEADS_USED_DIMS,
            "mean of recovered_cka for random heads with the same singular values",
            basis_dependent=True,
        ),
        "recovered_layers": Field(
            ("layer",),
            "Spearman correlation of the distances in the images of all heads up to this layer and between embeddings",
            null="recovered_layers_null",
        ),
        "recovered_layers_null": Field(
            ("layer",), "recovered_layers of the layer inputs themselves, without any loss by the heads"
        ),
        "overlap": Field(
            ("layer", "head", "other"),
            "mean cos² of the principal angles between the spaces that two heads read (1: equal, 0: orthogonal)",
            null="overlap_null",
        ),
        "overlap_null": Field(("layer",), "mean overlap of random spaces, r/d"),
        "rank_ratio": Field(
            ("layer",),
            "sum of the ranks of the heads divided by the rank of their joint space (1 if no directions are shared)",
        ),
        "mean_recovered": Field((), "mean over layers of recovered with all heads"),
        "mean_recovered_null_draws": Field(
            ("draw",), "mean_recovered of random heads, draw by draw", basis_dependent=True
        ),
        "mean_recovered_orthonormal": Field((), "mean over layers of recovered_orthonormal with all heads"),
        "mean_recovered_orthonormal_null_draws": Field(
            ("draw",), "mean_recovered_orthonormal of random heads, draw by draw", basis_dependent=True
        ),
    },
)
