"""Do scores outlast another beginning? The scores of the same pairs of tokens under several prefixes, head by head."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import masked_scores, repeat_kv_heads
from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import LayerInput, provenance, read_layer
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
"""How many beginnings are drawn where none are given, and how many tokens each has."""


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
    """Does a head score the same pair of tokens alike, whatever came before the text?

    **Answers** "is this score a relation of two tokens, or of two tokens and the beginning of the prompt (the boundary)?"

    **Formula** the model reads the text alone, then after each prefix. For a query i, over the permitted keys j ≠ i of the
    text: Spearman correlation of s_ij without and with the prefix; the mean over queries with at least `min_keys` such keys.
    Tokens that are massive in one of the readings are dropped. Strings are joined before they are cut into tokens; what
    counts are the tokens at the end that all readings share. Without `prefixes` two beginnings are drawn by `seed`, 8 of the
    text's own tokens each, with repetition: ids before ids, so that every token of the text is shared.

    **Null** s_ij against the score of other tokens at the same distance, s_{i+m, j+m} with the prefix, m half the text, or less
    where a short text would have no query left: a head that only sees place has 1 there too.

    **Gives** (prefix, layer, head): `stability`, `stability_null`; (layer): `queries`. NaN in a layer where no query has
    enough keys.

    **Laws** 1 in layer 0 of a model whose positions are relative or none: there a token is its embedding; in [−1, 1];
    unchanged by every move that leaves the logits unchanged.

    **Siblings** `agreement` says what heads read, this how much of it the prompt decides; `fixed_point` how far one token
    hangs on the others.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.prefix_stability(model, " the keys to the cabinet are on the table in the hall", ["Once upon a time", "In 1912"])
    >>> found.stability.dims, bool((found.stability <= 1).all())
    (('prefix', 'layer', 'head'), True)
    """
    if prefixes is None:
        text = model.ids(text)
        prefixes = random_prefixes(text, seed)
    plain_trace, prefixed_traces = trace_with_prefixes(model, text, prefixes)
    n_shared = min(common_suffix_length(plain_trace.ids, trace.ids) for trace in prefixed_traces)
    is_usable_token = usable_token_mask([plain_trace, *prefixed_traces], n_shared, keep_massive)
    if int(is_usable_token.sum()) <= min_keys or min_keys < 3:
        raise RheoscopeError(
            f"a query needs at least {min_keys} other keys (3 or more), and {int(is_usable_token.sum())} tokens that are not massive "
            "are the same without and with every prefix; type a longer text, or prefixes that end where a word ends"
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
    """Two beginnings of 8 tokens drawn from a text's own.

    >>> [len(one) for one in random_prefixes(torch.tensor([5, 6, 7]), seed=0)]
    [8, 8]
    """
    sampled_indices = torch.randint(
        len(ids), (N_PREFIXES, PREFIX_LENGTH), generator=torch.Generator().manual_seed(seed)
    )
    return list(ids[sampled_indices.to(ids.device)])


def trace_with_prefixes(model: Model, text: Text, prefixes: Sequence[Text]) -> tuple[Trace, list[Trace]]:
    """The text alone and after each prefix; a string after a string, or ids after ids."""
    same_type = all(isinstance(prefix, str) == isinstance(text, str) and len(prefix) for prefix in prefixes)
    if isinstance(prefixes, str) or not len(prefixes) or not same_type:
        raise RheoscopeError(
            "prefixes are a list of strings before a string, or of token ids before token ids, none of them empty; "
            'type prefixes=["Once upon a time"]'
        )
    joined_texts = [
        prefix + text if isinstance(prefix, str) else torch.cat([model.ids(prefix), model.ids(text)])  # type: ignore[operator]
        for prefix in prefixes
    ]
    return model.trace(text), [model.trace(joined_text) for joined_text in joined_texts]


def common_suffix_length(a: Int[Tensor, " m"], b: Int[Tensor, " n"]) -> int:
    """How many tokens at the end of two texts are the same.

    >>> common_suffix_length(torch.tensor([1, 2, 3, 4]), torch.tensor([9, 9, 2, 8, 3, 4]))
    2
    """
    n_compared = min(len(a), len(b))
    differences = (a[len(a) - n_compared :] != b[len(b) - n_compared :]).nonzero()
    return n_compared if not len(differences) else n_compared - 1 - int(differences[-1])


def usable_token_mask(traces: Sequence[Trace], n_shared: int, keep_massive: bool) -> Bool[Tensor, " n"]:
    """Which of the last `shared` tokens are massive in no reading."""
    is_usable_token = torch.ones(n_shared, dtype=torch.bool, device=traces[0].points.device)
    for trace in traces:
        massive_positions = [position - len(trace) + n_shared for position in trace.massive_tokens()]
        is_usable_token[[position for position in massive_positions if position >= 0 and not keep_massive]] = False
    return is_usable_token


def _compare_layers(
    plain_trace: Trace, prefixed_trace: Trace, is_usable_token: Bool[Tensor, " n"], min_keys: int
) -> dict[str, Tensor]:
    """Stability, its null and the number of queries, layer by layer."""
    rows = []
    for layer in range(plain_trace.view.layers):
        plain_input, prefixed_input = (
            read_layer(trace, layer, _last_positions(trace, len(is_usable_token)))
            for trace in (plain_trace, prefixed_trace)
        )
        rows.append(kernel(plain_input, prefixed_input, is_usable_token, min_keys))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _last_positions(trace: Trace, n: int) -> Int[Tensor, " n"]:
    """Places of the last n tokens."""
    return torch.arange(len(trace) - n, len(trace), device=trace.points.device)


def kernel(
    plain_input: LayerInput, prefixed_input: LayerInput, is_usable_token: Bool[Tensor, " n"], min_keys: int
) -> dict[str, Tensor]:
    """Stability of the heads of one layer in two readings of the same tokens, its null and the number of queries."""
    stability, n_queries = mean_score_correlation(plain_input, prefixed_input, is_usable_token, min_keys, shift=0)
    null, _ = mean_score_correlation(
        plain_input, prefixed_input, is_usable_token, min_keys, shift=null_shift(is_usable_token, min_keys)
    )
    return {"stability": stability, "stability_null": null, "queries": stability.new_tensor(n_queries)}


def null_shift(is_usable_token: Bool[Tensor, " n"], min_keys: int) -> int:
    """How far on the other tokens of the null are: half the text, or as far as leaves two queries with enough keys.

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
    """Mean correlation, over queries i, of s_ij in one reading and s_{i+shift, j+shift} in the other, and their number."""
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
    """Queries and keys of the tokens that count, in their places."""
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
    question="Does a head score the same pair of tokens alike, whatever came before the text?",
    ask=prefix_stability,
    needs="model",
    fields={
        "stability": Field(
            ("prefix", "layer", "head"),
            "mean over queries of Spearman's correlation, over keys, of the scores of the same tokens without and with the prefix",
            null="stability_null",
        ),
        "stability_null": Field(
            ("prefix", "layer", "head"),
            "the same with the scores of other tokens equally far apart, half the text further on or less: what place alone explains",
        ),
        "queries": Field(("layer",), "queries with enough usable keys, over which means are taken"),
    },
)
