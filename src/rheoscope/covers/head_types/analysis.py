"""What kind of head is it? Previous-token, induction, duplicate-token, sink, local, uniform, by the usual scores."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.attention.lower.blocks import iterate_blocks
from rheoscope.attention.mask import Mask
from rheoscope.covers.operators.words import REPORT
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.device_transfer import to_device
from rheoscope.space.head import Heads
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import Bounds, Fraction, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

SHARP_TYPES = ("previous_token", "induction", "duplicate_token", "sink")


@torch.no_grad()
def head_types(
    model: Model,
    trace: Trace | None = None,
    threshold: Fraction = 0.4,
    reach: Annotated[int, Bounds(1, 10_000)] = 5,
    tokens: Annotated[int, Bounds(2, 100_000)] | None = None,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The usual names of heads, with the scores behind them.

    **Answers** "is this an induction head, a previous-token head, a sink?" Without a Trace the model reads `tokens` random
    tokens (64, or as many as it can) twice over, the usual probe: nothing but the repetition can be known of it. With a Trace, its
    own repetitions count.

    **Formula** each score's is in its `attrs["definition"]`. Rows that may see fewer than 2 · `reach` keys have no say in
    `local` and `uniform`. A type is given where its score is at least `threshold` (`uniform`: 0.9) and twice that of equal
    weights.

    **Gives** (layer, head): `type`, the six scores and `itself`, the weight on the diagonal; (layer): the score of equal weights for each.

    **Laws** scores lie in [0, 1]; unchanged by every move that leaves the logits unchanged.

    **Source** transformer-circuits.pub/2022/in-context-learning-and-induction-heads.

    >>> import rheoscope as rs
    >>> found = rs.head_types(rs.load(), tokens=20)
    >>> found.type.dims, bool((found.sink <= 1).all())
    (('layer', 'head'), True)
    """
    if not 0 < threshold <= 1 or reach < 1:
        raise RheoscopeError(
            f"a threshold lies in (0, 1] and a reach is 1 token or more, got {threshold} and {reach}; "
            "type threshold=0.4, reach=5"
        )
    if trace is None:
        vocabulary, context = len(model.view.embed), model.view.context_length or 128
        tokens = min(64, vocabulary, context // 2) if tokens is None else tokens
        trace, probe = model.trace(repeated_random_tokens(vocabulary, tokens, seed)), f"{tokens} random tokens, twice"
    else:
        check_same_weights(model, trace)
        probe = "the text"
    values: dict[str, Any] = {name: x[0] for name, x in batch(Traces.from_trace(trace), reach, progress).items()}
    values["type"] = head_type_names({name: x.cpu() for name, x in values.items()}, threshold)
    coords = {"layer": range(model.view.layers), "head": range(model.view.heads)}
    attributes = {"probe": probe, "threshold": threshold, "reach": reach, "seed": seed}
    return HEAD_TYPES.label(values, coords, attributes | trace.provenance)


def repeated_random_tokens(vocabulary_size: int, n_tokens: int, seed: int) -> Int[Tensor, " n"]:
    """Different random tokens, then the same again."""
    if not 2 <= n_tokens <= vocabulary_size:
        raise RheoscopeError(
            f"the probe has 2 to {vocabulary_size} different tokens (the vocabulary), got {n_tokens}; type "
            f"tokens={min(64, vocabulary_size)}"
        )
    return torch.randperm(vocabulary_size, generator=torch.Generator().manual_seed(seed))[:n_tokens].repeat(2)


@torch.no_grad()
def batch(
    traces: Traces, reach: int = 5, progress: Callable[[int, int], None] | None = None
) -> dict[str, Float[Tensor, "b layer *h"]]:
    """The scores of all heads on many texts at once, and those of equal weights; names are given to heads one text at a time."""
    rows: list[dict[str, Tensor]] = []
    for layer, heads in enumerate(traces.view.layer_heads):
        row = kernel(
            heads, traces.layer_input(layer), traces.ids, traces.is_token, traces.padding_for_layer(layer), reach
        )
        same_mask_layer = next(
            (
                earlier_layer
                for earlier_layer in range(layer)
                if _same_mask(heads, traces.view.layer_heads[earlier_layer])
            ),
            None,
        )
        rows.append(
            row
            | (
                uniform_baseline(heads, traces, layer, reach)
                if same_mask_layer is None
                else _null_fields(rows[same_mask_layer])
            )
        )
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def kernel(
    heads: Heads,
    x: Float[Tensor, "b n d"],
    ids: Int[Tensor, "b n"],
    is_token: Bool[Tensor, "b n"],
    unseen: Mask | None,
    reach: int,
) -> dict[str, Tensor]:
    """The scores of all heads of a layer, some rows of their weights at a time."""
    q, k, _ = heads.qkv(x)
    mechanism, ids, running_means = heads.mechanism.with_mask(unseen), to_device(ids, x.device), RunningMeans()
    for block in iterate_blocks(mechanism, q, k):
        allowed = _allowed(mechanism.mask(block.i, block.j), is_token, block.rows, block.keys)
        running_means.add(row_scores(block.weights, allowed, key_masks(ids, block.i, block.j, allowed, reach), reach))
    return running_means.means()


def uniform_baseline(heads: Heads, traces: Traces, layer: int, reach: int) -> dict[str, Float[Tensor, " b"]]:
    """The scores of equal weights, which depend on the mask alone: of all layers that have the same they are found once."""
    n, device, running_means = traces.ids.shape[1], traces.points.device, RunningMeans()
    mask, ids, keys = (
        heads.mechanism.with_mask(traces.padding_for_layer(layer)).mask,
        to_device(traces.ids, device),
        torch.arange(n, device=device),
    )
    rows_at_once = max(1, block_numel(device) // (traces.ids.numel() * len(SCORE_DEFINITIONS)))
    for rows in (slice(low, low + rows_at_once) for low in range(0, n, rows_at_once)):
        allowed = _allowed(mask(keys[rows], keys), traces.is_token, rows, slice(None))
        uniform_weights = (allowed / allowed.sum(-1, keepdim=True).clamp(min=1))[:, None]
        running_means.add(row_scores(uniform_weights, allowed, key_masks(ids, keys[rows], keys, allowed, reach), reach))
    return {f"{name}_null": value[:, 0] for name, value in running_means.means().items() if name != "uniform"}


def _allowed(
    mask: Bool[Tensor, "*bh m k"], is_token: Bool[Tensor, "b n"], rows: slice, keys: slice
) -> Bool[Tensor, "b m k"]:
    return (mask if mask.ndim == 2 else mask[:, 0]) & is_token[:, rows, None] & is_token[:, None, keys]


def _same_mask(heads: Heads, other_heads: Heads) -> bool:
    """Whether both forbid the same, as far as can be told without looking at every pair."""
    mask, other_mask = heads.mechanism.mask, other_heads.mechanism.mask
    return (
        mask is other_mask or (mask.is_causal and other_mask.is_causal) or (mask.allows_all and other_mask.allows_all)
    )


def _null_fields(row: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in row.items() if name.endswith("_null")}


class RunningMeans:
    """Means over rows that come block after block."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.count: dict[str, Tensor] = {}

    def add(self, block_scores: "dict[str, tuple[Tensor, Tensor]]") -> None:
        for name, (value, is_counted) in block_scores.items():
            total = torch.where(is_counted[:, None], value, 0).sum(-1)
            self.total[name] = self.total.get(name, 0) + total
            self.count[name] = self.count.get(name, 0) + is_counted.sum(-1)

    def means(self) -> dict[str, Float[Tensor, "b h"]]:
        """NaN where no row counts."""
        return {name: total / self.count[name][:, None] for name, total in self.total.items()}


def key_masks(
    ids: Int[Tensor, "b n"], i: Int[Tensor, " m"], j: Int[Tensor, " k"], allowed: Bool[Tensor, "b m k"], reach: int
) -> dict[str, Bool[Tensor, "b m k"]]:
    """Which keys j each score counts, for queries i."""
    offset, query_ids = i[:, None] - j, ids[:, i, None]
    masks = {
        "previous_token": offset == 1,
        "induction": (query_ids == ids[:, None, (j - 1).clamp(min=0)]) & (offset > 0) & (j > 0),
        "duplicate_token": (query_ids == ids[:, None, j]) & (offset > 0),
        "sink": (j == 0) & (offset != 0),
        "local": offset.abs() < reach,
        "itself": (offset == 0) & (i[:, None] > 0),
    }
    return {name: mask & allowed for name, mask in masks.items()}


def row_scores(
    weights: Float[Tensor, "b h m k"],
    allowed: Bool[Tensor, "b m k"],
    masks: dict[str, Bool[Tensor, "b m k"]],
    reach: int,
) -> dict[str, tuple[Float[Tensor, "b h m"], Bool[Tensor, "b m"]]]:
    """The scores of every row, and which rows count: those that have a key of that kind."""
    n_allowed = allowed.sum(-1)
    has_enough_keys = n_allowed >= 2 * reach
    stacked_masks = torch.stack(list(masks.values()), -1)
    masses = torch.einsum(
        "bhmk,bmkt->tbhm", weights, stacked_masks.to(weights.dtype)
    ).double()  # the weights are read once
    is_counted = {
        name: has_key & has_enough_keys if name == "local" else has_key
        for name, has_key in zip(masks, stacked_masks.any(2).unbind(-1), strict=True)
    }
    scores = {name: (mass, is_counted[name]) for name, mass in zip(masks, masses, strict=True)}
    entropy = torch.special.entr(weights).sum(-1, dtype=torch.float64) / n_allowed.clamp(min=2).double().log()[:, None]
    return scores | {"uniform": (entropy, has_enough_keys & (n_allowed > 1))}


def head_type_names(scores: dict[str, Tensor], threshold: float) -> np.ndarray:
    """The type of every head."""

    def reaches_threshold(name: str) -> Tensor:
        return (scores[name] >= threshold) & (scores[name] >= 2 * scores[f"{name}_null"][:, None])

    sharp_scores = torch.stack([torch.where(reaches_threshold(name), scores[name], 0) for name in SHARP_TYPES])
    best_sharp = sharp_scores.argmax(0)
    type_names = np.array([*SHARP_TYPES, "local", "uniform", "mixed"])
    fallback = torch.where(reaches_threshold("local"), 4, torch.where(scores["uniform"] >= 0.9, 5, 6))
    return type_names[torch.where(sharp_scores.amax(0) > 0, best_sharp, fallback).numpy()]


SCORE_DEFINITIONS = {
    "previous_token": "mean weight on the token just before",
    "induction": "mean weight on the tokens that followed earlier occurrences of the same token; NaN where nothing repeats",
    "duplicate_token": "mean weight on earlier occurrences of the same token; NaN where nothing repeats",
    "sink": "mean weight on the first token",
    "local": "mean weight on the tokens within reach, itself among them",
    "itself": "mean weight of a token on itself, the first one left out",
}
HEAD_TYPES = Analysis(
    name="head_types",
    question="What kind of head is it: previous-token, induction, duplicate-token, sink, local, uniform?",
    ask=head_types,
    needs="model",
    last=1,
    classifies_heads=True,
    report_runs=(
        ReportRun("covers", 2),
        ReportRun("reverse", 3, for_files=True),
        ReportRun(REPORT.name, 2, for_files=True),
    ),
    report={"trace": None},
    batch=batch,
    fields={
        "type": Field(
            ("layer", "head"),
            "previous_token, induction, duplicate_token or sink, the largest that reaches the threshold; else local, uniform or mixed",
        )
    }
    | {
        name: Field(("layer", "head"), definition, null=f"{name}_null")
        for name, definition in SCORE_DEFINITIONS.items()
    }
    | {
        "uniform": Field(
            ("layer", "head"),
            "mean of the entropy over the log of the number of permitted keys: 1 where all weights are equal",
        )
    }
    | {
        f"{name}_null": Field(("layer",), f"{name} of equal weights on all permitted keys")
        for name in SCORE_DEFINITIONS
    },
)
