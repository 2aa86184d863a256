"""How much of the geometry of E do several heads see together? One head's cover is partial; a stack of them is less so."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.cloud_comparison import AT_ONCE
from rheoscope.covers.distortion.analysis import IMAGES, Image, images
from rheoscope.covers.layer_inputs import layers, provenance, tokens
from rheoscope.covers.rotated_heads import turned
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.operator import NOTHING
from rheoscope.space.pair_distances import distances, inner_products, upper
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

Inner = Float[Tensor, "*t n n"]
Alike = Callable[[Tensor], Tensor]


@torch.no_grad()
def stack(
    trace: Trace,
    image: str = "query",
    draws: int = 20,
    seed: int = 0,
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
    `…_drawn` (draw), the same of random heads. `draws=0` leaves out what random orders, heads and projections give.

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
    kept = tokens(trace, keep_massive, least=4)
    start, rows = inner_products(exact(trace.points[0])[kept].double()), []
    seen_below, below, alike = torch.zeros_like(start), torch.zeros_like(start), rsa(start)
    turns = turned(trace.view.width, draws, seed, trace.points.device)
    for read in layers(trace, keep_massive, least=4):
        hat, seen = read.hat.double(), images(read.heads)[IMAGES.index(image)]
        seen_below, below = seen_below + inner_products(seen.of(hat)).sum(0), below + inner_products(hat)
        rows.append(kernel(hat, seen, hat.shape[-1] - int(read.heads.norm.centred), turns, seed))
        rows[-1] |= {"recovered_layers": alike(seen_below), "recovered_layers_null": alike(below)}
        if progress is not None:
            progress(len(rows), trace.view.layers)
    values = together({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    heads = range(trace.view.heads)
    coords = {"layer": range(trace.view.layers), "head": heads, "other": heads}
    coords["heads_used"] = range(1, trace.view.heads + 1)
    return STACK.answer(values, coords, provenance(trace, keep_massive, image=image, draws=draws, seed=seed))


def kernel(
    hat: Float[Tensor, "n d"], seen: Image, width: int, turns: Float[Tensor, "draw d d"], seed: int
) -> dict[str, Tensor]:
    """All numbers of one layer, from the inner products of the images that its heads have of the cloud."""
    of = inner_products(hat)
    found = {name: x[0] for name, x in best_first(of, hat[None], seen).items()}
    ranks = seen.rank
    found |= {
        "span": union_ranks(seen.basis[found["order"]]) / width,
        "overlap": overlaps(seen),
        "overlap_null": (ranks.mean() / width).clamp(max=1),
        "rank_ratio": ranks.sum() / union_ranks(seen.basis)[-1],
    }
    return found | (by_chance(of, hat, seen, turns, seed) if len(turns) else {})


def best_first(of: Inner, clouds: Float[Tensor, "t n d"], seen: Image) -> dict[str, Float[Tensor, "t h"]]:
    """What the first 1, 2, … heads recover of the cloud `of` by what they see of others, the head that adds most first."""
    distant, linear = rsa(of), cka(of)
    inner, even = inner_products(seen.of(clouds)), inner_products(seen.evenly(clouds))
    order = greedy(inner, distant)
    inner, even = (x.take_along_dim(order[..., None, None], 1).cumsum(1) for x in (inner, even))
    return {
        "recovered": distant(inner),
        "recovered_orthonormal": distant(even),
        "recovered_cka": linear(inner),
        "order": order,
    }


def by_chance(of: Inner, hat: Float[Tensor, "n d"], seen: Image, turns: Tensor, seed: int) -> dict[str, Tensor]:
    """What heads in random order recover, and what heads turned at random and random projections do."""
    generator, inner, distant = torch.Generator().manual_seed(seed), inner_products(seen.of(hat)), rsa(of)
    parts = turns.split(max(1, AT_ONCE // inner.numel()))
    orders = torch.stack([torch.randperm(len(inner), generator=generator) for _ in turns])
    blank = [torch.randn(seen.left.shape, generator=generator).to(hat) for _ in turns]
    drawn = [best_first(of, hat @ Q.double(), seen) for Q in parts]
    heads = {name: torch.cat([one[name] for one in drawn]) for name in drawn[0] if name != "order"}
    return {
        **{f"{name}_null": x.mean(0) for name, x in heads.items()},
        **{f"{name}_drawn": heads[name][:, -1] for name in OMNIBUS},
        "recovered_random": torch.stack([distant(inner[one].cumsum(0)) for one in orders]).mean(0),
        "recovered_projection": torch.stack([distant(inner_products(hat @ W).cumsum(0)) for W in blank]).mean(0),
    }


def together(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """With means over layers of what all heads recover, and the same of random heads, draw by draw."""
    means = {f"mean_{name}": values[name][:, -1].mean() for name in OMNIBUS}
    drawn = {f"mean_{name}_drawn": values.pop(f"{name}_drawn").mean(0) for name in OMNIBUS if f"{name}_drawn" in values}
    return values | means | drawn


def rsa(of: Inner) -> Alike:
    """Spearman correlation of the pairwise distances of clouds with those of this one; 0 where one of them has none."""
    wanted = unit_ranks(upper(distances(of)))
    return lambda inner: unit_ranks(upper(distances(inner))) @ wanted


def cka(of: Inner) -> Alike:
    """Cosine of the inner products of clouds with those of this one; 0 where one of them has none."""
    return lambda inner: share((inner * of).sum((-2, -1)), inner.norm(dim=(-2, -1)) * of.norm())


def greedy(inner: Float[Tensor, "t h n n"], alike: Alike) -> Int[Tensor, "t h"]:
    """Heads in the order in which each raises the correlation of distances most, for many clouds at once."""
    heads = inner.shape[1]
    left, order = torch.arange(heads, device=inner.device).expand(len(inner), -1), []
    so_far = torch.zeros_like(inner[:, :1])
    for _ in range(heads):
        together = so_far + inner.take_along_dim(left[..., None, None], 1)
        best = alike(together).argmax(1, keepdim=True)
        order.append(left.gather(1, best))
        so_far = together.take_along_dim(best[..., None, None], 1)
        left = left[left != order[-1]].unflatten(0, (len(inner), -1))
    return torch.cat(order, 1)


def union_ranks(basis: Float[Tensor, "h d r"]) -> Float[Tensor, " h"]:
    """The rank of all that the first 1, 2, …, h heads read: each adds what of its space is not seen yet."""
    seen, ranks = basis[0, :, :0], []
    for own in basis:
        rest = own - seen @ (seen.mT @ own)
        new, sizes, _ = torch.linalg.svd(rest - seen @ (seen.mT @ rest), full_matrices=False)
        seen = torch.cat([seen, new[:, sizes > NOTHING]], -1)
        ranks.append(seen.shape[-1])
    return torch.tensor(ranks, dtype=torch.float64, device=basis.device)


def overlaps(seen: Image) -> Float[Tensor, "h h"]:
    """The mean cos² of the principal angles of every two spaces, over as many as the smaller of the two has."""
    both = torch.einsum("adr,bds->abrs", seen.basis, seen.basis).square().sum((-2, -1))
    return share(both, torch.minimum(seen.rank[:, None], seen.rank))


OMNIBUS = ("recovered", "recovered_orthonormal")
"""What all heads of a layer recover, told over all layers."""
BY_HEADS = ("layer", "heads_used")
STACK = Analysis(
    name="stack",
    question="Do the heads of a layer together see where all tokens lie, or do they all look at the same part?",
    ask=stack,
    needs="trace",
    dear=True,
    fields={
        "recovered": Field(
            BY_HEADS,
            "Spearman correlation of all pairwise distances in the concatenated images of the heads used and in E; best first",
            null="recovered_null",
        ),
        "order": Field(BY_HEADS, "which head is added at each step, the one with which the distances agree best"),
        "recovered_random": Field(BY_HEADS, "mean of recovered for heads added in random order"),
        "recovered_null": Field(
            BY_HEADS, "mean of recovered for random heads of the same singular values, best first", basis=True
        ),
        "recovered_projection": Field(
            BY_HEADS, "mean of recovered for random projections to as many dimensions", basis=True
        ),
        "recovered_orthonormal": Field(
            BY_HEADS,
            "the same, every head's image through an orthonormal basis of what it reads: each direction counts once",
            null="recovered_orthonormal_null",
        ),
        "recovered_orthonormal_null": Field(
            BY_HEADS, "mean of recovered_orthonormal for random heads of the same singular values", basis=True
        ),
        "span": Field(
            BY_HEADS, "rank of all that the heads used read together, as a share of the dimensions in which x̂ lies"
        ),
        "recovered_cka": Field(
            BY_HEADS,
            "cosine of centred inner products (linear CKA) of the concatenated images, heads in the same order",
            null="recovered_cka_null",
        ),
        "recovered_cka_null": Field(BY_HEADS, "the same for random heads of the same singular values", basis=True),
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
        "mean_recovered_drawn": Field(("draw",), "the same for random heads, draw by draw", basis=True),
        "mean_recovered_orthonormal": Field((), "mean over layers of what all heads recover with orthonormal reads"),
        "mean_recovered_orthonormal_drawn": Field(("draw",), "the same for random heads, draw by draw", basis=True),
    },
)
