"""Head types from attention weights: previous-token, induction, duplicate-token, sink, local and uniform."""

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
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
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
    local_window: Annotated[int, Bounds(1, 10_000)] = 5,
    probe_length: Annotated[int, Bounds(2, 100_000)] | None = None,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The type of every head, with the scores that decide it.

    **Question** Is this an induction head, a previous-token head or a sink?

    **Settings**
    `trace` is a text to measure on. Without it, the model reads a probe: `probe_length` different random tokens, repeated once.
    Only the repetition makes such a text predictable. The default length is 64, or less if the model allows less.
    `threshold` is the smallest score of a type (0.9 for `uniform`). The score must also be twice that of uniform attention.
    `local_window` is the number of positions that count as local. Rows with fewer than 2 · `local_window` permitted keys are
    left out of `local` and `uniform`.

    **Formula** in `attrs["definition"]` of each score.

    **Returns** (layer, head): `type`, six scores and `self_weight`, the weight on the diagonal. (layer): the same scores under
    uniform attention, with the suffix `_null`.

    **Laws** Scores lie in [0, 1]. Transformations that leave the logits unchanged leave them unchanged.

    **Source** transformer-circuits.pub/2022/in-context-learning-and-induction-heads.

    >>> import rheoscope as rs
    >>> result = rs.head_types(rs.load(), probe_length=20)
    >>> result.type.dims, bool((result.sink <= 1).all())
    (('layer', 'head'), True)
    """
    if threshold <= 0:
        raise RheoscopeError(
            Message("threshold must be greater than 0, got {received}", received=threshold), use(threshold=0.4)
        )
    if trace is None and not model.view.reads_tokens:
        raise RheoscopeError(
            Message("this model reads no tokens, so random tokens cannot probe its heads; give a trace"),
            Advice("trace=model.trace(pixels)"),
        )
    if trace is None:
        vocabulary_size, context = len(model.view.embed), model.view.context_length or 128
        n_tokens = min(64, vocabulary_size, context // 2) if probe_length is None else probe_length
        trace = model.trace(repeated_random_tokens(vocabulary_size, n_tokens, seed))
        probe = Message("{n} random tokens, repeated once", n=n_tokens)
    else:
        check_same_weights(model, trace)
        probe = Message("the text")
    values: dict[str, Any] = {name: x[0] for name, x in batch(Traces.from_trace(trace), local_window, progress).items()}
    values["type"] = head_type_names({name: x.cpu() for name, x in values.items()}, threshold)
    coords = {"layer": range(model.view.layers), "head": range(model.view.heads)}
    attributes = {"probe": probe, "threshold": threshold, "local_window": local_window, "seed": seed}
    return HEAD_TYPES.label(values, coords, attributes | trace.provenance)


def repeated_random_tokens(vocabulary_size: int, n_tokens: int, seed: int) -> Int[Tensor, " n"]:
    """Distinct random tokens, followed by the same tokens in the same order."""
    if not 2 <= n_tokens <= vocabulary_size:
        raise RheoscopeError(
            Message(
                "probe_length must lie between 2 and {high:,} (the size of the vocabulary), got {received:,}",
                high=vocabulary_size,
                received=n_tokens,
            ),
            use(probe_length=min(64, vocabulary_size)),
        )
    return torch.randperm(vocabulary_size, generator=torch.Generator().manual_seed(seed))[:n_tokens].repeat(2)


@torch.no_grad()
def batch(
    traces: Traces, local_window: int = 5, progress: Callable[[int, int], None] | None = None
) -> dict[str, Float[Tensor, "b layer *h"]]:
    """The scores of all heads on many texts at once, with those of uniform attention. The `type` needs one text at a time."""
    rows: list[dict[str, Tensor]] = []
    for layer, heads in enumerate(traces.view.layer_heads):
        row = kernel(
            heads, traces.layer_input(layer), traces.ids, traces.is_token, traces.padding_for_layer(layer), local_window
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
                uniform_baseline(heads, traces, layer, local_window)
                if same_mask_layer is None
                else _null_fields(rows[same_mask_layer])
            )
        )
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


@on_block
def kernel(
    heads: Heads,
    x: Float[Tensor, "b n d"],
    ids: Int[Tensor, "b n"],
    is_token: Bool[Tensor, "b n"],
    unseen: Mask | None,
    local_window: int,
) -> dict[str, Tensor]:
    """The scores of all heads of a layer, from blocks of rows of their weights."""
    q, k, _ = heads.qkv(x)
    mechanism, ids, running_means = heads.mechanism.with_mask(unseen), to_device(ids, x.device), RunningMeans()
    for block in iterate_blocks(mechanism, q, k):
        allowed = _allowed(mechanism.mask(block.i, block.j), is_token, block.rows, block.keys)
        running_means.add(
            row_scores(block.weights, allowed, key_masks(ids, block.i, block.j, allowed, local_window), local_window)
        )
    return running_means.means()


def uniform_baseline(heads: Heads, traces: Traces, layer: int, local_window: int) -> dict[str, Float[Tensor, " b"]]:
    """The scores of uniform attention. They depend only on the mask, so layers with the same mask share them."""
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
        running_means.add(
            row_scores(uniform_weights, allowed, key_masks(ids, keys[rows], keys, allowed, local_window), local_window)
        )
    return {f"{name}_null": value[:, 0] for name, value in running_means.means().items() if name != "uniform"}


def _allowed(
    mask: Bool[Tensor, "*bh m k"], is_token: Bool[Tensor, "b n"], rows: slice, keys: slice
) -> Bool[Tensor, "b m k"]:
    return (mask if mask.ndim == 2 else mask[:, 0]) & is_token[:, rows, None] & is_token[:, None, keys]


def _same_mask(heads: Heads, other_heads: Heads) -> bool:
    """Whether both masks are known to be equal without comparing every pair."""
    mask, other_mask = heads.mechanism.mask, other_heads.mechanism.mask
    return (
        mask is other_mask or (mask.is_causal and other_mask.is_causal) or (mask.allows_all and other_mask.allows_all)
    )


def _null_fields(row: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in row.items() if name.endswith("_null")}


class RunningMeans:
    """Means over rows that arrive in blocks."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.count: dict[str, Tensor] = {}

    def add(self, block_scores: "dict[str, tuple[Tensor, Tensor]]") -> None:
        for name, (value, is_counted) in block_scores.items():
            total = torch.where(is_counted[:, None], value, 0).sum(-1)
            self.total[name] = self.total.get(name, 0) + total
            self.count[name] = self.count.get(name, 0) + is_counted.sum(-1)

    def means(self) -> dict[str, Float[Tensor, "b h"]]:
        """The mean of every score. NaN if no row counts."""
        return {name: total / self.count[name][:, None] for name, total in self.total.items()}


def key_masks(
    ids: Int[Tensor, "b n"],
    i: Int[Tensor, " m"],
    j: Int[Tensor, " k"],
    allowed: Bool[Tensor, "b m k"],
    local_window: int,
) -> dict[str, Bool[Tensor, "b m k"]]:
    """The keys j whose weight each score sums, for queries i."""
    offset, query_ids = i[:, None] - j, ids[:, i, None]
    masks = {
        "previous_token": offset == 1,
        "induction": (query_ids == ids[:, None, (j - 1).clamp(min=0)]) & (offset > 0) & (j > 0),
        "duplicate_token": (query_ids == ids[:, None, j]) & (offset > 0),
        "sink": (j == 0) & (offset != 0),
        "local": offset.abs() < local_window,
        "self_weight": (offset == 0) & (i[:, None] > 0),
    }
    return {name: mask & allowed for name, mask in masks.items()}


def row_scores(
    weights: Float[Tensor, "b h m k"],
    allowed: Bool[Tensor, "b m k"],
    masks: dict[str, Bool[Tensor, "b m k"]],
    local_window: int,
) -> dict[str, tuple[Float[Tensor, "b h m"], Bool[Tensor, "b m"]]]:
    """The scores of every row, and which rows count: those with at least one key of that kind."""
    n_allowed = allowed.sum(-1)
    has_enough_keys = n_allowed >= 2 * local_window
    stacked_masks = torch.stack(list(masks.values()), -1)
    masses = torch.einsum(
        "bhmk,bmkt->tbhm", weights, stacked_masks.to(weights.dtype)
    ).double()  # one pass over the weights
    is_counted = {
        name: has_key & has_enough_keys if name == "local" else has_key
        for name, has_key in zip(masks, stacked_masks.any(2).unbind(-1), strict=True)
    }
    scores = {name: (mass, is_counted[name]) for name, mass in zip(masks, masses, strict=True)}
    entropy = torch.special.entr(weights).sum(-1, dtype=torch.float64) / n_allowed.clamp(min=2).double().log()[:, None]
    return scores | {"uniform": (entropy, has_enough_keys & (n_allowed > 1))}


def head_type_names(scores: dict[str, Tensor], threshold: float) -> np.ndarray:
    """The type of every head: the strongest sharp type, else local, uniform or mixed."""

    def reaches_threshold(name: str) -> Tensor:
        return (scores[name] >= threshold) & (scores[name] >= 2 * scores[f"{name}_null"][:, None])

    sharp_scores = torch.stack([torch.where(reaches_threshold(name), scores[name], 0) for name in SHARP_TYPES])
    best_sharp = sharp_scores.argmax(0)
    type_names = np.array([*SHARP_TYPES, "local", "uniform", "mixed"])
    fallback = torch.where(reaches_threshold("local"), 4, torch.where(scores["uniform"] >= 0.9, 5, 6))
    return type_names[torch.where(sharp_scores.amax(0) > 0, best_sharp, fallback).numpy()]


SCORE_DEFINITIONS = {
    "previous_token": Message("mean weight on the previous token"),
    "induction": Message(
        "mean weight on the tokens that followed earlier occurrences of the same token (NaN if no token repeats)"
    ),
    "duplicate_token": Message("mean weight on earlier occurrences of the same token (NaN if no token repeats)"),
    "sink": Message("mean weight on the first token"),
    "local": Message("mean weight on tokens less than local_window positions away, the token itself included"),
    "self_weight": Message("mean weight of a token on itself, without the first token"),
}
HEAD_TYPES = Analysis(
    name="head_types",
    question="Which type is each head: previous-token, induction, duplicate-token, sink, local or uniform?",
    ask=head_types,
    needs="model",
    last=1,
    classifies_heads=True,
    see_also=("readout",),
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
            "the largest of previous_token, induction, duplicate_token and sink that reaches the threshold, else local, uniform or mixed",
        )
    }
    | {
        name: Field(("layer", "head"), definition, null=f"{name}_null")
        for name, definition in SCORE_DEFINITIONS.items()
    }
    | {
        "uniform": Field(
            ("layer", "head"),
            "mean entropy of the weights divided by the log of the number of permitted keys (1 if all weights are equal)",
        )
    }
    | {
        f"{name}_null": Field(
            ("layer",), Message("{field} under uniform attention over the permitted keys", field=name)
        )
        for name in SCORE_DEFINITIONS
    },
)
