"""The variance of attention scores, split into centred tokens, the mean of the cloud and biases."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.attention.definition import query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.block_size import unblocked_numel
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.operators.analysis import positive_share
from rheoscope.covers.operators.words import REPORT
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads, matmul_per_head
from rheoscope.space.model_parts import Norm
from rheoscope.space.operator import Factored
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray

VectorParts = Float[Tensor, "part *b h n k"]

SHARE_FIELDS = ("centred", "mean_query", "mean_key", "query_bias", "key_bias")


@torch.no_grad()
def scores(
    trace: Trace, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> "xarray.Dataset":
    """The parts of the scores of every head on one text: centred tokens, the mean of the cloud, or biases.

    **Question** Does this head compare tokens, or do its biases and the mean of the cloud choose the keys?

    **Formula** s_ij = (x̂_i−x̄)M(x̂_j−x̄)ᵀ + x̄M(x̂_j−x̄)ᵀ + x̂_iMx̄ᵀ + bias terms, with M at the offset i − j. The share of a part is
    Σ cov(part, score) / Σ var(score) along rows, over permitted keys. Terms that are constant along a row do not count, because
    softmax ignores them. The shares sum to 1. A part that opposes the others has a negative share.

    **Returns** (layer, head): five shares `centred`, `mean_query`, `mean_key`, `query_bias`, `key_bias`; `row_sd` (nats);
    `positive_share_cloud` (of M at offset 0). Massive tokens are left out and listed in `attrs["massive"]`. Soft caps and
    additive position biases are ignored.

    **Laws** The parts add up to the model's scores. Transformations that leave the logits unchanged leave the shares unchanged.

    **See also** `operators`, which describes M without a text.

    >>> import rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9)))
    >>> rs.scores(model.trace([1, 2, 3, 4])).centred.dims
    ('layer', 'head')
    """
    values = {name: x[0] for name, x in batch(Traces.from_trace(trace), keep_massive, progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    formula = "Σ cov(part, score) / Σ var(score) along rows"
    return SCORES.label(values, coords, provenance(trace, keep_massive, formula=formula))


@torch.no_grad()
def batch(
    traces: Traces, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> dict[str, Float[Tensor, "b layer h"]]:
    """Every field of `scores` for many texts at once."""
    for heads in traces.view.layer_heads:
        check_scaled_dot_scores(heads)
    is_included, rows = traces.valid_mask(keep_massive, min_tokens=2), []
    for layer, heads in enumerate(traces.view.layer_heads):
        rows.append(kernel(heads, traces.layer_input(layer), is_included))
        if progress is not None:
            progress(layer + 1, traces.view.layers)
    return {name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}


def check_scaled_dot_scores(heads: Heads) -> None:
    """Refuse heads whose scores are not scaled dot products."""
    if not heads.is_scaled_dot:
        raise RheoscopeError(
            Message("the scores of this model are not scaled dot products, so they cannot be split into parts"),
            Advice("trace.scores(layer, head)"),
        )


@on_block
def kernel(
    heads: Heads, x: Float[Tensor, "b n d"], is_included: Bool[Tensor, "b n"]
) -> dict[str, Float[Tensor, "b h"]]:
    """All fields of one layer."""
    allowed = allowed_pairs(heads, x.shape[-2], x.device) & is_included[:, None] & is_included[..., None]
    query_parts, key_parts = query_key_parts(heads, x, is_included)
    shares, row_sd = variance_shares(*apply_positions(heads, query_parts, key_parts), allowed)
    return dict(zip(SHARE_FIELDS, shares.unbind(-1), strict=True)) | {
        "row_sd": row_sd,
        "positive_share_cloud": positive_share(Factored(query_parts[0], key_parts[0].mT)),
    }


def query_key_parts(
    heads: Heads, x: Float[Tensor, "b n d"], is_included: Bool[Tensor, "b n"]
) -> tuple[VectorParts, VectorParts]:
    """Every query and key as a sum of three parts: the centred token, the mean of the cloud and the bias.

    The queries include the scale. Under QK-norm, all parts are multiplied by the norm's scale and gain. Tokens that are left out are 0.
    """
    token_mask = is_included[..., None]
    x_hat = torch.where(token_mask, heads.norm.normalise(at_least_float32(x)), 0)
    mean = x_hat.sum(-2, keepdim=True) / token_mask.sum(-2, keepdim=True)
    cloud = torch.stack([x_hat - mean, mean.expand_as(x_hat)])
    q = head_vector_parts(heads.norm, cloud, heads.W_Q, heads.b_Q, heads.q_norm) * heads.scale
    k = head_vector_parts(heads.norm, cloud, heads.W_K, heads.b_K, heads.k_norm)
    k = repeat_kv_heads(k.flatten(0, 1), heads.n_heads).unflatten(0, k.shape[:2])
    q, k = (torch.where(token_mask[:, None], part, 0) for part in (q, k))
    return q, k


def head_vector_parts(
    norm: Norm, cloud: Float[Tensor, "c *b n d"], W: Tensor, b: Tensor | None, qk_norm: Norm | None
) -> VectorParts:
    """Parts of x̂ as parts of the queries or keys of every head, with the bias as the last part."""
    W = W.to(cloud.dtype)
    token_parts = matmul_per_head(cloud, norm.fold(W))
    bias = torch.zeros_like(token_parts[0])
    bias = bias if norm.bias is None else bias + (norm.bias.to(W) @ W)[:, None]
    bias = bias if b is None else bias + b.to(W)[:, None]
    parts = torch.cat([token_parts, bias[None]])
    if qk_norm is None:
        return parts
    normed = qk_norm.centre(parts) * qk_norm.scale(parts.sum(0)) * (1.0 if qk_norm.gain is None else qk_norm.gain.to(W))
    return normed if qk_norm.bias is None else torch.cat([normed[:-1], normed[-1:] + qk_norm.bias.to(W)])


def apply_positions(heads: Heads, q: VectorParts, k: VectorParts) -> tuple[VectorParts, VectorParts]:
    """The parts of queries and keys with their position encoding."""
    position_pair = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    encode_position = heads.mechanism.position.encode
    q, k = (
        encode_position(parts.flatten(0, -4), indices).unflatten(0, parts.shape[:-3])
        for parts, indices in zip((q, k), position_pair, strict=True)
    )
    return q, k


def score_factors(q: Float[Tensor, "part *h n k"], k: Float[Tensor, "part *h m k"]) -> list[tuple[Tensor, Tensor]]:
    """The five parts a bᵀ of the scores. Their sum is the score before a soft cap and a position bias."""
    token = q[:2].sum(0)
    return [(q[0], k[0]), (q[1], k[0]), (token, k[1]), (q[2], k[:2].sum(0)), (token + q[2], k[2])]


def variance_shares(
    q: VectorParts, k: VectorParts, allowed: Bool[Tensor, "*b n n"]
) -> tuple[Float[Tensor, "*b h 5"], Float[Tensor, "*b h"]]:
    """Each part's share cov(part, score) / var(score) along rows over permitted keys, and the root of the variance.

    With W the row-centred scores, Σ cov(abᵀ, W) = Σ_i ⟨a_i, (Wb)_i⟩, so no (n, n) matrix of a part is needed.
    """
    k = k - k.mean(-2, keepdim=True)  # adds a constant to every row, which softmax ignores
    rows_at_once = max(1, unblocked_numel(q.device) // q[0, ..., 0].numel())
    blocks = [slice(low, low + rows_at_once) for low in range(0, q.shape[-2], rows_at_once)]
    block_sums = [covariances(q[..., rows, :], k, allowed[..., rows, :]) for rows in blocks]
    covariance, variance = (torch.stack(block_values).sum(0) for block_values in zip(*block_sums, strict=True))
    largest = (q.norm(dim=-1).amax(-1) * k.norm(dim=-1).amax(-1)).amax(0)
    n_pairs = allowed.sum((-2, -1))[..., None]
    rounding = n_pairs * (10 * torch.finfo(q.dtype).eps * largest).square()
    shares = torch.where((variance > rounding)[..., None], covariance / variance.clamp(min=1e-30)[..., None], 0)
    return shares, (variance / n_pairs.clamp(min=1)).sqrt()


def covariances(
    q: Float[Tensor, "part *b h m k"], k: Float[Tensor, "part *b h n k"], allowed: Bool[Tensor, "*b m n"]
) -> tuple[Float[Tensor, "*b h 5"], Float[Tensor, "*b h"]]:
    """Σ cov(part, score) of the five parts of every head over a block of rows, and Σ var(score)."""
    allowed = allowed[..., None, :, :]
    total_scores = torch.where(allowed, q.sum(0) @ k.sum(0).mT, 0)
    mean = total_scores.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
    W = torch.where(allowed, total_scores - mean, 0)
    weighted_keys = (
        (W @ torch.cat([*k], -1)).unflatten(-1, (len(k), -1)).movedim(-2, 0)
    )  # one product for all key parts
    return torch.stack([(a * b).sum((-2, -1)) for a, b in score_factors(q, weighted_keys)], -1), W.square().sum(
        (-2, -1)
    )


def allowed_pairs(heads: Heads, n: int, device: torch.device) -> Bool[Tensor, "n n"]:
    """The permitted keys of each query under the mask of the heads."""
    i, j = query_key_positions(n, n, device)
    return heads.mechanism.mask(i, j)


SCORES = Analysis(
    name="scores",
    question="What are the scores of each head made of: centred tokens, the mean of the cloud, or biases?",
    ask=scores,
    needs="trace",
    report_runs=(ReportRun(REPORT.name, 1, only_with="text"),),
    batch=batch,
    fields={
        "centred": Field(
            ("layer", "head"),
            "share of (x̂_i − x̄) M (x̂_j − x̄)ᵀ in the variance of the scores along rows",
        ),
        "mean_query": Field(
            ("layer", "head"),
            "share of x̄ M (x̂_j − x̄)ᵀ, a preference for keys that is the same for all queries",
        ),
        "mean_key": Field(
            ("layer", "head"),
            "share of x̂_i M(δ) x̄ᵀ, 0 without RoPE and a preference for positions with it",
        ),
        "query_bias": Field(("layer", "head"), "share of the query bias with the token part of the keys"),
        "key_bias": Field(
            ("layer", "head"),
            "share of the key bias with the queries, 0 without RoPE and a preference for positions with it",
        ),
        "row_sd": Field(
            ("layer", "head"), "standard deviation of the scores along rows, over permitted keys", unit="nats"
        ),
        "positive_share_cloud": Field(
            ("layer", "head"),
            "Σλ⁺/Σ|λ| of the symmetric part of the centred scores on this cloud: 1 if the score is a similarity",
        ),
    },
)
