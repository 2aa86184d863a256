"""The geometry of E that several heads of a layer recover together."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.cloud_comparison import MAX_PAIRS_AT_ONCE
from rheoscope.covers.distortion.analysis import IMAGES, OperatorImage, images_of_heads
from rheoscope.covers.layer_inputs import included_positions, provenance, read_layers
from rheoscope.covers.rotated_heads import random_head_rotations
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.operator import RANK_TOLERANCE
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Draws, ProjectionName, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

InnerProducts = Float[Tensor, "*t n n"]
Similarity = Callable[[Tensor], Tensor]


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
    embedding_products, rows = centred_inner_products(at_least_float32(trace.points[0])[positions].double()), []
    image_products, cloud_products, embedding_rsa = (
        torch.zeros_like(embedding_products),
        torch.zeros_like(embedding_products),
        rsa_with(embedding_products),
    )
    rotations = random_head_rotations(trace.view.width, draws, seed, trace.points.device)
    for layer_input in read_layers(trace, keep_massive, min_tokens=4):
        x_hat, head_image = layer_input.x_hat.double(), images_of_heads(layer_input.heads)[IMAGES.index(projection)]
        image_products, cloud_products = (
            image_products + centred_inner_products(head_image.apply(x_hat)).sum(0),
            cloud_products + centred_inner_products(x_hat),
        )
        rows.append(
            kernel(x_hat, head_image, x_hat.shape[-1] - int(layer_input.heads.norm.subtracts_mean), rotations, seed)
        )
        rows[-1] |= {
            "recovered_layers": embedding_rsa(image_products),
            "recovered_layers_null": embedding_rsa(cloud_products),
        }
        if progress is not None:
            progress(len(rows), trace.view.layers)
    values = with_layer_means({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    heads = range(trace.view.heads)
    coords = {"layer": range(trace.view.layers), "head": heads, "other": heads}
    coords["heads_used"] = range(1, trace.view.heads + 1)
    return STACK.label(values, coords, provenance(trace, keep_massive, projection=projection, draws=draws, seed=seed))


def kernel(
    x_hat: Float[Tensor, "n d"], head_image: OperatorImage, width: int, rotations: Float[Tensor, "draw d d"], seed: int
) -> dict[str, Tensor]:
    """All fields of one layer, from the inner products of the images of the cloud under its heads."""
    cloud_products = centred_inner_products(x_hat)
    values = {name: x[0] for name, x in greedy_recovery(cloud_products, x_hat[None], head_image).items()}
    ranks = head_image.rank
    values |= {
        "joint_rank_share": union_ranks(head_image.basis[values["head_order"]]) / width,
        "overlap": subspace_overlaps(head_image),
        "overlap_null": (ranks.mean() / width).clamp(max=1),
        "rank_ratio": ranks.sum() / union_ranks(head_image.basis)[-1],
    }
    return values | (null_values(cloud_products, x_hat, head_image, rotations, seed) if len(rotations) else {})


def greedy_recovery(
    cloud_products: InnerProducts, clouds: Float[Tensor, "t n d"], head_image: OperatorImage
) -> dict[str, Float[Tensor, "t h"]]:
    """The part of one cloud that the first 1, 2, … heads recover from other clouds, in greedy order."""
    cloud_rsa, cloud_cka = rsa_with(cloud_products), cka_with(cloud_products)
    image_products, projected_products = (
        centred_inner_products(head_image.apply(clouds)),
        centred_inner_products(head_image.project(clouds)),
    )
    order = greedy_order(image_products, cloud_rsa)
    image_products, projected_products = (
        x.take_along_dim(order[..., None, None], 1).cumsum(1) for x in (image_products, projected_products)
    )
    return {
        "recovered": cloud_rsa(image_products),
        "recovered_orthonormal": cloud_rsa(projected_products),
        "recovered_cka": cloud_cka(image_products),
        "head_order": order,
    }


def null_values(
    cloud_products: InnerProducts, x_hat: Float[Tensor, "n d"], head_image: OperatorImage, rotations: Tensor, seed: int
) -> dict[str, Tensor]:
    """The values of randomly rotated heads, of heads in random order and of random projections."""
    generator, image_products, cloud_rsa = (
        torch.Generator().manual_seed(seed),
        centred_inner_products(head_image.apply(x_hat)),
        rsa_with(cloud_products),
    )
    rotation_chunks = rotations.split(max(1, MAX_PAIRS_AT_ONCE // image_products.numel()))
    orders = torch.stack([torch.randperm(len(image_products), generator=generator) for _ in rotations])
    random_maps = [torch.randn(head_image.left.shape, generator=generator).to(x_hat) for _ in rotations]
    null_chunks = [greedy_recovery(cloud_products, x_hat @ Q.double(), head_image) for Q in rotation_chunks]
    null_samples = {
        name: torch.cat([chunk[name] for chunk in null_chunks]) for name in null_chunks[0] if name != "head_order"
    }
    return {
        **{f"{name}_null": x.mean(0) for name, x in null_samples.items()},
        **{f"{name}_null_draws": null_samples[name][:, -1] for name in MEAN_FIELDS},
        "recovered_random": torch.stack([cloud_rsa(image_products[order].cumsum(0)) for order in orders]).mean(0),
        "recovered_projection": torch.stack(
            [cloud_rsa(centred_inner_products(x_hat @ W).cumsum(0)) for W in random_maps]
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


def rsa_with(reference: InnerProducts) -> Similarity:
    """A function that correlates (Spearman) the pairwise distances of clouds with those of the reference."""
    reference_ranks = unit_ranks(upper_triangle(distances(reference)))
    return lambda inner: unit_ranks(upper_triangle(distances(inner))) @ reference_ranks


def cka_with(reference: InnerProducts) -> Similarity:
    """A function that gives the cosine of the inner products of clouds and of the reference (linear CKA)."""
    return lambda inner: safe_divide((inner * reference).sum((-2, -1)), inner.norm(dim=(-2, -1)) * reference.norm())


def greedy_order(image_products: Float[Tensor, "t h n n"], similarity: Similarity) -> Int[Tensor, "t h"]:
    """The greedy order of the heads by similarity, for many clouds at once."""
    n_heads = image_products.shape[1]
    remaining_heads, order = torch.arange(n_heads, device=image_products.device).expand(len(image_products), -1), []
    current_products = torch.zeros_like(image_products[:, :1])
    for _ in range(n_heads):
        candidates = current_products + image_products.take_along_dim(remaining_heads[..., None, None], 1)
        best = similarity(candidates).argmax(1, keepdim=True)
        order.append(remaining_heads.gather(1, best))
        current_products = candidates.take_along_dim(best[..., None, None], 1)
        remaining_heads = remaining_heads[remaining_heads != order[-1]].unflatten(0, (len(image_products), -1))
    return torch.cat(order, 1)


def union_ranks(basis: Float[Tensor, "h d r"]) -> Float[Tensor, " h"]:
    """The rank of the joint space of the first 1, 2, …, h heads. Each head adds its new directions."""
    union_basis, ranks = basis[0, :, :0], []
    for head_basis in basis:
        residual = head_basis - union_basis @ (union_basis.mT @ head_basis)
        new_directions, singular_values, _ = torch.linalg.svd(
            residual - union_basis @ (union_basis.mT @ residual), full_matrices=False
        )
        union_basis = torch.cat([union_basis, new_directions[:, singular_values > RANK_TOLERANCE]], -1)
        ranks.append(union_basis.shape[-1])
    return torch.tensor(ranks, dtype=torch.float64, device=basis.device)


def subspace_overlaps(head_image: OperatorImage) -> Float[Tensor, "h h"]:
    """The mean cos² of the principal angles between every two spaces, over the smaller of their ranks."""
    squared_cosines = torch.einsum("adr,bds->abrs", head_image.basis, head_image.basis).square().sum((-2, -1))
    return safe_divide(squared_cosines, torch.minimum(head_image.rank[:, None], head_image.rank))


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
