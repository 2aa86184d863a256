"""What kind of head is it? Previous-token, induction, duplicate-token, sink, local, uniform, by the usual scores."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.attention.lower.blocks import walk
from rheoscope.attention.mask import Mask
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.device_transfer import to_device
from rheoscope.space.head import Heads
from rheoscope.space.model import Model, check_made_by
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

SHARP = ("previous_token", "induction", "duplicate_token", "sink")


@torch.no_grad()
def head_types(
    model: Model,
    trace: Trace | None = None,
    threshold: float = 0.4,
    reach: int = 5,
    tokens: int | None = None,
    seed: int = 0,
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
        vocabulary, context = len(model.view.embed), model.view.context or 128
        tokens = min(64, vocabulary, context // 2) if tokens is None else tokens
        trace, probe = model.trace(repeated(vocabulary, tokens, seed)), f"{tokens} random tokens, twice"
    else:
        check_made_by(model, trace)
        probe = "the text"
    values: dict[str, Any] = {name: x[0] for name, x in many(Traces.of(trace), reach, progress).items()}
    values["type"] = named({name: x.cpu() for name, x in values.items()}, threshold)
    coords = {"layer": range(model.view.layers), "head": range(model.view.heads)}
    attributes = {"probe": probe, "threshold": threshold, "reach": reach, "seed": seed}
    return HEAD_TYPES.answer(values, coords, attributes | trace.provenance)


def repeated(vocabulary: int, tokens: int, seed: int) -> Int[Tensor, " n"]:
    """Different random tokens, then the same again."""
    if not 2 <= tokens <= vocabulary:
        raise RheoscopeError(
            f"the probe has 2 to {vocabulary} different tokens (the vocabulary), got {tokens}; type tokens={min(64, vocabulary)}"
        )
    return torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:tokens].repeat(2)


@torch.no_grad()
def many(
    traces: Traces, reach: int = 5, progress: Callable[[int, int], None] | None = None
) -> dict[str, Float[Tensor, "b layer *h"]]:
    """The scores of all heads on many texts at once, and those of equal weights; names are given to heads one text at a time."""
    rows: list[dict[str, Tensor]] = []
    for layer, heads in enumerate(traces.view.blocks):
        row = kernel(heads, traces.read_by(layer), traces.ids, traces.real, traces.unseen(layer), reach)
        before = next((at for at in range(layer) if _alike(heads, traces.view.blocks[at])), None)
        rows.append(row | (of_equal(heads, traces, layer, reach) if before is None else _nulls(rows[before])))
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def kernel(
    heads: Heads,
    x: Float[Tensor, "b n d"],
    ids: Int[Tensor, "b n"],
    real: Bool[Tensor, "b n"],
    unseen: Mask | None,
    reach: int,
) -> dict[str, Tensor]:
    """The scores of all heads of a layer, some rows of their weights at a time."""
    q, k, _ = heads.read(x)
    mechanism, ids, found = heads.mechanism.under(unseen), to_device(ids, x.device), Means()
    for block in walk(mechanism, q, k):
        allowed = _allowed(mechanism.mask(block.i, block.j), real, block.rows, block.keys)
        found.add(of_rows(block.weights, allowed, where(ids, block.i, block.j, allowed, reach), reach))
    return found.means()


def of_equal(heads: Heads, traces: Traces, layer: int, reach: int) -> dict[str, Float[Tensor, " b"]]:
    """The scores of equal weights, which depend on the mask alone: of all layers that have the same they are found once."""
    n, device, found = traces.ids.shape[1], traces.points.device, Means()
    mask, ids, keys = (
        heads.mechanism.under(traces.unseen(layer)).mask,
        to_device(traces.ids, device),
        torch.arange(n, device=device),
    )
    some = max(1, numbers_at_once(device) // (traces.ids.numel() * len(OF_KIND)))
    for rows in (slice(low, low + some) for low in range(0, n, some)):
        allowed = _allowed(mask(keys[rows], keys), traces.real, rows, slice(None))
        equal = (allowed / allowed.sum(-1, keepdim=True).clamp(min=1))[:, None]
        found.add(of_rows(equal, allowed, where(ids, keys[rows], keys, allowed, reach), reach))
    return {f"{name}_null": value[:, 0] for name, value in found.means().items() if name != "uniform"}


def _allowed(
    mask: Bool[Tensor, "*bh m k"], real: Bool[Tensor, "b n"], rows: slice, keys: slice
) -> Bool[Tensor, "b m k"]:
    return (mask if mask.ndim == 2 else mask[:, 0]) & real[:, rows, None] & real[:, None, keys]


def _alike(one: Heads, other: Heads) -> bool:
    """Whether both forbid the same, as far as can be told without looking at every pair."""
    a, b = one.mechanism.mask, other.mechanism.mask
    return a is b or (a.is_causal and b.is_causal) or (a.forbids_nothing and b.forbids_nothing)


def _nulls(row: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in row.items() if name.endswith("_null")}


class Means:
    """Means over rows that come block after block."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.count: dict[str, Tensor] = {}

    def add(self, block: "dict[str, tuple[Tensor, Tensor]]") -> None:
        for name, (value, counted) in block.items():
            total = torch.where(counted[:, None], value, 0).sum(-1)
            self.total[name] = self.total.get(name, 0) + total
            self.count[name] = self.count.get(name, 0) + counted.sum(-1)

    def means(self) -> dict[str, Float[Tensor, "b h"]]:
        """NaN where no row counts."""
        return {name: total / self.count[name][:, None] for name, total in self.total.items()}


def where(
    ids: Int[Tensor, "b n"], i: Int[Tensor, " m"], j: Int[Tensor, " k"], allowed: Bool[Tensor, "b m k"], reach: int
) -> dict[str, Bool[Tensor, "b m k"]]:
    """Which keys j each score counts, for queries i."""
    back, own = i[:, None] - j, ids[:, i, None]
    found = {
        "previous_token": back == 1,
        "induction": (own == ids[:, None, (j - 1).clamp(min=0)]) & (back > 0) & (j > 0),
        "duplicate_token": (own == ids[:, None, j]) & (back > 0),
        "sink": (j == 0) & (back != 0),
        "local": back.abs() < reach,
        "itself": (back == 0) & (i[:, None] > 0),
    }
    return {name: keys & allowed for name, keys in found.items()}


def of_rows(
    weights: Float[Tensor, "b h m k"],
    allowed: Bool[Tensor, "b m k"],
    kinds: dict[str, Bool[Tensor, "b m k"]],
    reach: int,
) -> dict[str, tuple[Float[Tensor, "b h m"], Bool[Tensor, "b m"]]]:
    """The scores of every row, and which rows count: those that have a key of that kind."""
    count = allowed.sum(-1)
    wide = count >= 2 * reach
    keys = torch.stack(list(kinds.values()), -1)
    masses = torch.einsum("bhmk,bmkt->tbhm", weights, keys.to(weights.dtype)).double()  # the weights are read once
    counted = {
        name: some & wide if name == "local" else some for name, some in zip(kinds, keys.any(2).unbind(-1), strict=True)
    }
    found = {name: (mass, counted[name]) for name, mass in zip(kinds, masses, strict=True)}
    entropy = torch.special.entr(weights).sum(-1, dtype=torch.float64) / count.clamp(min=2).double().log()[:, None]
    return found | {"uniform": (entropy, wide & (count > 1))}


def named(scores: dict[str, Tensor], threshold: float) -> np.ndarray:
    """The type of every head."""

    def reached(name: str) -> Tensor:
        return (scores[name] >= threshold) & (scores[name] >= 2 * scores[f"{name}_null"][:, None])

    sharp = torch.stack([torch.where(reached(name), scores[name], 0) for name in SHARP])
    best = sharp.argmax(0)
    names = np.array([*SHARP, "local", "uniform", "mixed"])
    rest = torch.where(reached("local"), 4, torch.where(scores["uniform"] >= 0.9, 5, 6))
    return names[torch.where(sharp.amax(0) > 0, best, rest).numpy()]


OF_KIND = {
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
    batch=many,
    fields={
        "type": Field(
            ("layer", "head"),
            "previous_token, induction, duplicate_token or sink, the largest that reaches the threshold; else local, uniform or mixed",
        )
    }
    | {name: Field(("layer", "head"), definition, null=f"{name}_null") for name, definition in OF_KIND.items()}
    | {
        "uniform": Field(
            ("layer", "head"),
            "mean of the entropy over the log of the number of permitted keys: 1 where all weights are equal",
        )
    }
    | {f"{name}_null": Field(("layer",), f"{name} of equal weights on all permitted keys") for name in OF_KIND},
)
