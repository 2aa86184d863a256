"""Which tokens does a head tear apart, and which does it glue together? The pairs behind the distortion of an image."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rheoscope.covers.cloud import layers, provenance
from rheoscope.covers.distortion import IMAGES, images
from rheoscope.covers.geometry import geometry
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.ranks import ranked
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

KINDS = ("torn", "glued")
DEFINITIONS = {
    "first": "place of the pair's earlier token in the text",
    "second": "place of the pair's later token",
    "before": "share of all pairs that are nearer to each other in E: 0 the nearest pair, 1 the farthest",
    "after": "the same in the image",
}


@torch.no_grad()
def torn(
    view: View, trace: Trace, layer: int, head: int, image: str = "query", top: int = 5, keep_massive: bool = False
) -> "xarray.Dataset":
    """The pairs of tokens whose place among all pairs a head changes most.

    **Answers** "which tokens that are alike in E does this head hold apart, and which unlike ones does it confuse?"

    **Formula** every pair has a rank among all distances in E and one among all distances in the image (x̂M `"query"`,
    x̂Mᵀ `"key"`, x̂F `"content"`), both as shares from 0 to 1; `torn` pairs have the largest `after` − `before`, `glued`
    ones the smallest. Pairs of the same token in the same place of E are left out.

    **Gives** (kind, pair): `first`, `second`, `before`, `after`; coordinates `first_token`, `second_token`.

    **Laws** unchanged by every move that leaves the logits unchanged.

    **Siblings** `distortion` is the whole image in numbers: torn pairs lower its continuity, glued ones its
    trustworthiness.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.torn(model.view, model.trace("The keys to the cabinet are on the table in the hall"), 2, 1)
    >>> bool((found.after.sel(kind="torn") >= found.before.sel(kind="torn")).all())
    True
    """
    view.heads_of(layer, head)
    if image not in IMAGES:
        raise RheoscopeError(f"unknown image {image!r}; type one of {', '.join(IMAGES)}")
    read = list(layers(view, trace, keep_massive, least=3))[layer]
    seen = images(read.heads)[IMAGES.index(image)].of(read.hat.double())[head]
    first, second = torch.triu_indices(len(seen), len(seen), 1, device=seen.device)
    distances = geometry(read.hat).pairs
    apart = distances > 1e-12 * distances.max()
    before, after = (_shares(pairs[apart]) for pairs in (distances, geometry(seen).pairs))
    if not 1 <= top <= len(before):
        raise RheoscopeError(f"top lies between 1 and the {len(before)} pairs of this text, got {top}; type top=5")
    order = (after - before).argsort(stable=True)
    chosen = torch.stack([order.flip(0)[:top], order[:top]])
    found = {"first": read.kept[first[apart]], "second": read.kept[second[apart]], "before": before, "after": after}
    values = {name: (("kind", "pair"), x[chosen]) for name, x in found.items()}
    words = {
        f"{which}_token": (("kind", "pair"), [[trace.tokens[at] for at in row] for row in values[which][1].tolist()])
        for which in ("first", "second")
    }
    told = provenance(trace, "torn", keep_massive, layer=layer, head=head, image=image)
    return dataset(values, DEFINITIONS, {"kind": list(KINDS)} | words, told)


def _shares(distances: Tensor) -> Tensor:
    """Ranks among all, from 0 to 1."""
    ranks = ranked(distances[None], torch.ones_like(distances[None], dtype=torch.bool))[0]
    return ranks / max(1, len(distances) - 1) + 0.5
