"""Stability of attention scores: the scores of the same pairs of tokens after different prefixes, head by head."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import masked_scores, repeat_kv_heads
from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import LayerInput, provenance, read_layer
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, Text
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Bounds, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import spearman

if TYPE_CHECKING:
    import xarray

N_PREFIXES, PREFIX_LENGTH = 2, 8
"""The number of random prefixes if none are passed, and the number of tokens of each."""


@torch.no_grad()
def prefix_stability(
    model: Model,
    text: Text,
    prefixes: Sequence[Text] | None = None,
    min_keys: Annotated[int, Bounds(1, 10_000)] = 8,
    seed: Seed = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The rank correlation of a head's scores for the same pairs of tokens, without and with a prefix.

    **Question** Does a score depend on the two tokens only, or also on what the prompt begins with?

    **Formula** The model reads the text alone and after each prefix. For a query i and its permitted keys j ≠ i in the text, take
    the Spearman correlation of s_ij without and with the prefix. `stability` is its mean over queries with enough keys. Only tokens
    at the end that all readings share count. Tokens that are massive in any reading are left out.

    **Settings**
    `prefixes` are strings before a string, or token ids before token ids. Strings are joined before they are tokenised. By default,
    two prefixes of 8 tokens are drawn from the text's own tokens, with `seed`.
    `min_keys` is the smallest number of keys of a query that counts.
    `keep_massive` includes massive tokens.

    **Returns** (prefix, layer, head): `stability`, `stability_null`. (layer): `queries`. The null correlates s_ij with the score
    s_{i+m, j+m} of other tokens at the same distance, with m half the text, or less for a short text. A head that only depends on
    the distance has 1 there too. NaN in a layer in which no query has enough keys.

    **Laws** Values lie in [−1, 1]. Layer 0 has 1 if positions are relative or absent, because a token is its embedding there.
    Transformations that leave the logits unchanged leave it unchanged.

    **See also** `agreement`, which relates scores to similarity; `fixed_point`, which measures how a token depends on the others.

    >>> import rheoscope as rs
    >>> text = " the keys to the cabinet are on the table in the hall"
    >>> result = rs.prefix_stability(rs.load(), text, ["Once upon a time", "In 1912"])
    >>> result.stability.dims, bool((result.stability <= 1).all())
    (('prefix', 'layer', 'head'), True)
    """
    if min_keys < 3:
        raise RheoscopeError(
            Message("min_keys must be at least {low}, got {received}", low=3, received=min_keys), use(min_keys=8)
        )
    if prefixes is None:
        text = model.ids(text)
        prefixes = random_prefixes(text, seed)
    plain_trace, prefixed_traces = trace_with_prefixes(model, text, prefixes)
    n_shared = min(common_suffix_length(plain_trace.ids, trace.ids) for trace in prefixed_traces)
    is_usable_token = usable_token_mask([plain_trace, *prefixed_traces], n_shared, keep_massive)
    n_usable = int(is_usable_token.sum())
    if n_usable <= min_keys:
        raise RheoscopeError(
            Message(
                "a query needs at least {min_keys} other keys, but all readings share only {received} tokens that are not massive; "
                "use a longer text, or prefixes that end at the end of a word",
                min_keys=min_keys,
                received=n_usable,
            )
        )
    tables = []
    for trace in prefixed_traces:
        tables.append(_compare_layers(plain_trace, trace, is_usable_token, min_keys))
        if progress is not None:
            progress(len(tables), len(prefixed_traces))
    values = {name: torch.stack([table[name] for table in tables]) for name in ("stability", "stability_null")}
    values["queries"] = tables[0]["queries"]
    view = model.view
    coords = {
        "prefix": [_prefix_label(prefix) for prefix in prefixes],
        "layer": range(view.layers),
        "head": range(view.heads),
    }
    attributes = provenance(plain_trace, keep_massive, min_keys=min_keys, seed=seed, shared_tokens=n_shared)
    return PREFIX_STABILITY.label(values, coords, attributes)


def random_prefixes(ids: Int[Tensor, " n"], seed: int) -> list[Int[Tensor, " m"]]:
    """Two prefixes of 8 tokens, drawn from the tokens of the text.

    >>> [len(prefix) for prefix in random_prefixes(torch.tensor([5, 6, 7]), seed=0)]
    [8, 8]
    """
    sampled_indices = torch.randint(
        len(ids), (N_PREFIXES, PREFIX_LENGTH), generator=torch.Generator().manual_seed(seed)
    )
    return list(ids[sampled_indices.to(ids.device)])


def trace_with_prefixes(model: Model, text: Text, prefixes: Sequence[Text]) -> tuple[Trace, list[Trace]]:
    """The Trace of the text alone, and of the text after each prefix."""
    text, prefixes = _without_traces([text])[0], prefixes if isinstance(prefixes, str) else _without_traces(prefixes)
    same_type = all(isinstance(prefix, str) == isinstance(text, str) and len(prefix) for prefix in prefixes)
    if isinstance(prefixes, str) or not len(prefixes) or not same_type:
        kinds = [type(prefix).__name__ if len(prefix) else "empty" for prefix in prefixes]
        raise RheoscopeError(
            Message(
                "prefixes must be a list of strings before a string, or of token ids before token ids, none of them empty; "
                "got {received}",
                received="str" if isinstance(prefixes, str) else kinds,
            ),
            use(prefixes=["Once upon a time"] if isinstance(text, str) else [[1, 2, 3]]),
        )
    joined_texts = [
        prefix + text if isinstance(prefix, str) else torch.cat([model.ids(prefix), model.ids(text)])  # type: ignore[operator]
        for prefix in prefixes
    ]
    return model.trace(text), [model.trace(joined_text) for joined_text in joined_texts]


def _without_traces(texts: Sequence[Text]) -> list[Any]:
    """Texts as strings or token ids."""
    return [(text.text or text.ids) if isinstance(text, Trace) else text for text in texts]


def common_suffix_length(a: Int[Tensor, " m"], b: Int[Tensor, " n"]) -> int:
    """The number of equal tokens at the end of two texts.

    >>> common_suffix_length(torch.tensor([1, 2, 3, 4]), torch.tensor([9, 9, 2, 8, 3, 4]))
    2
    """
    n_compared = min(len(a), len(b))
    differences = (a[len(a) - n_compared :] != b[len(b) - n_compared :]).nonzero()
    return n_compared if not len(differences) else n_compared - 1 - int(differences[-1])


def usable_token_mask(traces: Sequence[Trace], n_shared: int, keep_massive: bool) -> Bool[Tensor, " n"]:
    """Which of the last `n_shared` tokens are not massive in any reading."""
    is_usable_token = torch.ones(n_shared, dtype=torch.bool, device=traces[0].points.device)
    for trace in traces:
        massive_positions = [position - len(trace) + n_shared for position in trace.massive_tokens()]
        is_usable_token[[position for position in massive_positions if position >= 0 and not keep_massive]] = False
    return is_usable_token


def _compare_layers(
    plain_trace: Trace, prefixed_trace: Trace, is_usable_token: Bool[Tensor, " n"], min_keys: int
) -> dict[str, Tensor]:
    """Stability, its null and the number of queries, for every layer."""
    rows = []
    for layer in range(plain_trace.view.layers):
        plain_input, prefixed_input = (
            read_layer(trace, layer, _last_positions(trace, len(is_usable_token)))
            for trace in (plain_trace, prefixed_trace)
        )
        rows.append(kernel(plain_input, prefixed_input, is_usable_token, min_keys))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _last_positions(trace: Trace, n: int) -> Int[Tensor, " n"]:
    """The positions of the last n tokens."""
    return torch.arange(len(trace) - n, len(trace), device=trace.points.device)


def kernel(
    plain_input: LayerInput, prefixed_input: LayerInput, is_usable_token: Bool[Tensor, " n"], min_keys: int
) -> dict[str, Tensor]:
    """Stability, its null and the number of queries for the heads of one layer in two readings."""
    stability, n_queries = mean_score_correlation(plain_input, prefixed_input, is_usable_token, min_keys, shift=0)
    null, _ = mean_score_correlation(
        plain_input, prefixed_input, is_usable_token, min_keys, shift=null_shift(is_usable_token, min_keys)
    )
    return {"stability": stability, "stability_null": null, "queries": stability.new_tensor(n_queries)}


def null_shift(is_usable_token: Bool[Tensor, " n"], min_keys: int) -> int:
    """The offset of the null's tokens: half the text, or the largest that leaves two queries with enough keys.

    >>> null_shift(torch.ones(40, dtype=torch.bool), 8), null_shift(torch.ones(16, dtype=torch.bool), 8)
    (20, 6)
    """
    n = len(is_usable_token)
    shifts = range(n // 2, 0, -1)
    return next(
        (
            shift
            for shift in shifts
            if int((is_usable_token[: n - shift] & is_usable_token[shift:]).sum()) >= min_keys + 2
        ),
        1,
    )


def mean_score_correlation(
    plain_input: LayerInput, prefixed_input: LayerInput, is_usable_token: Bool[Tensor, " n"], min_keys: int, shift: int
) -> tuple[Float[Tensor, " h"], int]:
    """The mean over queries i of the correlation of s_ij and s_{i+shift, j+shift} in two readings, and their number."""
    plain_sides, prefixed_sides = (_queries_and_keys(layer_input) for layer_input in (plain_input, prefixed_input))
    n, mask = len(is_usable_token) - shift, plain_input.heads.mechanism.mask
    indices, shifted_indices = (
        torch.arange(n, device=is_usable_token.device),
        torch.arange(shift, shift + n, device=is_usable_token.device),
    )
    total, n_queries = torch.zeros(plain_sides[0].shape[1], dtype=torch.float64, device=is_usable_token.device), 0
    for rows in indices.split(max(1, cache_block_numel(plain_sides[0].device) // (plain_sides[0].shape[1] * n))):
        is_allowed = mask(plain_input.positions[rows], plain_input.positions[:n]) & mask(
            prefixed_input.positions[shifted_indices[rows]], prefixed_input.positions[shift:]
        )
        is_usable_both = is_usable_token & is_usable_token.roll(-shift)
        is_usable_pair = is_allowed & is_usable_both[:n] & is_usable_both[rows, None] & (rows[:, None] != indices)
        rows, is_usable_pair = (
            rows[is_usable_pair.sum(-1) >= min_keys],
            is_usable_pair[is_usable_pair.sum(-1) >= min_keys],
        )
        if len(rows):
            x, y = (
                _pair_scores(plain_input, plain_sides, rows, indices),
                _pair_scores(prefixed_input, prefixed_sides, shifted_indices[rows], shifted_indices),
            )
            total += spearman(x, y, is_usable_pair).sum((0, 2))
            n_queries += len(rows)
    return total / n_queries if n_queries else torch.full_like(total, float("nan")), n_queries


def _queries_and_keys(layer_input: LayerInput) -> tuple[Float[Tensor, "1 h n k"], Float[Tensor, "1 h n k"]]:
    """The queries and keys of the selected tokens, with their position encoding."""
    (q, k, _), encode_position = layer_input.heads.qkv(layer_input.x), layer_input.heads.mechanism.position.encode
    return encode_position(at_least_float32(q[:, :, layer_input.positions]), layer_input.positions), encode_position(
        repeat_kv_heads(at_least_float32(k[:, :, layer_input.positions]), layer_input.heads.n_heads),
        layer_input.positions,
    )


def _pair_scores(
    layer_input: LayerInput,
    queries_and_keys: tuple[Tensor, Tensor],
    rows: Int[Tensor, " r"],
    columns: Int[Tensor, " c"],
) -> Float[Tensor, "1 h r c"]:
    bare_mechanism = Mechanism(layer_input.heads.mechanism.score, position=layer_input.heads.mechanism.position)
    q, k = queries_and_keys
    return masked_scores(
        bare_mechanism, q[:, :, rows], k[:, :, columns], layer_input.positions[rows], layer_input.positions[columns]
    )


def _prefix_label(prefix: Any) -> str:
    return prefix if isinstance(prefix, str) else " ".join(str(int(token_id)) for token_id in prefix)


PREFIX_STABILITY = Analysis(
    name="prefix_stability",
    question="Does a head give the same pair of tokens the same score after different prefixes?",
    ask=prefix_stability,
    needs="model",
    fields={
        "stability": Field(
            ("prefix", "layer", "head"),
            "mean over queries of the Spearman correlation over keys of the scores without and with the prefix",
            null="stability_null",
        ),
        "stability_null": Field(
            ("prefix", "layer", "head"),
            "stability with other tokens at equal distances, which is what position alone explains",
        ),
        "queries": Field(("layer",), "number of queries with enough usable keys"),
    },
)
