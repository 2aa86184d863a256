"""How much of the geometry of E do several heads see together? One head's cover is partial; a stack of them is less so."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.distortion import IMAGES, Image, images
from rheoscope.covers.reading import layers, provenance, tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pairs import distances, inner_products, upper
from rheoscope.space.ranks import unit_ranks
from rheoscope.space.share import exact
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

Inner = Float[Tensor, "n n"]
Alike = Callable[[Tensor], Tensor]


@torch.no_grad()
def stack(
    trace: Trace,
    image: str = "query",
    draws: int = 5,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How much of the tokens' geometry the heads of a layer see together, as one after the other is added.

    **Answers** "do the heads of a layer, each a partial cover, cover E together, or do they all look at the same part?"

    **Formula** heads used side by side have the image [x̂M₁, x̂M₂, …] (`image="key"`: x̂Mᵀ, `"content"`: x̂F); squared
    distances add up. Greedy: the head that raises the correlation most is added next.

    **Gives** (layer, heads_used): `recovered`, `order`, `recovered_random`, `recovered_null`, `recovered_cka`,
    `recovered_cka_null`; (layer): `recovered_layers` and its null, `overlap_null`, `rank_ratio`; (layer, head, other): `overlap`.
    `draws=0` leaves out what random orders and random projections give.

    **Laws** the concatenation of isometric covers recovers everything; overlap is symmetric, 1 on the diagonal; all heads
    together recover the same in any order; unchanged by every move that leaves the logits unchanged.

    **Siblings** `distortion` asks the same of single heads.

    >>> import rheoscope as rs
    >>> found = rs.stack(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((abs(found.recovered - found.recovered_random)[:, -1] < 1e-6).all())
    True
    """
    if image not in IMAGES or draws < 0:
        raise RheoscopeError(
            f"image is one of {', '.join(IMAGES)} and draws 0 or more, got image={image!r}, draws={draws}; "
            "type image='query', draws=5"
        )
    kept = tokens(trace, keep_massive, least=4)
    start, rows = inner_products(exact(trace.points[0])[kept].double()), []
    seen_below, below, alike = torch.zeros_like(start), torch.zeros_like(start), rsa(start)
    for read in layers(trace, keep_massive, least=4):
        hat, seen = read.hat.double(), images(read.heads)[IMAGES.index(image)]
        inner = inner_products(seen.of(hat))
        seen_below, below = seen_below + inner.sum(0), below + inner_products(hat)
        rows.append(kernel(hat, seen, inner, draws, seed))
        rows[-1] |= {"recovered_layers": alike(seen_below), "recovered_layers_null": alike(below)}
        if progress is not None:
            progress(len(rows), trace.view.layers)
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    heads = range(trace.view.heads)
    coords = {"layer": range(trace.view.layers), "head": heads, "other": heads}
    coords["heads_used"] = range(1, trace.view.heads + 1)
    return STACK.answer(values, coords, provenance(trace, keep_massive, image=image, draws=draws, seed=seed))


def kernel(
    hat: Float[Tensor, "n d"], seen: Image, inner: Float[Tensor, "h n n"], draws: int, seed: int
) -> dict[str, Tensor]:
    """All numbers of one layer, from the inner products of the images that its heads have of the cloud."""
    of = inner_products(hat)
    distant, linear = rsa(of), cka(of)
    order = greedy(inner, distant)
    sizes, shared = spaces(seen.basis)
    found = {
        "recovered": along(inner[order], distant),
        "order": order,
        "recovered_cka": along(inner[order], linear),
        "overlap": shared,
        "overlap_null": shared.new_tensor(min(1, seen.left.shape[-1] / seen.left.shape[-2])),
        "rank_ratio": sizes,
    }
    return found | (by_chance(hat, inner, seen.left.shape[-1], draws, seed, distant, linear) if draws else {})


def by_chance(
    hat: Float[Tensor, "n d"],
    inner: Float[Tensor, "h n n"],
    rank: int,
    draws: int,
    seed: int,
    distant: Alike,
    linear: Alike,
) -> dict[str, Float[Tensor, " h"]]:
    """What heads in random order recover, and what random projections of as many dimensions do."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(inner), generator=generator) for _ in range(draws)]
    shape = (draws, len(inner), hat.shape[-1], rank)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    null = [inner_products(hat @ one.to(hat.device)) for one in drawn]
    return {
        "recovered_random": torch.stack([along(inner[one], distant) for one in orders]).mean(0),
        "recovered_null": torch.stack([along(one, distant) for one in null]).mean(0),
        "recovered_cka_null": torch.stack([along(one, linear) for one in null]).mean(0),
    }


def rsa(of: Inner) -> Alike:
    """Spearman correlation of the pairwise distances of a cloud with those of this one; 0 where one of them has none."""
    wanted = unit_ranks(upper(distances(of)))
    return lambda inner: unit_ranks(upper(distances(inner))) @ wanted


def cka(of: Inner) -> Alike:
    """Cosine of the inner products of a cloud with those of this one; 0 where one of them has none."""
    return lambda inner: _cosine(inner, of)


def _cosine(a: Tensor, b: Tensor) -> Float[Tensor, ""]:
    size = a.norm() * b.norm()
    return (a * b).sum() / size if float(size) > 0 else torch.zeros_like(size)


def along(inner: Float[Tensor, "h n n"], alike: Alike) -> Float[Tensor, " h"]:
    """How alike the first 1, 2, …, h images together are to the cloud."""
    return torch.stack([alike(part) for part in inner.cumsum(0)])


def greedy(inner: Float[Tensor, "h n n"], alike: Alike) -> Int[Tensor, " h"]:
    """Heads in the order in which each raises the correlation of distances most."""
    order: list[int] = []
    so_far = torch.zeros_like(inner[0])
    while len(order) < len(inner):
        left = [head for head in range(len(inner)) if head not in order]
        best = max(left, key=lambda head: float(alike(so_far + inner[head])))
        order.append(best)
        so_far = so_far + inner[best]
    return torch.tensor(order, device=inner.device)


def spaces(basis: Float[Tensor, "h d r"]) -> tuple[Float[Tensor, ""], Float[Tensor, "h h"]]:
    """Σ rank / rank of the sum, and the mean cos² of the principal angles of every two spaces."""
    shared = torch.einsum("adr,bds->abrs", basis, basis).square().sum((-2, -1)) / basis.shape[-1]
    together = torch.linalg.matrix_rank(basis.transpose(0, 1).flatten(1), rtol=1e-6)
    return basis.shape[0] * basis.shape[-1] / together.double(), shared


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
        "recovered_null": Field(BY_HEADS, "mean of recovered for random projections to as many dimensions", basis=True),
        "recovered_cka": Field(
            BY_HEADS,
            "cosine of centred inner products (linear CKA) of the concatenated images, heads in the same order",
            null="recovered_cka_null",
        ),
        "recovered_cka_null": Field(BY_HEADS, "the same for random projections to as many dimensions", basis=True),
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
    },
)
