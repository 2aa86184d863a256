"""What do the projections of a head do to the geometry of the tokens? Each image of the cloud against the cloud."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.geometry import COMPARED, Geometry, compared, geometry
from rheoscope.covers.reading import Read, layers, provenance, tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.share import exact, share
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

IMAGES = ("query", "key", "content")
RAW_IMAGES = ("q", "k", "v")


@torch.no_grad()
def distortion(
    trace: Trace,
    nearest: int = 5,
    draws: int = 10,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """What each head's projections keep of the geometry of the tokens, and what they lose.

    **Answers** "are tokens that are near each other in E still near as this head sees them?" for three images of the
    cloud: x̂M (as queries), x̂Mᵀ (as keys), x̂F (as content). M is taken at offset 0. Beside them the raw q, k and v, which
    other numbers would be for the same model: (W_Q A, W_K A⁻ᵀ) is the same M. They have `attrs["gauge"]`.

    **Formula** each field's is in its `attrs["definition"]`. Distances are Euclidean; pairs at distance 0 have no stretch.

    **Gives** (layer, head, image): `spread`, `collapse`, `neighbours`, `trustworthiness`, `continuity`, `rsa`, `cka`;
    (layer, image): the null of each, for random projections to the same number of dimensions (`draws` of them; 0 leaves
    it out, but for `collapse`, whose null is known);
    (layer, head, raw_image): each but `collapse` as `_raw`; (layer, head, angle): `principal_angles`; (layer, head):
    `mismatch`, `trace_share` (symmetry and positive share, the other two of the mismatch of Q and K, are in `operators`).

    **Laws** M = c·I keeps everything; all but `_raw` unchanged by every move that leaves the logits unchanged and by a
    scale of M or F; `_raw` of q is the number of the query's image where D_g W_K is an isometry, and so for k and v.

    **Source** Venna and Kaski 2001 (trustworthiness, continuity), Kornblith et al. 2019 (CKA).

    **Siblings** `distorted_pairs` shows the pairs of tokens behind these numbers, `stack` what several heads keep together.

    >>> import rheoscope as rs
    >>> found = rs.distortion(rs.load().trace("The keys to the cabinet are on the table in the hall"))
    >>> bool((found.rsa.mean("head") < found.rsa_null).all())
    True
    """
    n = len(tokens(trace, keep_massive, least=4))
    if not 1 <= nearest < n / 2 or draws < 0:
        raise RheoscopeError(
            f"of {n} tokens that are not massive, the nearest are fewer than half, 1 or more, and draws 0 or more, got "
            f"nearest={nearest}, draws={draws}; type nearest={max(1, min(5, (n - 1) // 2))}, draws=10, or a longer text"
        )
    rows = []
    for read in layers(trace, keep_massive, least=4):
        rows.append(kernel(read, nearest, draws, seed))
        if progress is not None:
            progress(len(rows), trace.view.layers)
    values = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "image": list(IMAGES),
        "raw_image": list(RAW_IMAGES),
    }
    return DISTORTION.answer(values, coords, provenance(trace, keep_massive, nearest=nearest, draws=draws, seed=seed))


def kernel(read: Read, nearest: int, draws: int, seed: int) -> dict[str, Tensor]:
    """All numbers of one layer, one image of one head at a time."""
    cloud, of = read.hat.double(), geometry(read.hat)
    seen = images(read.heads)
    kept, raw = (
        torch.stack([torch.stack([compared(of, geometry(y), nearest) for y in of_heads]) for of_heads in clouds], 1)
        for clouds in ([image.of(cloud) for image in seen], [cloud @ image.left for image in seen])
    )
    ranks = [image.left.shape[-1] for image in seen]
    found = {name: kept[..., at] for at, name in enumerate(COMPARED)}
    found |= {f"{name}_raw": raw[..., at] for at, name in enumerate(COMPARED)}
    if draws:
        null = {rank: random_projections(cloud, of, rank, nearest, draws, seed) for rank in set(ranks)}
        found |= {f"{name}_null": torch.stack([null[r][at] for r in ranks]) for at, name in enumerate(COMPARED)}
    found["collapse"] = torch.stack([image.collapse(cloud) for image in seen], 1)
    found["collapse_null"] = cloud.new_tensor([1 - min(1, rank / cloud.shape[-1]) for rank in ranks])
    return found | mismatch(seen[0], seen[1])


@dataclass(frozen=True, eq=False)
class Image:
    """The images x̂A of a cloud by one operator of every head, A = left · right, in float64.

    x̂ · left is q (times the scale), k or v itself. `basis` are orthonormal columns that span what A reads; `turned` is
    `right` in as few coordinates as it needs, so that (x̂ left) turned has all distances of x̂A.
    """

    left: Float[Tensor, "h d r"]
    basis: Float[Tensor, "h d r"]
    turned: Float[Tensor, "h r e"]

    def of(self, cloud: Float[Tensor, "n d"]) -> Float[Tensor, "h n e"]:
        return (cloud @ self.left) @ self.turned

    def collapse(self, cloud: Float[Tensor, "n d"]) -> Float[Tensor, " h"]:
        """1 − ‖X U‖²/‖X‖² of the centred cloud X, U the basis; 0 for a cloud without variance."""
        X = cloud - cloud.mean(0)
        size = X.square().sum()
        seen = (X @ self.basis).square().sum((-2, -1))
        return share(size - seen, size)


def images(heads: Heads) -> list[Image]:
    """Query, key and content of every head of a layer: x̂M, x̂Mᵀ, x̂F."""
    M, F = heads.M(), heads.F()
    asking, answering = exact(M.left).double(), exact(M.right).double().mT
    (U, a), (V, b) = torch.linalg.qr(asking), torch.linalg.qr(answering)
    taken, given = exact(F.left).double(), exact(F.right).double().mT
    content = Image(taken, torch.linalg.qr(taken)[0], torch.linalg.qr(given, mode="r")[1].mT)
    return [Image(asking, U, b.mT), Image(answering, V, a.mT), content]


def random_projections(
    cloud: Float[Tensor, "n d"], of: Geometry, rank: int, nearest: int, draws: int, seed: int
) -> Float[Tensor, " 6"]:
    """What random projections to `rank` dimensions keep, in the mean."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(draws, cloud.shape[-1], rank, generator=generator, dtype=torch.float64).to(cloud.device)
    return torch.stack([compared(of, geometry(y), nearest) for y in cloud @ drawn]).mean(0)


def mismatch(query: Image, key: Image) -> dict[str, Tensor]:
    """How the space that queries read lies to the space that keys read."""
    cosines = torch.linalg.svdvals(query.basis.mT @ key.basis).clamp(max=1)
    size = torch.linalg.svdvals(query.basis.mT @ query.left @ query.turned).sum(-1)
    diagonal = (query.left * key.left).sum((-2, -1))  # tr(L R) = ⟨L, Rᵀ⟩
    rank, width = query.left.shape[-1], query.left.shape[-2]
    return {
        "principal_angles": cosines.acos(),
        "mismatch": 1 - cosines.square().mean(-1),
        "mismatch_null": cosines.new_tensor(1 - min(1, rank / width)),
        "trace_share": share(diagonal, size),
    }


OF_IMAGE = ("layer", "head", "image")
KEPT = {
    "spread": "r₉₅/r₀₅ of the stretch ‖y_i − y_j‖/‖x̂_i − x̂_j‖ over pairs: 1 where the image is the cloud up to scale",
    "neighbours": "share of a token's nearest tokens that are still among its nearest in the image",
    "trustworthiness": "1 less how far, in E, those are that became neighbours in the image (Venna and Kaski): glued tokens",
    "continuity": "1 less how far, in the image, those are that were neighbours in E: torn tokens",
    "rsa": "Spearman correlation of all pairwise distances in the image with those in E",
    "cka": "cosine of the centred inner products of the image and of the cloud (linear CKA)",
}
"""What an image keeps of the cloud; each has a null and a raw twin."""
DISTORTION = Analysis(
    name="distortion",
    question="Are tokens that are near each other still near as each head sees them?",
    ask=distortion,
    needs="trace",
    dear=True,
    fields={name: Field(OF_IMAGE, definition, null=f"{name}_null") for name, definition in KEPT.items()}
    | {
        f"{name}_null": Field(
            ("layer", "image"), f"mean of {name} for random projections to as many dimensions", basis=True
        )
        for name in KEPT
    }
    | {
        f"{name}_raw": Field(
            ("layer", "head", "raw_image"),
            f"{name} of q, k, v themselves (x̂ D_g W_Q, …); its null is that of query, key and content",
            gauge=True,
        )
        for name in KEPT
    }
    | {
        "collapse": Field(
            OF_IMAGE,
            "share of the variance of the cloud that the image cannot see: what lies outside the row space it reads",
            null="collapse_null",
        ),
        "collapse_null": Field(("layer", "image"), "the same for a random space of that rank: 1 − r/d"),
        "principal_angles": Field(
            ("layer", "head", "angle"),
            "angles between the space that queries read and the space that keys read (rows of Mᵀ and of M)",
            unit="radians",
        ),
        "mismatch": Field(
            ("layer", "head"),
            "mean sin² of the principal angles: 0 where queries and keys read one space, 1 where they read other ones",
            null="mismatch_null",
        ),
        "mismatch_null": Field(("layer",), "the same for random spaces: 1 − r/d"),
        "trace_share": Field(
            ("layer", "head"),
            "tr M / ‖M‖_*: 1 where M compares like with like (positive semi-definite), −1 like with opposite, 0 neither",
        ),
    },
)
