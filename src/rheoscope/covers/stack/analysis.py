"""How much of the geometry of E do several heads see together? One head's cover is partial; a stack of them is less so."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.cloud_comparison import MAX_PAIRS_AT_ONCE
from rheoscope.covers.distortion.analysis import IMAGES, OperatorImage, images_of_heads
from rheoscope.covers.layer_inputs import included_positions, provenance, read_layers
from rheoscope.covers.rotated_heads import random_head_rotations
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.operator import RANK_TOLERANCE
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Draws, ImageName, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

InnerProducts = Float[Tensor, "*t n n"]
Similarity = Callable[[Tensor], Tensor]


@torch.no_grad()
def stack(
    trace: Trace,
    image: ImageName = "query",
    draws: Draws = 20,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How much of the tokens' geometry the heads of a layer see together, as one after the other is added.

    **Answers** "do the heads of a layer, each a partial cover, cover E together, or do they all look at the same part?" in three
    numbers: which part of E they read at all (`span`), how far the distances there are those of E when every direction that a
    head reads counts once (`recovered_orthonormal`), and when it counts as much as the head stretches it (`recovered`).

    **Formula** heads used side by side have the image [x̂M₁, x̂M₂, …] (`image="key"`: x̂Mᵀ, `"content"`: x̂F); squared
    distances add up. Orthonormal: [x̂U₁, x̂U₂, …], U an orthonormal basis of what a head reads. Greedy: the head that raises the
    correlation of `recovered` most is added next, and it may still lower it: a head that stretches few directions much drowns
    the others.

    **Null** the same heads turned at random in E, all by one rotation, of the same singular values, and ordered best first by
    themselves (a maximum beside maxima). Random projections to as many dimensions (`…_projection`) are a further yardstick.

    **Gives** (layer, heads_used): `span`, `recovered`, `recovered_orthonormal`, `recovered_cka` with their nulls, `order`,
    `recovered_random`, `recovered_projection`; (layer): `recovered_layers` and its null, `overlap_null`, `rank_ratio`;
    (layer, head, other): `overlap`; over all layers, all heads used: `mean_recovered` and `mean_recovered_orthonormal`, each with
    `…_null_draws` (draw), the same of random heads. `draws=0` leaves out what random orders, heads and projections give.

    **Laws** the concatenation of isometric covers recovers everything; overlap is symmetric, 1 on the diagonal; all heads
    together recover the same in any order; the span never falls; unchanged by every move that leaves the logits unchanged.

    **Siblings** `distortion` asks the same of single heads.

    >>> import rheoscope as rs
    >>> found = rs.stack(rs.load().trace("The keys to the cabinet are on the table in the hall"), draws=2)
    >>> bool((abs(found.recovered - found.recovered_random)[:, -1] < 1e-6).all())
    True
    """
    if image not in IMAGES or draws < 0:
        raise RheoscopeError(
            f"image is one of {', '.join(IMAGES)} and draws 0 or more, got image={image!r}, draws={draws}; "
            "type image='query', draws=20"
        )
    positions = included_positions(trace, keep_massive, min_tokens=4)
    embedding_products, rows = centred_inner_products(at_least_float32(trace.points[0])[positions].double()), []
    image_products, cloud_products, embedding_rsa = (
        torch.zeros_like(embedding_products),
        torch.zeros_like(embedding_products),
        rsa_with(embedding_products),
    )
    rotations = random_head_rotations(trace.view.width, draws, seed, trace.points.device)
    for layer_input in read_layers(trace, keep_massive, min_tokens=4):
        x_hat, head_image = layer_input.x_hat.double(), images_of_heads(layer_input.heads)[IMAGES.index(image)]
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
    return STACK.label(values, coords, provenance(trace, keep_massive, image=image, draws=draws, seed=seed))


def kernel(
    x_hat: Float[Tensor, "n d"], head_image: OperatorImage, width: int, rotations: Float[Tensor, "draw d d"], seed: int
) -> dict[str, Tensor]:
    """All numbers of one layer, from the inner products of the images that its heads have of the cloud."""
    cloud_products = centred_inner_products(x_hat)
    values = {name: x[0] for name, x in greedy_recovery(cloud_products, x_hat[None], head_image).items()}
    ranks = head_image.rank
    values |= {
        "span": union_ranks(head_image.basis[values["order"]]) / width,
        "overlap": subspace_overlaps(head_image),
        "overlap_null": (ranks.mean() / width).clamp(max=1),
        "rank_ratio": ranks.sum() / union_ranks(head_image.basis)[-1],
    }
    return values | (null_values(cloud_products, x_hat, head_image, rotations, seed) if len(rotations) else {})


def greedy_recovery(
    cloud_products: InnerProducts, clouds: Float[Tensor, "t n d"], head_image: OperatorImage
) -> dict[str, Float[Tensor, "t h"]]:
    """What the first 1, 2, … heads recover of the cloud `of` by what they see of others, the head that adds most first."""
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
        "order": order,
    }


def null_values(
    cloud_products: InnerProducts, x_hat: Float[Tensor, "n d"], head_image: OperatorImage, rotations: Tensor, seed: int
) -> dict[str, Tensor]:
    """What heads in random order recover, and what heads turned at random and random projections do."""
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
        name: torch.cat([chunk[name] for chunk in null_chunks]) for name in null_chunks[0] if name != "order"
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
    """With means over layers of what all heads recover, and the same of random heads, draw by draw."""
    means = {f"mean_{name}": values[name][:, -1].mean() for name in MEAN_FIELDS}
    null_means = {
        f"mean_{name}_null_draws": values.pop(f"{name}_null_draws").mean(0)
        for name in MEAN_FIELDS
        if f"{name}_null_draws" in values
    }
    return values | means | null_means


def rsa_with(reference: InnerProducts) -> Similarity:
    """Spearman correlation of the pairwise distances of clouds with those of this one; 0 where one of them has none."""
    reference_ranks = unit_ranks(upper_triangle(distances(reference)))
    return lambda inner: unit_ranks(upper_triangle(distances(inner))) @ reference_ranks


def cka_with(reference: InnerProducts) -> Similarity:
    """Cosine of the inner products of clouds with those of this one; 0 where one of them has none."""
    return lambda inner: safe_divide((inner * reference).sum((-2, -1)), inner.norm(dim=(-2, -1)) * reference.norm())


def greedy_order(image_products: Float[Tensor, "t h n n"], similarity: Similarity) -> Int[Tensor, "t h"]:
    """Heads in the order in which each raises the correlation of distances most, for many clouds at once."""
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
    """The rank of all that the first 1, 2, …, h heads read: each adds what of its space is not seen yet."""
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
    """The mean cos² of the principal angles of every two spaces, over as many as the smaller of the two has."""
    squared_cosines = torch.einsum("adr,bds->abrs", head_image.basis, head_image.basis).square().sum((-2, -1))
    return safe_divide(squared_cosines, torch.minimum(head_image.rank[:, None], head_image.rank))


MEAN_FIELDS = ("recovered", "recovered_orthonormal")
"""What all heads of a layer recover, told over all layers."""
HEADS_USED_DIMS = ("layer", "heads_used")
STACK = Analysis(
    name="stack",
    question="Do the heads of a layer together see where all tokens lie, or do they all look at the same part?",
    ask=stack,
    needs="trace",
    report_runs=(ReportRun("covers", 5, for_files=True),),
    expensive=True,
    fields={
        "recovered": Field(
            HEADS_USED_DIMS,
            "Spearman correlation of all pairwise distances in the concatenated images of the heads used and in E; best first",
            null="recovered_null",
        ),
        "order": Field(
            HEADS_USED_DIMS, "which head is added at each step, the one with which the distances agree best"
        ),
        "recovered_random": Field(HEADS_USED_DIMS, "mean of recovered for heads added in random order"),
        "recovered_null": Field(
            HEADS_USED_DIMS,
            "mean of recovered for random heads of the same singular values, best first",
            basis_dependent=True,
        ),
        "recovered_projection": Field(
            HEADS_USED_DIMS, "mean of recovered for random projections to as many dimensions", basis_dependent=True
        ),
        "recovered_orthonormal": Field(
            HEADS_USED_DIMS,
            "the same, every head's image through an orthonormal basis of what it reads: each direction counts once",
            null="recovered_orthonormal_null",
        ),
        "recovered_orthonormal_null": Field(
            HEADS_USED_DIMS,
            "mean of recovered_orthonormal for random heads of the same singular values",
            basis_dependent=True,
        ),
        "span": Field(
            HEADS_USED_DIMS,
            "rank of all that the heads used read together, as a share of the dimensions in which x̂ lies",
        ),
        "recovered_cka": Field(
            HEADS_USED_DIMS,
            "cosine of centred inner products (linear CKA) of the concatenated images, heads in the same order",
            null="recovered_cka_null",
        ),
        "recovered_cka_null": Field(
            HEADS_USED_DIMS, "the same for random heads of the same singular values", basis_dependent=True
        ),
        "recovered_layers": Field(
            ("layer",),
            "Spearman correlation of distances in the images of all heads up to this layer and of the embeddings",
            null="recovered_layers_null",
        ),
        "recovered_layers_null": Field(
            ("layer",), "the same for the clouds that these layers read, themselves: covers that lose nothing"
        ),
        "overlap": Field(
            ("layer", "head", "other"),
            "mean cos² of the principal angles between the spaces that two heads read: 1 the same, 0 nothing in common",
            null="overlap_null",
        ),
        "overlap_null": Field(("layer",), "the same for random spaces: r/d"),
        "rank_ratio": Field(
            ("layer",),
            "sum of the heads' ranks over the rank of all that they read together: 1 where no two heads read the same",
        ),
        "mean_recovered": Field((), "mean over layers of what all heads recover"),
        "mean_recovered_null_draws": Field(("draw",), "the same for random heads, draw by draw", basis_dependent=True),
        "mean_recovered_orthonormal": Field((), "mean over layers of what all heads recover with orthonormal reads"),
        "mean_recovered_orthonormal_null_draws": Field(
            ("draw",), "the same for random heads, draw by draw", basis_dependent=True
        ),
    },
)
