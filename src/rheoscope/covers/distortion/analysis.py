"""What do the projections of a head do to the geometry of the tokens? Each image of the cloud against the cloud."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from rheoscope.covers.cloud_comparison import AT_ONCE, COMPARED, Geometry, geometry, kept, kept_with_error
from rheoscope.covers.image_geometry import kept_by_images
from rheoscope.covers.layer_inputs import Read, layers, layers_of_many, provenance, tokens
from rheoscope.covers.rotated_heads import mismatch_null, turned
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.cpu_cores import on_cores
from rheoscope.space.decompositions import svdvals
from rheoscope.space.head import Heads, by_every_head
from rheoscope.space.layer_stack import layer_by_layer
from rheoscope.space.masked_means import centred
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import drawn_rows

if TYPE_CHECKING:
    import xarray

IMAGES = ("query", "key", "content")
RAW_IMAGES = ("q", "k", "v")


@torch.no_grad()
def distortion(
    trace: Trace,
    nearest: int = 5,
    draws: int = 20,
    seed: int = 0,
    keep_massive: bool = False,
    rows: int | None = None,
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
    `operators`). Over all heads: `mean_rsa` (image) with `mean_rsa_drawn` (draw, image), and `mean_mismatch` with its null.

    **Laws** M = c·I keeps everything; all but `_raw` unchanged by every move that leaves the logits unchanged and by a
    scale of M or F; `_raw` of q is the number of the query's image where D_g W_K is an isometry, and so for k and v.

    **Source** Venna and Kaski 2001 (trustworthiness, continuity), Kornblith et al. 2019 (CKA).

    **Siblings** `distorted_pairs` shows the pairs of tokens behind these numbers, `stack` what several heads keep together.

    >>> import rheoscope as rs
    >>> found = rs.distortion(rs.load().trace("The keys to the cabinet are on the table in the hall"), draws=2)
    >>> bool((found.rsa_null.mean("head") < found.rsa_projection).all())
    True
    """
    n = len(tokens(trace, keep_massive, least=4))
    if not 1 <= nearest < n / 2 or draws < 0 or draws == 1:
        raise RheoscopeError(
            f"of {n} tokens that are not massive, the nearest are fewer than half, 1 or more, and draws 0, 2 or more, got "
            f"nearest={nearest}, draws={draws}; type nearest={max(1, min(5, (n - 1) // 2))}, draws=20, or a longer text"
        )
    some = drawn_rows(n, _enough(rows), seed, trace.points.device)
    found, turns = [], turned(trace.view.width, draws, seed, trace.points.device)
    for read in layers(trace, keep_massive, least=4):
        found.append(kernel(read, nearest, turns, seed, some))
        if progress is not None:
            progress(len(found), trace.view.layers)
    values = {name: layer_by_layer([one[name] for one in found], beyond=torch.nan) for name in found[0]}
    values |= together(values)
    values.pop("rsa_drawn", None)
    coords = {
        "layer": range(trace.view.layers),
        "head": range(trace.view.heads),
        "image": list(IMAGES),
        "raw_image": list(RAW_IMAGES),
    }
    settings = {"nearest": nearest, "draws": draws, "seed": seed} | ({} if rows is None else {"rows": rows})
    return DISTORTION.answer(values, coords, provenance(trace, keep_massive, **settings))


def _enough(rows: int | None) -> int | None:
    if rows is not None and rows < 2:
        raise RheoscopeError(f"rows are 2 or more, got rows={rows}; type rows=128, or rows=None for all")
    return rows


def kernel(
    read: Read, nearest: int, turns: Float[Tensor, "draw d d"], seed: int, some: Int[Tensor, " m"]
) -> dict[str, Tensor]:
    """All numbers of one layer, and of the draws (draw, head, image) those that are told of all heads together."""
    cloud, of, seen = read.hat.double(), geometry(read.hat, some), images(read.heads)
    even = [image.evenly(cloud) for image in seen]
    own = kept_with_error(of, in_one([x * image.sizes[:, None] for x, image in zip(even, seen, strict=True)]), nearest)
    raw = kept(of, in_one([by_every_head(cloud, image.left) for image in seen]), nearest)
    found = dict(zip((*COMPARED, "rsa_error"), own.unbind(-1), strict=True))
    if len(some) == len(cloud):
        del found["rsa_error"]
    found |= {f"{name}_raw": raw[..., at] for at, name in enumerate(COMPARED)}
    found |= by_chance(cloud, of, seen, nearest, turns, seed) if len(turns) else {}
    around = [x - x.mean(-2, keepdim=True) for x in (cloud, *even)]
    found["collapse"] = torch.stack([collapse(around[0], x) for x in around[1:]], 1)
    return found | of_weights(read.heads, seen)


@torch.no_grad()
def known_of(heads: Heads) -> "tuple[list[Image], dict[str, Tensor]]":
    """The images of a layer, and what no text decides."""
    seen = images(heads)
    return seen, of_weights(heads, seen)


def of_weights(heads: Heads, seen: "list[Image]") -> dict[str, Tensor]:
    """Numbers that no text decides."""
    width = heads.W_Q.shape[-2] - int(heads.norm.centred)
    rank = torch.stack([image.rank for image in seen], -1)
    return {"rank": rank, "collapse_null": (1 - rank / width).clamp(min=0)} | mismatch(seen[0], seen[1], width)


@torch.no_grad()
def many(traces: Traces, nearest: int = 5, keep_massive: bool = False) -> dict[str, Tensor]:
    """The same of many texts at once, every token of each: all fields but those of random heads, (text, *dims)."""
    there = traces.ordinary(keep_massive, least=2 * nearest + 1)
    found, weights = [], on_cores(known_of, traces.view.blocks)
    for read, (seen, known) in zip(layers_of_many(traces, there), weights, strict=True):
        cloud = read.hat.double()
        even = [image.evenly(cloud) for image in seen]
        row = of_images(cloud, there, seen, even, nearest)
        around, each = centred(cloud, there), there.repeat_interleave(traces.view.heads, 0)
        alike = (centred(x.flatten(0, 1), each).unflatten(0, x.shape[:2]) for x in even)
        row["collapse"] = torch.stack([collapse(around, x) for x in alike], -1)
        found.append(row | {name: x.expand(len(traces), *x.shape) for name, x in known.items()})
    values = {name: torch.stack([one[name] for one in found], 1) for name in found[0]}
    return values | {"mean_rsa": values["rsa"].mean((1, 2))}


def of_images(
    cloud: Float[Tensor, "b n d"], there: Bool[Tensor, "b n"], seen: "list[Image]", even: list[Tensor], nearest: int
) -> dict[str, Float[Tensor, "b h image"]]:
    """What images of every head keep of their cloud, and what q, k and v themselves do (`_raw`): the cloud is looked at once.

    `even` (b, h, n, r) is what each image sees of the cloud, every direction as long as it is there.
    """
    own = [x * image.sizes[:, None] for x, image in zip(even, seen, strict=True)]
    both = in_one([*own, *(by_every_head(cloud, image.left) for image in seen)])
    found = kept_by_images(cloud, there, both.flatten(1, 2), nearest).unflatten(1, both.shape[1:3])
    parts = zip(("", "_raw"), found.split(len(seen), 2), strict=True)
    return {f"{name}{called}": x for called, part in parts for name, x in zip(COMPARED, part.unbind(-1), strict=True)}


def by_chance(
    cloud: Float[Tensor, "n d"], of: Geometry, seen: "list[Image]", nearest: int, turns: Tensor, seed: int
) -> dict[str, Tensor]:
    """What the same heads keep of the cloud turned at random, and what random projections to as many dimensions keep."""
    at_once = max(1, AT_ONCE // (len(seen[0].left) * of.order.numel()))
    single = [
        Image(image.left.float(), image.basis.float(), image.sizes.float()) for image in seen
    ]  # chance is coarser
    clouds = (cloud.float() @ Q for Q in turns.split(at_once))
    drawn = torch.cat([kept(of, in_one([image.of(x) for image in single]), nearest) for x in clouds])
    found = {f"{name}_null": drawn[..., at].mean(0) for at, name in enumerate(COMPARED)}
    found |= {f"{name}_null_sd": drawn[..., at].std(0) for at, name in enumerate(COMPARED)}
    ranks = [int(image.rank.median()) for image in seen]
    null = {rank: random_projections(cloud, of, rank, nearest, len(turns), seed) for rank in set(ranks)}
    found |= {f"{name}_projection": torch.stack([null[r][at] for r in ranks]) for at, name in enumerate(COMPARED)}
    return found | {"rsa_drawn": drawn[..., COMPARED.index("rsa")]}


def in_one(clouds: list[Tensor]) -> Float[Tensor, "*t image n e"]:
    """Clouds as one tensor; those of fewer dimensions get zeros, which move no distance."""
    widest = max(cloud.shape[-1] for cloud in clouds)
    return torch.stack([pad(cloud, (0, widest - cloud.shape[-1])) for cloud in clouds], -3)


@dataclass(frozen=True, eq=False)
class Image:
    """The images x̂A of a cloud by one operator of every head, A = U S Vᵀ = left · right.

    x̂ · left is q (times the scale), k or v itself. `basis` (U) are orthonormal columns that span what A reads, `sizes` (S) how
    much it stretches each; both are 0 beyond the rank of A, which may be less than the columns of `left`.
    """

    left: Float[Tensor, "h d k"]
    basis: Float[Tensor, "h d r"]
    sizes: Float[Tensor, "h r"]

    def of(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U S, which has all distances of x̂A."""
        return self.evenly(cloud) * self.sizes[:, None]

    def evenly(self, cloud: Float[Tensor, "*t n d"]) -> Float[Tensor, "*t h n r"]:
        """x̂ U: every direction that is read as long as it is in the cloud."""
        return by_every_head(cloud, self.basis)

    @property
    def rank(self) -> Float[Tensor, " h"]:
        return (self.sizes > 0).sum(-1).double()


def collapse(X: Float[Tensor, "*b n d"], seen: Float[Tensor, "*b h n r"]) -> Float[Tensor, "*b h"]:
    """1 − ‖X U‖²/‖X‖² of a cloud X around its mean and of X U, what is seen of it; 0 for a cloud without variance."""
    size = X.square().sum((-2, -1))[..., None]
    return share(size - seen.square().sum((-2, -1)), size)


def images(heads: Heads) -> list[Image]:
    """Query, key and content of every head of a layer: x̂M, x̂Mᵀ, x̂F."""
    return images_by(heads.M(), heads.F())


def images_by(M: Factored, F: Factored) -> list[Image]:
    """Query, key and content by the operators of some heads."""
    M, F = (Factored(exact(A.left).double(), exact(A.right).double()) for A in (M, F))
    (U, s, Vh), (taken, size, _) = M.spaces(), F.spaces()
    return [Image(M.left, U, s), Image(M.right.mT, Vh.mT, s), Image(F.left, taken, size)]


def random_projections(
    cloud: Float[Tensor, "n d"], of: Geometry, rank: int, nearest: int, draws: int, seed: int
) -> Float[Tensor, " 6"]:
    """What random projections to `rank` dimensions keep, in the mean."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(draws, cloud.shape[-1], rank, generator=generator).to(cloud)
    return kept(of, cloud @ drawn, nearest).mean(0)


def mismatch(query: Image, key: Image, width: int) -> dict[str, Tensor]:
    """How the space that queries read lies to the space that keys read; a head of a lower rank has fewer angles."""
    cosines, rank = svdvals(query.basis.mT @ key.basis).clamp(max=1), query.rank
    there = torch.arange(cosines.shape[-1], device=cosines.device) < rank[:, None]
    diagonal = (query.left * key.left).sum((-2, -1))  # tr(L R) = ⟨L, Rᵀ⟩
    null, spread = mismatch_null(rank, width)
    return {
        "principal_angles": torch.where(there, cosines.acos(), torch.nan),
        "mismatch": torch.where(rank > 0, 1 - cosines.square().sum(-1) / rank, torch.nan),
        "mismatch_null": null,
        "mismatch_null_sd": spread,
        "trace_share": share(diagonal, query.sizes.sum(-1)),
    }


def together(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over all heads, and the same of random heads.

    Of heads that share a key only queries are random beside each other, and a random space lies to any other as to a random one:
    their mismatches are independent, and the spread of their mean is known.
    """
    there = ~values["mismatch"].isnan()
    of_heads = {name: values[name][there] for name in ("mismatch", "mismatch_null", "mismatch_null_sd")}
    found = {
        "mean_rsa": values["rsa"].mean((0, 1)),
        "mean_mismatch": of_heads["mismatch"].mean(),
        "mean_mismatch_null": of_heads["mismatch_null"].mean(),
        "mean_mismatch_null_sd": of_heads["mismatch_null_sd"].norm() / max(1, int(there.sum())),
    }
    return found | ({"mean_rsa_drawn": values["rsa_drawn"].mean((0, 2))} if "rsa_drawn" in values else {})


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
    batch=many,
    fields={
        name: Field(OF_IMAGE, definition, null=f"{name}_null", null_sd=f"{name}_null_sd")
        for name, definition in KEPT.items()
    }
    | {
        f"{name}_null": Field(OF_IMAGE, f"mean of {name} for random heads of the same singular values", basis=True)
        for name in KEPT
    }
    | {
        f"{name}_null_sd": Field(
            OF_IMAGE, f"standard deviation of {name} among random heads of the same singular values", basis=True
        )
        for name in KEPT
    }
    | {
        f"{name}_projection": Field(
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
        "rsa_error": Field(OF_IMAGE, "standard error of rsa, where only some rows were looked at"),
        "collapse": Field(
            OF_IMAGE,
            "share of the variance of the cloud that the image cannot see: what lies outside the row space it reads",
            null="collapse_null",
        ),
        "collapse_null": Field(OF_IMAGE, "the same for a random head of that rank: 1 − r/d"),
        "rank": Field(OF_IMAGE, "number of directions that the image reads"),
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
        "mean_rsa_drawn": Field(
            ("draw", "image"), "mean of rsa over all heads, turned at random together, draw by draw", basis=True
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
