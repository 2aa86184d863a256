"""Which tokens does a head tear apart, and which does it glue together? The pairs behind the distortion of an image."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.agreement.words import (
    MAX_LISTED_HEADS,
    clearest_heads,
    least_similar_head,
    required_agreement,
)
from rheoscope.covers.distortion.analysis import IMAGES, images_of_heads
from rheoscope.covers.layer_inputs import LayerInput, provenance, read_layers, resolve_layer
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.report_run import ReportRun, Settings, SettingsByKey
from rheoscope.space.results import Results
from rheoscope.space.settings import HeadIndex, ImageName, LayerIndex, Top
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import centred_ranks

if TYPE_CHECKING:
    import xarray

KINDS = ("torn", "glued")


@torch.no_grad()
def distorted_pairs(
    trace: Trace,
    layer: LayerIndex = -1,
    head: HeadIndex = 0,
    image: ImageName = "query",
    top: Top = 5,
    keep_massive: bool = False,
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
    layer = resolve_layer(trace.view, layer, head)
    if image not in IMAGES:
        raise RheoscopeError(f"unknown image {image!r}; type one of {', '.join(IMAGES)}")
    pair_values = kernel(list(read_layers(trace, keep_massive, min_tokens=3))[layer], head, image)
    if not 1 <= top <= len(pair_values["before"]):
        pairs = len(pair_values["before"])
        raise RheoscopeError(
            f"top lies between 1 and the {pairs} pairs of this text, got {top}; type top={min(5, pairs)}"
        )
    order = (pair_values["after"] - pair_values["before"]).argsort(stable=True)
    selected_pairs = torch.stack([order.flip(0)[:top], order[:top]])
    values = {name: x[selected_pairs] for name, x in pair_values.items()}
    token_labels = {
        f"{member}_token": (
            ("kind", "pair"),
            [[trace.tokens[position] for position in row] for row in values[member].tolist()],
        )
        for member in ("first", "second")
    }
    attributes = provenance(trace, keep_massive, layer=layer, head=head, image=image, top=top)
    return DISTORTED_PAIRS.label(values, {"kind": list(KINDS)} | token_labels, attributes)


def kernel(layer_input: LayerInput, head: int, image: str) -> dict[str, Tensor]:
    """Both places of every pair of tokens that are apart in E, and its rank among all before and after one head."""
    return rank_changes(
        layer_input, images_of_heads(layer_input.heads)[IMAGES.index(image)].apply(layer_input.x_hat.double())[head]
    )


def rank_changes(layer_input: LayerInput, image_points: Float[Tensor, "n r"]) -> dict[str, Tensor]:
    """The same for any image of the tokens."""
    first, second = torch.triu_indices(len(image_points), len(image_points), 1, device=image_points.device)
    point_distances = _pair_distances(layer_input.x_hat)
    is_distinct = point_distances > 1e-12 * point_distances.max()
    rank_before, rank_after = (
        _rank_fractions(pair_distances[is_distinct])
        for pair_distances in (point_distances, _pair_distances(image_points))
    )
    return {
        "first": layer_input.positions[first[is_distinct]],
        "second": layer_input.positions[second[is_distinct]],
        "before": rank_before,
        "after": rank_after,
    }


def _pair_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, " pairs"]:
    return upper_triangle(distances(centred_inner_products(x.double())))


def _rank_fractions(distances: Tensor) -> Tensor:
    """Ranks among all, from 0 to 1."""
    ranks = centred_ranks(distances[None], torch.ones_like(distances[None], dtype=torch.bool))[0]
    return ranks / max(1, len(distances) - 1) + 0.5


def _report_settings(results: Results) -> dict[str, Any]:
    """The head whose scores follow similarity least."""
    layer, head = least_similar_head(required_agreement(results))
    return {"layer": layer, "head": head}


def clearest_head_settings(max_per_list: int) -> SettingsByKey:
    """One run for each of the clearest heads of every list of `agreement`."""

    def settings(results: Results) -> dict[str, Settings]:
        heads = clearest_heads(required_agreement(results), max_per_list)
        return {f"L{layer}.H{head}": {"layer": layer, "head": head, "top": 2} for layer, head in heads}

    return settings


DISTORTED_PAIRS = Analysis(
    name="distorted_pairs",
    question="Which alike tokens does one head hold apart, and which unlike ones does it confuse?",
    ask=distorted_pairs,
    needs="trace",
    last=2,
    report_runs=(
        ReportRun("covers", 1, settings_by_key=clearest_head_settings(1)),
        ReportRun("covers", 4, for_files=True),
        ReportRun("covers", 11, settings_by_key=clearest_head_settings(MAX_LISTED_HEADS), for_files=True),
    ),
    depends_on=("agreement",),
    report=_report_settings,
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
