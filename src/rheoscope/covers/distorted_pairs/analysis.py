"""The pairs of tokens that a head moves furthest apart or closest together in one of its images."""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.covers.agreement.words import (
    MAX_LISTED_HEADS,
    clearest_heads,
    least_similar_head,
    required_agreement,
)
from rheoscope.covers.distortion.analysis import IMAGES
from rheoscope.covers.layer_inputs import (
    LayerInput,
    included_positions,
    provenance,
    read_layer,
    read_layers,
    resolve_layer,
)
from rheoscope.covers.operator_images import image_of_heads
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.report_run import ReportRun, Settings, SettingsByKey
from rheoscope.space.results import Results
from rheoscope.space.settings import HeadIndex, LayerIndex, ProjectionName, Top
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import centred_ranks

if TYPE_CHECKING:
    import xarray

KINDS = ("separated", "merged")


@torch.no_grad()
def distorted_pairs(
    trace: Trace,
    layer: LayerIndex = -1,
    head: HeadIndex = 0,
    projection: ProjectionName = "query",
    top: Top = 5,
    keep_massive: bool = False,
) -> "xarray.Dataset":
    """The pairs of tokens whose distance rank a head changes most.

    **Question** Which similar tokens does this head separate, and which dissimilar tokens does it merge?

    **Formula** Every pair has a rank among all distances in E and a rank among all distances in the image, both scaled to
    [0, 1]. The image of a `projection` is x̂M (`"query"`), x̂Mᵀ (`"key"`) or x̂F (`"content"`). `separated` pairs have the largest increase in
    rank, `merged` pairs the largest decrease. Pairs at distance 0 in E are left out.

    **Settings** A negative `layer` counts from the end. `top` is the number of pairs of each kind.

    **Returns** (kind, pair): `earlier_token`, `later_token`, `distance_rank_before` and `distance_rank_after`. The
    coordinates `earlier_token_text` and `later_token_text` hold the texts of the tokens.

    **Laws** No reparametrisation that preserves the logits changes the pairs.

    **See also** `distortion` measures the whole image. Separated pairs lower its continuity, and merged pairs its
    trustworthiness.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table in the hall")
    >>> separated = rs.distorted_pairs(trace, layer=2, head=1).sel(kind="separated")
    >>> bool((separated.distance_rank_after >= separated.distance_rank_before).all())
    True
    """
    layer = resolve_layer(trace.view, layer, head)
    if projection not in IMAGES:
        raise RheoscopeError(
            Message(
                "{name} must be one of {expected}, got {received!r}",
                name="projection",
                expected=", ".join(IMAGES),
                received=projection,
            ),
            use(projection=IMAGES[0]),
        )
    pair_values = kernel(list(read_layers(trace, keep_massive, min_tokens=3))[layer], head, projection)
    if not 1 <= top <= len(pair_values["distance_rank_before"]):
        pairs = len(pair_values["distance_rank_before"])
        raise RheoscopeError(
            Message(
                "top must lie between 1 and {pairs}, the number of pairs of this text, got {value}",
                pairs=pairs,
                value=top,
            ),
            use(top=min(5, pairs)),
        )
    order = (pair_values["distance_rank_after"] - pair_values["distance_rank_before"]).argsort(stable=True)
    selected_pairs = torch.stack([order.flip(0)[:top], order[:top]])
    values = {name: x[selected_pairs] for name, x in pair_values.items()}
    token_labels = {
        f"{member}_text": (
            ("kind", "pair"),
            [[trace.tokens[position] for position in row] for row in values[member].tolist()],
        )
        for member in ("earlier_token", "later_token")
    }
    attributes = provenance(trace, keep_massive, layer=layer, head=head, projection=projection, top=top)
    return DISTORTED_PAIRS.label(values, {"kind": list(KINDS)} | token_labels, attributes)


def kernel(layer_input: LayerInput, head: int, projection: str) -> dict[str, Tensor]:
    """The positions of every pair of tokens, and its distance ranks in E and in an image of one head."""
    return rank_changes(
        layer_input,
        image_of_heads(layer_input.heads, projection).apply(layer_input.x_hat.double())[head],
    )


def number_of_pairs(trace: Trace, layer: int) -> int:
    """The number of pairs of tokens that the attention of a layer reads at different points."""
    x_hat = read_layer(trace, layer, included_positions(trace, keep_massive=False, min_tokens=3)).x_hat
    return int(_is_distinct(_pair_distances(x_hat)).sum())


def _is_distinct(point_distances: Float[Tensor, " pairs"]) -> Bool[Tensor, " pairs"]:
    return point_distances > 1e-12 * point_distances.max()


def rank_changes(layer_input: LayerInput, image_points: Float[Tensor, "n r"]) -> dict[str, Tensor]:
    """The positions of every pair of distinct tokens, and its distance ranks in E and in the image."""
    first, second = torch.triu_indices(len(image_points), len(image_points), 1, device=image_points.device)
    point_distances = _pair_distances(layer_input.x_hat)
    is_distinct = _is_distinct(point_distances)
    rank_before, rank_after = (
        _rank_fractions(pair_distances[is_distinct])
        for pair_distances in (point_distances, _pair_distances(image_points))
    )
    return {
        "earlier_token": layer_input.positions[first[is_distinct]],
        "later_token": layer_input.positions[second[is_distinct]],
        "distance_rank_before": rank_before,
        "distance_rank_after": rank_after,
    }


def _pair_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, " pairs"]:
    return upper_triangle(distances(centred_inner_products(x.double())))


def _rank_fractions(distances: Tensor) -> Tensor:
    """Ranks scaled to [0, 1]."""
    ranks = centred_ranks(distances[None], torch.ones_like(distances[None], dtype=torch.bool))[0]
    return ranks / max(1, len(distances) - 1) + 0.5


def _report_settings(results: Results) -> dict[str, Any]:
    """The head whose scores track similarity least."""
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
    question="Which similar tokens does one head separate, and which dissimilar tokens does it merge?",
    ask=distorted_pairs,
    needs="trace",
    last=2,
    report_runs=(
        ReportRun("covers", 1, settings_by_key=clearest_head_settings(1)),
        ReportRun("covers", 4, for_files=True),
        ReportRun("covers", 11, settings_by_key=clearest_head_settings(MAX_LISTED_HEADS), for_files=True),
    ),
    depends_on=("agreement",),
    see_also=("readout",),
    report=_report_settings,
    fields={
        "earlier_token": Field(("kind", "pair"), "position of the earlier token of the pair"),
        "later_token": Field(("kind", "pair"), "position of the later token of the pair"),
        "distance_rank_before": Field(
            ("kind", "pair"),
            "rank of the pair's distance among all distances in E; 0 for the closest pair, 1 for the farthest",
        ),
        "distance_rank_after": Field(("kind", "pair"), "rank of the pair's distance among all distances in the image"),
    },
)
