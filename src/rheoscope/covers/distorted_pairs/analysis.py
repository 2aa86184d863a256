"""Which tokens does a head tear apart, and which does it glue together? The pairs behind the distortion of an image."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.distortion.analysis import IMAGES, images
from rheoscope.covers.layer_inputs import Read, layer_from_end, layers, provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import distances, inner_products, upper
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import ranked

if TYPE_CHECKING:
    import xarray

KINDS = ("torn", "glued")


@torch.no_grad()
def distorted_pairs(
    trace: Trace, layer: int = -1, head: int = 0, image: str = "query", top: int = 5, keep_massive: bool = False
) -> "xarray.Dataset":
    """The pairs of tokens whose place among all pairs a head changes most.

    **Answers** "which tokens that are alike in E does this head hold apart, and which unlike ones does it confuse?"

    **Formula** every pair has a rank among all distances in E and one among all distances in the image (x̂M `"query"`,
    x̂Mᵀ `"key"`, x̂F `"content"`), both as shares from 0 to 1; `torn` pairs have the largest `after` − `before`, `glued`
    ones the smallest. Pairs of the same token in the same place of E are left out.

    **Gives** (kind, pair): `first`, `second`, `before`, `after`; coordinates `first_token`, `second_token`. A negative
    `layer` counts from the end.

    **Laws** unchanged by every move that leaves the logits unchanged.

    **Siblings** `distortion` is the whole image in numbers: torn pairs lower its continuity, glued ones its
    trustworthiness.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table in the hall")
    >>> found = rs.distorted_pairs(trace, layer=2, head=1)
    >>> bool((found.after.sel(kind="torn") >= found.before.sel(kind="torn")).all())
    True
    """
    layer = layer_from_end(trace.view, layer, head)
    if image not in IMAGES:
        raise RheoscopeError(f"unknown image {image!r}; type one of {', '.join(IMAGES)}")
    found = kernel(list(layers(trace, keep_massive, least=3))[layer], head, image)
    if not 1 <= top <= len(found["before"]):
        pairs = len(found["before"])
        raise RheoscopeError(
            f"top lies between 1 and the {pairs} pairs of this text, got {top}; type top={min(5, pairs)}"
        )
    order = (found["after"] - found["before"]).argsort(stable=True)
    chosen = torch.stack([order.flip(0)[:top], order[:top]])
    values = {name: x[chosen] for name, x in found.items()}
    words = {
        f"{which}_token": (("kind", "pair"), [[trace.tokens[at] for at in row] for row in values[which].tolist()])
        for which in ("first", "second")
    }
    attributes = provenance(trace, keep_massive, layer=layer, head=head, image=image, top=top)
    return DISTORTED_PAIRS.answer(values, {"kind": list(KINDS)} | words, attributes)


def kernel(read: Read, head: int, image: str) -> dict[str, Tensor]:
    """Both places of every pair of tokens that are apart in E, and its rank among all before and after one head."""
    return changed(read, images(read.heads)[IMAGES.index(image)].of(read.hat.double())[head])


def changed(read: Read, seen: Float[Tensor, "n r"]) -> dict[str, Tensor]:
    """The same for any image of the tokens."""
    first, second = torch.triu_indices(len(seen), len(seen), 1, device=seen.device)
    far = _distances(read.hat)
    apart = far > 1e-12 * far.max()
    before, after = (_shares(pairs[apart]) for pairs in (far, _distances(seen)))
    return {"first": read.at[first[apart]], "second": read.at[second[apart]], "before": before, "after": after}


def _distances(x: Float[Tensor, "n d"]) -> Float[Tensor, " pairs"]:
    return upper(distances(inner_products(x.double())))


def _shares(distances: Tensor) -> Tensor:
    """Ranks among all, from 0 to 1."""
    ranks = ranked(distances[None], torch.ones_like(distances[None], dtype=torch.bool))[0]
    return ranks / max(1, len(distances) - 1) + 0.5


DISTORTED_PAIRS = Analysis(
    name="distorted_pairs",
    question="Which alike tokens does one head hold apart, and which unlike ones does it confuse?",
    ask=distorted_pairs,
    needs="trace",
    fields={
        "first": Field(("kind", "pair"), "place of the pair's earlier token in the text"),
        "second": Field(("kind", "pair"), "place of the pair's later token"),
        "before": Field(
            ("kind", "pair"),
            "share of all pairs that are nearer to each other in E: 0 the nearest pair, 1 the farthest",
        ),
        "after": Field(("kind", "pair"), "the same in the image"),
    },
)
