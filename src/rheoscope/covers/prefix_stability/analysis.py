"""Do scores outlast another beginning? The scores of the same pairs of tokens under several prefixes, head by head."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.definition import for_every_head, scores
from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import Read, provenance, read
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.model import Model, Text
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import spearman

if TYPE_CHECKING:
    import xarray

BEGINNINGS, LENGTH = 2, 8
"""How many beginnings are drawn where none are given, and how many tokens each has."""


@torch.no_grad()
def prefix_stability(
    model: Model,
    text: Text,
    prefixes: Sequence[Text] | None = None,
    least: int = 8,
    seed: int = 0,
    keep_massive: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Does a head score the same pair of tokens alike, whatever came before the text?

    **Answers** "is this score a relation of two tokens, or of two tokens and the beginning of the prompt (the boundary)?"

    **Formula** the model reads the text alone, then after each prefix. For a query i, over the permitted keys j ≠ i of the
    text: Spearman correlation of s_ij without and with the prefix; the mean over queries with at least `least` such keys.
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
        prefixes = beginnings(text, seed)
    alone, after = readings(model, text, prefixes)
    shared = min(common_end(alone.ids, one.ids) for one in after)
    there = usable_tokens([alone, *after], shared, keep_massive)
    if int(there.sum()) <= least or least < 3:
        raise RheoscopeError(
            f"a query needs at least {least} other keys (3 or more), and {int(there.sum())} tokens that are not massive "
            "are the same without and with every prefix; type a longer text, or prefixes that end where a word ends"
        )
    tables = []
    for one in after:
        tables.append(_compared(alone, one, there, least))
        if progress is not None:
            progress(len(tables), len(after))
    values = {name: torch.stack([table[name] for table in tables]) for name in ("stability", "stability_null")}
    values["queries"] = tables[0]["queries"]
    view = model.view
    coords = {"prefix": [_named(one) for one in prefixes], "layer": range(view.layers), "head": range(view.heads)}
    attributes = provenance(alone, keep_massive, least=least, seed=seed, shared_tokens=shared)
    return PREFIX_STABILITY.answer(values, coords, attributes)


def beginnings(ids: Int[Tensor, " n"], seed: int) -> list[Int[Tensor, " m"]]:
    """Two beginnings of 8 tokens drawn from a text's own.

    >>> [len(one) for one in beginnings(torch.tensor([5, 6, 7]), seed=0)]
    [8, 8]
    """
    drawn = torch.randint(len(ids), (BEGINNINGS, LENGTH), generator=torch.Generator().manual_seed(seed))
    return list(ids[drawn.to(ids.device)])


def readings(model: Model, text: Text, prefixes: Sequence[Text]) -> tuple[Trace, list[Trace]]:
    """The text alone and after each prefix; a string after a string, or ids after ids."""
    alike = all(isinstance(one, str) == isinstance(text, str) and len(one) for one in prefixes)
    if isinstance(prefixes, str) or not len(prefixes) or not alike:
        raise RheoscopeError(
            "prefixes are a list of strings before a string, or of token ids before token ids, none of them empty; "
            'type prefixes=["Once upon a time"]'
        )
    joined = [one + text if isinstance(one, str) else torch.cat([model.ids(one), model.ids(text)]) for one in prefixes]  # type: ignore[operator]
    return model.trace(text), [model.trace(one) for one in joined]


def common_end(a: Int[Tensor, " m"], b: Int[Tensor, " n"]) -> int:
    """How many tokens at the end of two texts are the same.

    >>> common_end(torch.tensor([1, 2, 3, 4]), torch.tensor([9, 9, 2, 8, 3, 4]))
    2
    """
    some = min(len(a), len(b))
    other = (a[len(a) - some :] != b[len(b) - some :]).nonzero()
    return some if not len(other) else some - 1 - int(other[-1])


def usable_tokens(traces: Sequence[Trace], shared: int, keep_massive: bool) -> Bool[Tensor, " n"]:
    """Which of the last `shared` tokens are massive in no reading."""
    there = torch.ones(shared, dtype=torch.bool, device=traces[0].points.device)
    for trace in traces:
        last = [at - len(trace) + shared for at in trace.massive()]
        there[[at for at in last if at >= 0 and not keep_massive]] = False
    return there


def _compared(alone: Trace, after: Trace, there: Bool[Tensor, " n"], least: int) -> dict[str, Tensor]:
    """Stability, its null and the number of queries, layer by layer."""
    rows = []
    for layer in range(alone.view.layers):
        one, other = (read(trace, layer, _last(trace, len(there))) for trace in (alone, after))
        rows.append(kernel(one, other, there, least))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _last(trace: Trace, n: int) -> Int[Tensor, " n"]:
    """Places of the last n tokens."""
    return torch.arange(len(trace) - n, len(trace), device=trace.points.device)


def kernel(one: Read, other: Read, there: Bool[Tensor, " n"], least: int) -> dict[str, Tensor]:
    """Stability of the heads of one layer in two readings of the same tokens, its null and the number of queries."""
    own, count = alike(one, other, there, least, shift=0)
    null, _ = alike(one, other, there, least, shift=further(there, least))
    return {"stability": own, "stability_null": null, "queries": own.new_tensor(count)}


def further(there: Bool[Tensor, " n"], least: int) -> int:
    """How far on the other tokens of the null are: half the text, or as far as leaves two queries with enough keys.

    >>> further(torch.ones(40, dtype=torch.bool), 8), further(torch.ones(16, dtype=torch.bool), 8)
    (20, 6)
    """
    n = len(there)
    shifts = range(n // 2, 0, -1)
    return next((by for by in shifts if int((there[: n - by] & there[by:]).sum()) >= least + 2), 1)


def alike(one: Read, other: Read, there: Bool[Tensor, " n"], least: int, shift: int) -> tuple[Float[Tensor, " h"], int]:
    """Mean correlation, over queries i, of s_ij in one reading and s_{i+shift, j+shift} in the other, and their number."""
    a, b = (_sides(read) for read in (one, other))
    n, mask = len(there) - shift, one.heads.mechanism.mask
    first, moved = torch.arange(n, device=there.device), torch.arange(shift, shift + n, device=there.device)
    total, count = torch.zeros(a[0].shape[1], dtype=torch.float64, device=there.device), 0
    for rows in first.split(max(1, numbers_in_cache(a[0].device) // (a[0].shape[1] * n))):
        permitted = mask(one.at[rows], one.at[:n]) & mask(other.at[moved[rows]], other.at[shift:])
        tokens = there & there.roll(-shift)
        usable = permitted & tokens[:n] & tokens[rows, None] & (rows[:, None] != first)
        rows, usable = rows[usable.sum(-1) >= least], usable[usable.sum(-1) >= least]
        if len(rows):
            x, y = _scores(one, a, rows, first), _scores(other, b, moved[rows], moved)
            total += spearman(x, y, usable).sum((0, 2))
            count += len(rows)
    return total / count if count else torch.full_like(total, float("nan")), count


def _sides(read: Read) -> tuple[Float[Tensor, "1 h n k"], Float[Tensor, "1 h n k"]]:
    """Queries and keys of the tokens that count, in their places."""
    (q, k, _), place = read.heads.read(read.x), read.heads.mechanism.position.place
    return place(exact(q[:, :, read.at]), read.at), place(
        for_every_head(exact(k[:, :, read.at]), read.heads.count), read.at
    )


def _scores(
    read: Read, sides: tuple[Tensor, Tensor], rows: Int[Tensor, " r"], columns: Int[Tensor, " c"]
) -> Float[Tensor, "1 h r c"]:
    bare = Mechanism(read.heads.mechanism.score, position=read.heads.mechanism.position)
    q, k = sides
    return scores(bare, q[:, :, rows], k[:, :, columns], read.at[rows], read.at[columns])


def _named(prefix: Any) -> str:
    return prefix if isinstance(prefix, str) else " ".join(str(int(one)) for one in prefix)


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
