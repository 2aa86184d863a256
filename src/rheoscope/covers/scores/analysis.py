"""What are the scores of each head made of? The form on the cloud, the mean of the cloud, the biases."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.definition import for_every_head, positions
from rheoscope.attention.lower.block_size import numbers_in_one_piece
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.operators.analysis import positive_share
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads, Norm, by_every_head
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

Parts = Float[Tensor, "part *b h n k"]

SHARES = ("centred", "mean_query", "mean_key", "query_bias", "key_bias")


@torch.no_grad()
def scores(
    trace: Trace, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> "xarray.Dataset":
    """What the scores of every head are made of, on one text: geometry, mean or bias.

    **Answers** "does this head compare tokens, or do its biases and the mean of the cloud choose the keys?"

    **Formula** s_ij = (x̂_i−x̄)M(x̂_j−x̄)ᵀ + x̄M(x̂_j−x̄)ᵀ + x̂_iMx̄ᵀ + bias terms, M at the offset i − j. The share of a part
    is Σ cov(part, score) / Σ var(score), both along rows over permitted keys: what is constant along a row, softmax
    cannot see. Shares add up to 1; one that works against the others is negative.

    **Gives** (layer, head): the five shares, `spread` (nats), `positive_share_cloud` (of M at offset 0). Massive tokens
    are dropped and listed in `attrs["massive"]`; soft-caps and additive biases of position are left out.

    **Laws** the parts add up to the model's own scores; unchanged by every move that leaves the logits unchanged.

    **Relation** `operators` says what M is, without a text; this says what M does on one.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> rs.scores(model.trace([1, 2, 3, 4])).centred.dims
    ('layer', 'head')
    """
    values = {name: x[0] for name, x in many(Traces.of(trace), keep_massive, progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    formula = "Σ cov(part, score) / Σ var(score) along rows"
    return SCORES.answer(values, coords, provenance(trace, keep_massive, formula=formula))


@torch.no_grad()
def many(
    traces: Traces, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> dict[str, Float[Tensor, "b layer h"]]:
    """The same of many texts at once."""
    if not all(heads.plain for heads in traces.view.blocks):
        raise RheoscopeError(
            "the scores of this model are no scaled dot products, so they have no such parts; "
            "type trace.scores(layer, head) for the scores themselves"
        )
    kept, rows = traces.ordinary(keep_massive, least=2), []
    for layer, heads in enumerate(traces.view.blocks):
        rows.append(kernel(heads, traces.read_by(layer), kept))
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def kernel(heads: Heads, x: Float[Tensor, "b n d"], kept: Bool[Tensor, "b n"]) -> dict[str, Float[Tensor, "b h"]]:
    """All numbers of one layer."""
    allowed = permitted(heads, x.shape[-2], x.device) & kept[:, None] & kept[..., None]
    queries, keys = sides(heads, x, kept)
    shares, spread = shares_of(*placed(heads, queries, keys), allowed)
    return dict(zip(SHARES, shares.unbind(-1), strict=True)) | {
        "spread": spread,
        "positive_share_cloud": positive_share(Factored(queries[0], keys[0].mT)),
    }


def sides(heads: Heads, x: Float[Tensor, "b n d"], kept: Bool[Tensor, "b n"]) -> tuple[Parts, Parts]:
    """Every query and key as a sum of three: the centred token, the mean of the cloud, the bias (scale in the queries).

    Under QK-norm all three carry the realised scale of the norm and its gain. 0 for tokens that do not count.
    """
    there = kept[..., None]
    hat = torch.where(there, heads.norm.hat(exact(x)), 0)
    mean = hat.sum(-2, keepdim=True) / there.sum(-2, keepdim=True)
    cloud = torch.stack([hat - mean, mean.expand_as(hat)])
    q = side(heads.norm, cloud, heads.W_Q, heads.b_Q, heads.q_norm) * heads.scale
    k = side(heads.norm, cloud, heads.W_K, heads.b_K, heads.k_norm)
    k = for_every_head(k.flatten(0, 1), heads.count).unflatten(0, k.shape[:2])
    q, k = (torch.where(there[:, None], part, 0) for part in (q, k))
    return q, k


def side(norm: Norm, cloud: Float[Tensor, "c *b n d"], W: Tensor, b: Tensor | None, then: Norm | None) -> Parts:
    """Parts of x̂ as parts of a query or a key of every head, and the bias as one more; QK-norm at its realised scale."""
    W = W.to(cloud.dtype)
    tokens = by_every_head(cloud, norm.fold(W))
    bias = torch.zeros_like(tokens[0])
    bias = bias if norm.bias is None else bias + (norm.bias.to(W) @ W)[:, None]
    bias = bias if b is None else bias + b.to(W)[:, None]
    parts = torch.cat([tokens, bias[None]])
    if then is None:
        return parts
    return parts * then.scale(parts.sum(0)) * (1.0 if then.gain is None else then.gain.to(W))


def placed(heads: Heads, q: Parts, k: Parts) -> tuple[Parts, Parts]:
    """Queries and keys at their positions."""
    at = positions(q.shape[-2], k.shape[-2], q.device)
    place = heads.mechanism.position.place
    q, k = (
        place(side.flatten(0, -4), there).unflatten(0, side.shape[:-3]) for side, there in zip((q, k), at, strict=True)
    )
    return q, k


def pairs_of(q: Float[Tensor, "part *h n k"], k: Float[Tensor, "part *h m k"]) -> list[tuple[Tensor, Tensor]]:
    """The five parts a bᵀ of the scores; together they are the scores before cap and position bias."""
    token = q[:2].sum(0)
    return [(q[0], k[0]), (q[1], k[0]), (token, k[1]), (q[2], k[:2].sum(0)), (token + q[2], k[2])]


def shares_of(
    q: Parts, k: Parts, allowed: Bool[Tensor, "*b n n"]
) -> tuple[Float[Tensor, "*b h 5"], Float[Tensor, "*b h"]]:
    """Shares of the variance along rows, and its root: cov(part, whole) / var(whole), over the permitted keys.

    With W the whole scores less their mean along each row, Σ cov(abᵀ, W) = Σ_i ⟨a_i, (Wb)_i⟩: the table of a part is never made.
    """
    k = k - k.mean(-2, keepdim=True)  # adds a constant to every row, which softmax cannot see
    size = max(1, numbers_in_one_piece(q.device) // q[0, ..., 0].numel())
    blocks = [slice(low, low + size) for low in range(0, q.shape[-2], size)]
    found = [covariances(q[..., rows, :], k, allowed[..., rows, :]) for rows in blocks]
    along, variance = (torch.stack(each).sum(0) for each in zip(*found, strict=True))
    largest = (q.norm(dim=-1).amax(-1) * k.norm(dim=-1).amax(-1)).amax(0)
    pairs = allowed.sum((-2, -1))[..., None]
    rounding = pairs * (10 * torch.finfo(q.dtype).eps * largest).square()
    shares = torch.where((variance > rounding)[..., None], along / variance.clamp(min=1e-30)[..., None], 0)
    return shares, (variance / pairs.clamp(min=1)).sqrt()


def covariances(
    q: Float[Tensor, "part *b h m k"], k: Float[Tensor, "part *b h n k"], allowed: Bool[Tensor, "*b m n"]
) -> tuple[Float[Tensor, "*b h 5"], Float[Tensor, "*b h"]]:
    """Σ cov(part, whole) of the five parts of every head over some rows, and Σ var(whole)."""
    allowed = allowed[..., None, :, :]
    whole = torch.where(allowed, q.sum(0) @ k.sum(0).mT, 0)
    mean = whole.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
    W = torch.where(allowed, whole - mean, 0)
    seen = (
        (W @ torch.cat([*k], -1)).unflatten(-1, (len(k), -1)).movedim(-2, 0)
    )  # of the three parts of the keys at once
    return torch.stack([(a * b).sum((-2, -1)) for a, b in pairs_of(q, seen)], -1), W.square().sum((-2, -1))


def permitted(heads: Heads, n: int, device: torch.device) -> Bool[Tensor, "n n"]:
    """Which keys each query may see, by the head's own mask."""
    i, j = positions(n, n, device)
    return heads.mechanism.mask(i, j)


SCORES = Analysis(
    name="scores",
    question="What are the scores of each head made of: comparing tokens, the mean of the cloud, or biases?",
    ask=scores,
    needs="trace",
    batch=many,
    fields={
        "centred": Field(
            ("layer", "head"),
            "share of (x̂_i − x̄) M (x̂_j − x̄)ᵀ, the form on the cloud, in what the softmax sees of the scores",
        ),
        "mean_query": Field(
            ("layer", "head"),
            "share of x̄ M (x̂_j − x̄)ᵀ: keys that the mean of the cloud asks for, whoever asks (a key bias)",
        ),
        "mean_key": Field(
            ("layer", "head"),
            "share of x̂_i M(δ) x̄ᵀ: constant along a row without RoPE (0), a preference of place with it",
        ),
        "query_bias": Field(("layer", "head"), "share of the bias of queries with the token as key"),
        "key_bias": Field(
            ("layer", "head"),
            "share of the bias of keys with the query and its bias: 0 without RoPE, a preference of place with it",
        ),
        "spread": Field(
            ("layer", "head"), "standard deviation of the scores along a row, over permitted keys", unit="nats"
        ),
        "positive_share_cloud": Field(
            ("layer", "head"),
            "Σλ⁺/Σ|λ| of the symmetric part of the centred scores on this cloud: 1 where relevance is a similarity",
        ),
    },
)
